"""Blocks that the core cut from real transactions, as parts of bundles and without one.

The transactions, the genesis block and the orderer's keys are those of `bench/osn/fabric`: a
real peer made and endorsed them, and Fabric's tools made the rest.
"""

from ordering_osn.chain.actions import Write
from ordering_osn.chain.blocks import seal
from ordering_osn.chain.bundles.bundle import make_bundle
from ordering_osn.chain.chain import Chain, RecordPlace
from ordering_osn.chain.records import Regular, RegularKind, TimeToCut, encode
from ordering_osn.chain.state import StreamPosition, state_from
from ordering_osn.protos import Block
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.bundles import AB, bundle_record, marker
from tests.ordering_osn.helpers.chains import ORDERER, USER
from tests.ordering_osn.helpers.configs import real_envelopes

NAME = AB[0]
# In this order in the blocks; the letter says how: a transaction of one chain, or a part.
ORDER = (("s", "p", "s", "p", "p", "s"), ("p", "s"), ("s", "s"), ("p",))
CURSOR = "1/K1/3/0/300"


def expected():
    """The envelopes of each block, as the clients sent them."""
    real = iter(real_envelopes(NAME))
    return [[next(real) for _ in kinds] for kinds in ORDER]


def cut():
    """Give the genesis block and those that the core cut of `ORDER`, all sealed by the orderer."""
    blocks = [Block.FromString(configs.block(NAME))]
    chain = Chain(NAME, configs.rules(configs.genesis(NAME)), state_from(blocks))
    position = 0

    def step(raw, log=(NAME,)):
        nonlocal position
        position += 1
        place = RecordPlace(log, position, log)
        for action in chain.step(StreamPosition(position, CURSOR), raw, place):
            if isinstance(action, Write):
                seal(
                    action.block,
                    last_config=action.last_config,
                    consenter=action.consenter,
                    signer=ORDERER,
                )
                blocks.append(action.block)

    for name in AB:
        step(marker(name), AB)
    others = iter(real_envelopes(AB[1]))
    for kinds, sent in zip(ORDER, expected(), strict=True):
        for kind, envelope in zip(kinds, sent, strict=True):
            if kind == "p":
                parts = {NAME: envelope, AB[1]: next(others)}
                step(bundle_record(make_bundle(parts, signer=USER)), AB)
            else:
                step(encode(Regular(envelope, 0, RegularKind.NORMAL, 0)))
        step(encode(TimeToCut(chain.height)))
    return blocks
