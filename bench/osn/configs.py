"""Updates a chain's config while the nodes run, as its administrator would."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime
from pathlib import Path

from bench.harness.rig import pause
from bench.osn.nodes import NodeProcesses
from bench.osn.transactions import FOLDER
from multicast.errors import AmcastError
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_server import NodeClient
from ordering_osn.chain.blocks import last_config_of
from ordering_osn.chain.envelopes import Signer
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.compute_update import (
    copy_of,
    group_at,
    make_update,
    set_value,
    update_envelope,
)
from ordering_osn.identity import SigningIdentity
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import BatchTimeout, Block

_ADMIN = Path("crypto/ordererOrganizations/example.com/users/Admin@example.com/msp")
_TRIES_MAX = 50  # with `_AGAIN_S` between them, longer than a node and a broker take to restart
_AGAIN_S = 0.5
_ANSWER_S = 10.0


def admin(folder: Path = FOLDER) -> Signer:
    """Return the identity of the orderer organisation's administrator."""
    return SigningIdentity.load(folder / _ADMIN, "OrdererMSP")


def config_in_force(ledger: Path) -> ChannelConfig:
    """Return the newest config in a ledger's folder, also while a node appends to it."""
    with Ledger.open(ledger, read_only=True) as opened:
        newest = Block.FromString(opened.read(opened.height - 1))
        return ChannelConfig.from_block(opened.read(last_config_of(newest)))


def changed_timeout(nodes: NodeProcesses, chain: str, *, now: datetime) -> None:
    """Add a millisecond to a chain's batch time-out; returns when a node has accepted the update.

    Sends it to one node after the other until one accepts it. Raises `AmcastError` where none does.
    """
    info = ""
    for number in itertools.islice(itertools.cycle(range(len(nodes.addresses))), _TRIES_MAX):
        config = config_in_force(nodes.ledger(number, chain))
        envelope = _update(config, now)
        status, info = asyncio.run(_sent(nodes.addresses[number], envelope))
        if status == Status.SUCCESS:
            return
        pause(_AGAIN_S)
    raise AmcastError(f"no node accepted the config update of {chain}: {info}")


def _update(config: ChannelConfig, now: datetime) -> bytes:
    changed = copy_of(config.config)
    orderer = group_at(changed, "Orderer")
    timeout = BatchTimeout.FromString(orderer.values["BatchTimeout"].value).timeout
    milliseconds = int(timeout.removesuffix("ms"))
    set_value(orderer, "BatchTimeout", BatchTimeout(timeout=f"{milliseconds + 1}ms"))
    made = make_update(config.config, changed, config.channel_id)
    return update_envelope(made, signers=[admin()], sender=admin(), now=now)


async def _sent(address: str, envelope: bytes) -> tuple[int, str]:
    try:
        async with NodeClient(address) as client:
            async for status, info in client.broadcast([envelope], timeout_s=_ANSWER_S):
                return status, info
    except AmcastError as error:
        return int(Status.SERVICE_UNAVAILABLE), str(error)
    return int(Status.SERVICE_UNAVAILABLE), "the node ended the stream"
