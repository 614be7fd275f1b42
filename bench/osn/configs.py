"""Updates a chain's config while the nodes run, as its administrator would."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime
from pathlib import Path
from typing import Any

from bench.harness.rig import pause
from bench.osn.nodes import NodeProcesses
from bench.osn.transactions import FOLDER
from multicast.errors import AmcastError
from ordering_osn.api.channels import Status
from ordering_osn.api.grpc_client import NodeClient
from ordering_osn.chain.blocks import last_config_of
from ordering_osn.chain.envelopes import Signer, canonical, signed_envelope
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.identity import SigningIdentity
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.protos import (
    BatchTimeout,
    Block,
    ConfigSignature,
    ConfigUpdate,
    ConfigUpdateEnvelope,
    HeaderType,
    SignatureHeader,
)

_ADMIN = Path("crypto/ordererOrganizations/example.com/users/Admin@example.com/msp")
_TRIES_MAX = 50  # with `_AGAIN_S` between them, longer than a node and a broker take to restart
_AGAIN_S = 0.5
_ANSWER_S = 10.0


def admin() -> Signer:
    """Return the identity of the orderer organisation's administrator."""
    return SigningIdentity.load(FOLDER / _ADMIN, "OrdererMSP")


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
    orderer = config.config.channel_group.groups["Orderer"]
    timeout = BatchTimeout.FromString(orderer.values["BatchTimeout"].value).timeout
    milliseconds = int(timeout.removesuffix("ms"))
    changed = BatchTimeout(timeout=f"{milliseconds + 1}ms")
    return orderer_update(config, "BatchTimeout", changed, signer=admin(), now=now)


def orderer_update(
    config: ChannelConfig, name: str, message: Any, *, signer: Signer, now: datetime
) -> bytes:
    """Make a CONFIG_UPDATE envelope that changes one value of the orderer group."""
    root = config.config.channel_group
    orderer = root.groups["Orderer"]
    update: Any = ConfigUpdate(channel_id=config.channel_id)
    for group in (update.read_set, update.write_set):
        group.version = root.version
        group.groups["Orderer"].version = orderer.version
    value = update.write_set.groups["Orderer"].values[name]
    value.CopyFrom(orderer.values[name])
    value.version += 1
    value.value = canonical(message)
    raw = canonical(update)
    header = canonical(SignatureHeader(creator=signer.creator, nonce=signer.nonce()))
    signature = ConfigSignature(signature_header=header, signature=signer.sign(header + raw))
    signed = canonical(ConfigUpdateEnvelope(config_update=raw, signatures=[signature]))
    kind = HeaderType.CONFIG_UPDATE
    return signed_envelope(kind, config.channel_id, signed, signer=signer, now=now)


async def _sent(address: str, envelope: bytes) -> tuple[int, str]:
    try:
        async with NodeClient(address) as client:
            async for status, info in client.broadcast([envelope], timeout_s=_ANSWER_S):
                return status, info
    except AmcastError as error:
        return int(Status.SERVICE_UNAVAILABLE), str(error)
    return int(Status.SERVICE_UNAVAILABLE), "the node ended the stream"
