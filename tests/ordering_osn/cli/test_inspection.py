"""Blocks as JSON, and chains checked: real ones are sound, and each fault is named."""

import pytest

from multicast.errors import UsageError
from ordering_osn.chain.blocks import data_hash, header_hash, new_block, seal
from ordering_osn.chain.envelopes import canonical, signed_envelope
from ordering_osn.cli.inspection import describe, open_blocks, verify
from ordering_osn.ledger import segments
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import (
    Block,
    BlockMetadataIndex,
    HeaderType,
    KafkaMetadata,
    Metadata,
    OrdererBlockMetadata,
)
from tests.ordering_osn.helpers import configs
from tests.ordering_osn.helpers.configs import FABRIC, NOW, orderer, org_user, real_envelopes
from tests.ordering_osn.helpers.ledgers import newest


def sealed(number, previous, data, *, last_config, position, signer=None):
    """Return the block after the header `previous`, as a node writes it."""
    made = new_block(number, header_hash(previous), data)
    consenter = KafkaMetadata(last_offset_persisted=position, cursor=b"1:K1:%d" % position)
    seal(
        made,
        last_config=last_config,
        consenter=consenter.SerializeToString(),
        signer=signer or orderer(),
    )
    return made


def config_envelope(config, change):
    """Return a CONFIG as a node orders it, and the config that it puts in force."""
    envelope, following = config.proposed(configs.parsed(configs.update(config, change)))
    raw = canonical(envelope)
    signed = signed_envelope(HeaderType.CONFIG, config.channel_id, raw, signer=orderer(), now=NOW)
    return signed, following


def real_chain():
    """Blocks of chain-a: genesis, 20 of its transactions, a config, the other 20."""
    config = configs.genesis()
    blocks = [Block.FromString(configs.block())]
    envelopes = real_envelopes()

    def add(data, last_config):
        number = len(blocks)
        blocks.append(
            sealed(number, blocks[-1].header, data, last_config=last_config, position=number * 10)
        )

    add(envelopes[:10], 0)
    add(envelopes[10:20], 0)
    new, _ = config_envelope(config, lambda changed: configs.set_timeout(changed, "1s"))
    add([new], 3)
    add(envelopes[20:30], 3)
    add(envelopes[30:], 3)
    return blocks


@pytest.fixture(scope="module")
def chain():
    return real_chain()


class Chain:
    """A list of blocks with the interface of a ledger."""

    def __init__(self, blocks, *, base=0):
        self.base, self.height = base, len(blocks)
        self.blocks = blocks

    def read(self, number):
        return self.blocks[number].SerializeToString()


def altered(blocks, number, change):
    """Return the chain with one block changed in place."""
    copy = [Block.FromString(block.SerializeToString()) for block in blocks]
    change(copy[number])
    return Chain(copy)


def written(folder, blocks):
    with Ledger.open(folder, segment_bytes_max=50_000) as ledger:
        for number, block in enumerate(blocks):
            ledger.append(number, block.SerializeToString())
    return folder


# One block as JSON


def test_a_block_of_transactions_is_described(chain):
    description = describe(chain[1].SerializeToString())
    assert description["problems"] == []
    assert description["config"] is None
    assert [each["index"] for each in description["transactions"]] == list(range(10))
    first = description["transactions"][0]
    assert first["type"] == "ENDORSER_TRANSACTION"
    assert first["channel"] == "chain-a"
    assert len(bytes.fromhex(first["transaction"])) == 32
    assert first["creator"]["msp_id"] == "Org1MSP"
    assert "Admin@org1.example.com" in first["creator"]["certificate"]
    assert first["bytes"] == len(real_envelopes()[0])
    assert first["time"].startswith("20")
    metadata = description["metadata"]
    assert (metadata["position"], metadata["cursor"], metadata["last_config"]) == (10, "1:K1:10", 0)
    assert (metadata["last_original"], metadata["last_resubmitted_config"]) == (0, 0)
    [signer] = metadata["signers"]
    assert signer["msp_id"] == "OrdererMSP"
    assert "orderer.example.com" in signer["certificate"]


def test_a_config_block_is_described_with_what_it_changes(chain):
    said = describe(chain[3].SerializeToString())
    assert (said["config"]["sequence"], said["config"]["timeout_s"]) == (1, 1.0)
    assert said["metadata"]["last_config"] == 3


def test_what_cannot_be_decoded_is_said(chain):
    assert describe(b"\xff")["problems"][0].startswith("no block")
    strange = new_block(1, b"", [b"\xff", real_envelopes()[0], b""])
    strange.header.data_hash = b"other"
    strange.metadata.metadata[0] = b"\xff"
    said = describe(strange.SerializeToString())
    assert [each["index"] for each in said["transactions"]] == [0, 1, 2]
    assert said["transactions"][1]["channel"] == "chain-a"
    assert len(said["problems"]) == 4
    assert describe(Block().SerializeToString())["problems"] != []
    assert describe(chain[1].SerializeToString()[:-100])["problems"] != []


# A whole chain


def test_a_sound_chain_has_no_problem(chain, tmp_path):
    assert list(verify(Chain(chain))) == []
    assert list(verify(Chain(chain), config=configs.genesis())) == []
    seen = []
    assert list(verify(open_blocks(written(tmp_path, chain)), seen=seen.append)) == []
    assert seen == chain


@pytest.mark.parametrize("channel", ["chain-a", "chain-b", "chain-c", "chain-d"])
def test_a_real_genesis_block_in_a_file_is_sound(channel):
    assert list(verify(open_blocks(FABRIC / f"{channel}.block"))) == []


