"""Fuzz targets of the ordering service: decoders of bytes from clients, peers, Kafka and disk."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.fuzz.mutation import Shape
from bench.fuzz.of_bundles import NOW
from bench.fuzz.target import FuzzTarget
from bench.osn.configs import orderer_update
from bench.osn.transactions import FOLDER, read_envelopes, user
from multicast.errors import UnknownVersion, UsageError
from ordering_osn.api import receipt_request, responses, seek
from ordering_osn.api.channels import Refused
from ordering_osn.chain import blocks, transactions
from ordering_osn.chain.chain import Chain, RecordPlace
from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope, decoded
from ordering_osn.chain.records import (
    Connect,
    Regular,
    RegularKind,
    TimeToCut,
    Unparseable,
    decode,
    encode,
)
from ordering_osn.chain.state import StreamPosition, state_from
from ordering_osn.cli import inspection, length_prefixed
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.identity.errors import MalformedMsp, UntrustedIdentity
from ordering_osn.identity.msp import Msp
from ordering_osn.identity.signing import SigningIdentity
from ordering_osn.ledger import segments
from ordering_osn.ledger.errors import LedgerDamaged
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node import catch_up, checkpoint, filters
from ordering_osn.protos import BatchSize, Block

_ORDERER = "crypto/ordererOrganizations/example.com/orderers/orderer.example.com/msp"
_PROTO, _BYTES, _TEXT = Shape.PROTOBUF, Shape.BINARY, Shape.TEXT


class _World:
    """Valid material: a channel's config, envelopes and identities."""

    def __init__(self) -> None:
        self.block = (FOLDER / "chain-a.block").read_bytes()
        self.config = ChannelConfig.from_block(self.block)
        self.envelopes = list(read_envelopes(FOLDER / "chain-a.envelopes"))[:4]
        self.user = user()
        self.creator = bytes(self.user.creator)
        self.rules = filters.ChannelRules(self.config, signer=lambda: self.user, clock=lambda: NOW)
        first = Block.FromString(self.block)
        self.header = first.header
        self.state = state_from([first])
        self.config_envelope = bytes(first.data.data[0])
        made = blocks.new_block(1, blocks.header_hash(first.header), self.envelopes)
        orderer = SigningIdentity.load(FOLDER / _ORDERER, "OrdererMSP")
        blocks.seal(made, last_config=0, consenter=b"", signer=orderer)
        self.next = bytes(made.SerializeToString())
        self.update = self._update()
        group = self.config.config.channel_group.groups["Application"].groups
        self.msp = bytes(next(iter(group.values())).values["MSP"].value)

    def _update(self) -> bytes:
        orderer = self.config.config.channel_group.groups["Orderer"]
        size = BatchSize.FromString(orderer.values["BatchSize"].value)
        size.max_message_count += 1
        return orderer_update(self.config, "BatchSize", size, signer=self.user, now=NOW)


def _block(raw: bytes) -> None:
    block = decoded(Block, raw, "the block")
    blocks.is_config(block)
    blocks.consenter_of(block)
    blocks.last_config_of(block)
    blocks.signed_bytes(block)
    if not block.header.number:
        blocks.check_next(block, None)


def _verified(world: _World, raw: bytes) -> None:
    list(catch_up.verified([raw], previous=world.header, config=world.config))


def _admitted(world: _World, raw: bytes) -> None:
    envelope = ParsedEnvelope(raw)
    kind, _ = filters.route(envelope)
    if kind is filters.EnvelopeClass.CONFIG_UPDATE:
        filters.admit_update(world.config, envelope, now=NOW, signer=world.user)
    else:
        filters.admit_normal(world.config, envelope, now=NOW)


def _routed(raw: bytes) -> None:
    filters.route(ParsedEnvelope(raw))


def _requested(raw: bytes) -> None:
    request = seek.read_request(raw, now=NOW, tls_hash=None)
    requested = seek.Seek(seek.seek_info(request.data), base=0, height=5)
    requested.next(5)


def _awaited(raw: bytes) -> None:
    receipt_request._wanted(seek.read_request(raw, now=NOW, tls_hash=None))  # noqa: SLF001


def _stepped(world: _World, raw: bytes) -> None:
    """Give the input to the chain's core, between valid records."""
    genuine = [
        encode(Regular(envelope, 0, RegularKind.NORMAL, 0)) for envelope in world.envelopes[:2]
    ]
    core = Chain("chain-a", world.rules, world.state)
    inputs = (raw, genuine[0], raw, genuine[1], raw)
    position = max(world.state.position.number, 0)
    for each in inputs:
        for log in (("chain-a",), ("chain-a", "chain-b")):
            position += 1
            place = RecordPlace(log, position, log)
            core.step(StreamPosition(position, "1/@P1/0/0/1"), each, place)


def _listed_frames(file: Path) -> None:
    list(length_prefixed.frames(file))


class RewrittenFile:
    """A file that is rewritten for every input; `reads` gets its path."""

    def __init__(self, name: str, reads: Callable[[Path], object]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="amcast-fuzz-")
        self.path = Path(self._folder.name) / name
        self._reads = reads

    def __call__(self, raw: bytes) -> object:
        """Write the input to the file, and read it."""
        self.path.write_bytes(raw)
        return self._reads(self.path)


def _ledger_files(world: _World) -> tuple[bytes, bytes, bytes]:
    """Make a segment, its index, and a base file."""
    with tempfile.TemporaryDirectory(prefix="amcast-fuzz-") as name:
        folder = Path(name)
        with Ledger.open(folder / "ledger") as kept:
            kept.append(0, world.block)
            kept.append(1, world.next)
        (path,) = segments.listed(folder / "ledger")
        scanned = segments.scan(path)
        assert scanned.segment is not None
        segments.write_index(scanned.segment)
        segments.write_base(folder, segments.Base(3, segments.KeptConfig(0, world.block[:200])))
        index = path.with_suffix(segments.INDEX).read_bytes()
        return path.read_bytes(), index, (folder / segments.BASE_FILE).read_bytes()


def targets() -> list[FuzzTarget]:
    """List the targets of this package."""
    world = _World()
    return [*_of_envelopes(world), *_of_blocks(world), *_of_files(world)]


def _of_envelopes(world: _World) -> list[FuzzTarget]:
    envelopes = [*world.envelopes, world.update, world.config_envelope]
    records = [
        encode(Regular(world.envelopes[0], 0, RegularKind.NORMAL, 0)),
        encode(TimeToCut(3)),
        encode(Connect()),
    ]
    seeks = [seek.seek_envelope(world.user, "chain-a", start, now=NOW) for start in ("oldest", 3)]
    receipt = receipt_request.receipt_envelope(world.user, "chain-a", "a" * 64, 5, now=NOW)
    malformed, refused = (transactions.Malformed,), (Refused,)
    identity = world.config.msps.identity
    return [
        FuzzTarget("envelope", transactions.read, malformed, envelopes, _PROTO, 30),
        FuzzTarget("route of an envelope", _routed, refused, envelopes, _PROTO, 30),
        FuzzTarget("admission", partial(_admitted, world), refused, envelopes, _PROTO, 2),
        FuzzTarget("record of a chain", decode, (Unparseable,), records, _PROTO, 40),
        FuzzTarget("core of a chain", partial(_stepped, world), (), records, _PROTO, 2),
        FuzzTarget("request for blocks", _requested, refused, seeks, _PROTO, 5),
        FuzzTarget("request for a receipt", _awaited, refused, [receipt], _PROTO, 5),
        FuzzTarget("creator", identity, (UntrustedIdentity,), [world.creator], _PROTO, 5),
        FuzzTarget("organisation", Msp, (MalformedMsp,), [world.msp], _PROTO, 2),
    ]


def _of_blocks(world: _World) -> list[FuzzTarget]:
    both, first = [world.block, world.next], [world.block]
    answer = responses.block_answer(world.next)
    unsound = (BadEnvelope, blocks.BrokenChain, blocks.CorruptMetadata)
    verified = partial(_verified, world)
    return [
        FuzzTarget("block", _block, unsound, both, _PROTO, 20),
        FuzzTarget("block of a peer", verified, (catch_up.ForgedBlock,), [world.next], _PROTO, 1),
        FuzzTarget("block in words", inspection.describe, (), both, _PROTO, 1),
        FuzzTarget("config block", ChannelConfig.from_block, (InvalidConfig,), first, _PROTO, 1),
        FuzzTarget("answer of a node", responses.read_answer, (ValueError,), [answer], _PROTO, 20),
    ]


def _of_files(world: _World) -> list[FuzzTarget]:
    segment, index, base = _ledger_files(world)
    torn = b"".join(len(one).to_bytes(4, "big") + one for one in world.envelopes)
    rest = json.dumps(
        {
            "schema_version": checkpoint.SCHEMA_VERSION,
            "height": 3,
            "previous_hash": "00" * 32,
            "position": 9,
            "cursor": "1/@P1/0/0/9",
            "last_original": 1,
            "last_resubmitted_config": 0,
            "set_heads": ["0801", ""],
        }
    ).encode()
    name = "00000000000000000000"
    scan = RewrittenFile(f"{name}{segments.BLOCKS}", segments.scan)
    of_index = RewrittenFile(
        f"{name}{segments.INDEX}", lambda path: segments.read_index(_blocks_of(path))
    )
    _blocks_of(of_index.path).write_bytes(segment)
    of_base = RewrittenFile(segments.BASE_FILE, lambda path: segments.read_base(path.parent))
    of_rest, of_frames = (
        RewrittenFile("rest.json", checkpoint.read_checkpoint),
        RewrittenFile("frames", _listed_frames),
    )
    damaged = (LedgerDamaged, UnknownVersion)
    return [
        FuzzTarget("ledger segment", scan, damaged, [segment], _BYTES, 3),
        FuzzTarget("ledger index", of_index, (), [index], _BYTES, 3),
        FuzzTarget("ledger base", of_base, damaged, [base], _BYTES, 3),
        FuzzTarget("rest of a chain", of_rest, (), [rest], _TEXT, 3),
        FuzzTarget("file of envelopes", of_frames, (UsageError,), [torn], _BYTES, 3),
    ]


def _blocks_of(index: Path) -> Path:
    return index.with_suffix(segments.BLOCKS)