def test_a_file_with_something_else_is_refused(tmp_path):
    (tmp_path / "x.block").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="holds no block"):
        open_blocks(tmp_path / "x.block")
    with pytest.raises(UsageError):
        open_blocks(tmp_path / "none")


def resealed(block, *, signer=None, **changes):
    """Sign a block again, with other metadata."""
    signed = OrdererBlockMetadata.FromString(
        Metadata.FromString(block.metadata.metadata[BlockMetadataIndex.SIGNATURES]).value
    )
    consenter = Metadata.FromString(signed.consenter_metadata).value
    arguments = {"last_config": signed.last_config.index, "consenter": consenter} | changes
    seal(block, signer=signer or orderer(), **arguments)


def with_other_data(block):
    block.data.data[0] = real_envelopes()[39]


def with_other_data_and_hash(block):
    with_other_data(block)
    block.header.data_hash = data_hash(block.data.data)
    resealed(block)


def with_another_number(block):
    block.header.number = 7


def signed_by_a_client(block):
    resealed(block, signer=org_user())


def without_a_signature(block):
    slot = Metadata.FromString(block.metadata.metadata[0])
    del slot.signatures[:]
    block.metadata.metadata[0] = slot.SerializeToString()


def with_an_old_config(block):
    resealed(block, last_config=0)


def standing_still(block):
    resealed(block, consenter=KafkaMetadata(last_offset_persisted=30).SerializeToString())


def with_corrupt_metadata(block):
    block.metadata.metadata[BlockMetadataIndex.SIGNATURES] = b"\xff"


def with_a_foreign_transaction(block):
    block.data.data[2] = real_envelopes("chain-b")[0]
    block.header.data_hash = data_hash(block.data.data)
    resealed(block)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (with_other_data, ["block 4 has a data hash that does not match its data"]),
        (with_other_data_and_hash, ["block 5 has the previous hash"]),
        (
            with_another_number,
            [
                "block 4 has the number 7 in its header",
                "block 4 has signatures that do not meet",
                "block 5 has the previous hash",
            ],
        ),
        (signed_by_a_client, ["block 4 has signatures that do not meet"]),
        (without_a_signature, ["block 4 has signatures that do not meet"]),
        (with_an_old_config, ["block 4 names block 0 as the newest config block, which is"]),
        (standing_still, ["block 4 has position 30, which is not above 30"]),
        (with_corrupt_metadata, ["block 4 has invalid metadata"]),
        (with_a_foreign_transaction, ["block 4 holds a transaction 2", "block 5 has the previous"]),
    ],
)  # fmt: skip
def test_a_fault_is_named(chain, change, expected):
    problems = list(verify(altered(chain, 4, change)))
    assert len(problems) == len(expected), problems
    assert all(problem.startswith(start) for problem, start in zip(problems, expected, strict=True))


def test_a_config_that_nobody_allowed_is_named(chain):
    other, _ = config_envelope(
        configs.genesis("chain-b"), lambda changed: configs.set_timeout(changed, "3s")
    )

    def change(block):
        block.data.data[0] = other
        block.header.data_hash = data_hash(block.data.data)
        resealed(block)

    problems = list(verify(altered(chain, 3, change)))
    assert problems[0].startswith("block 3 holds a config that does not follow")


def test_another_genesis_block_than_the_given_is_named(chain):
    other = configs.genesis("chain-b")
    problems = list(verify(Chain(chain), config=other))
    assert problems == ["block 0 holds another config than the given one"]


def test_a_damaged_block_is_named_with_its_place_and_the_others_are_still_verified(chain, tmp_path):
    written(tmp_path, chain)
    path = segments.listed(tmp_path)[0]
    raw = bytearray(path.read_bytes())
    raw[-2000] ^= 1
    path.write_bytes(raw)
    assert path != newest(tmp_path)
    number = int(segments.listed(tmp_path)[1].stem) - 1
    [problem] = verify(open_blocks(tmp_path))
    assert problem.startswith(f"block {number} cannot be read")
    assert path.name in problem


def test_behind_a_config_that_cannot_be_read_signatures_go_unchecked_and_it_is_said(chain):
    class Holed(Chain):
        def read(self, number):
            return b"\xff" if number == 3 else super().read(number)

    problems = list(verify(Holed(chain)))
    assert len(problems) == 2
    assert problems[0].startswith("block 3 cannot be read")
    assert problems[1].startswith("block 4 is signed under the config of block 3")


@pytest.mark.parametrize("below", [2, 3, 5])
def test_a_pruned_chain_is_verified_by_the_config_that_is_kept(chain, tmp_path, below):
    with Ledger.open(written(tmp_path, chain)) as ledger:
        ledger.prune(below)
    problems = list(verify(open_blocks(tmp_path)))
    if below == 3:  # a config block: the config in force before it was pruned
        assert problems == [
            "block 3 is the oldest block, and its signatures are not checked: no config is given"
        ]
        assert list(verify(open_blocks(tmp_path), config=configs.genesis())) == []
    else:
        assert problems == []


def test_a_pruned_chain_that_somebody_else_signed_is_named(chain, tmp_path):
    forged = [Block.FromString(block.SerializeToString()) for block in chain]
    for block in forged[1:]:
        resealed(block, signer=org_user())
    with Ledger.open(written(tmp_path, forged)) as ledger:
        ledger.prune(4)
    problems = list(verify(open_blocks(tmp_path)))
    assert [problem.split(":")[0] for problem in problems] == [
        "block 4 has signatures that do not meet the block validation policy",
        "block 5 has signatures that do not meet the block validation policy",
    ]
