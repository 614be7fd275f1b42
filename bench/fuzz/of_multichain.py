"""Fuzz targets of what stands around bundles: requests, answers, blocks, and a ledger's files.

The bytes are those of clients and of nodes (`api/multi`, `client`), of blocks that a peer gave
(the places of their entries, the sets at a restart), and of the file that a pruning wrote.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

from bench.fuzz.mutation import Shape
from bench.fuzz.of_bundles import CHAINS, NOW, WINDOW_MAX, bundle_of, rule_after
from bench.fuzz.of_ordering import RewrittenFile
from bench.fuzz.target import FuzzTarget, require
from bench.osn.transactions import user
from ordering_osn.api.channels import Refused
from ordering_osn.api.multi import deliver_multi, status
from ordering_osn.api.multi.ledger_entries import LedgerEntries
from ordering_osn.api.multi.signed_request import read_signed_request, signed_request
from ordering_osn.chain import blocks
from ordering_osn.chain.bundles.log_records import (
    BundleRecord,
    ConfigMarker,
    encode_bundle_record,
    encode_config_marker,
)
from ordering_osn.chain.bundles.metadata import (
    BadBundleMetadata,
    BlockBundles,
    PartPlace,
    SetHead,
    encode_block_bundles,
    metadata_of,
    read_block_bundles,
)
from ordering_osn.chain.bundles.restart import restored_sets
from ordering_osn.chain.bundles.saved import BadState, encode_state
from ordering_osn.chain.entries import BadEntries, EntryPlace, encode_entries, read_entries
from ordering_osn.chain.envelopes import BadEnvelope, decoded
from ordering_osn.client import messages
from ordering_osn.ledger.errors import LedgerDamaged
from ordering_osn.ledger.windows import WINDOWS_FILE, read_windows
from ordering_osn.protos import Block, KafkaMetadata
from ordering_osn.wire import multichain_pb2 as wire

_PROTO, _TEXT = Shape.PROTOBUF, Shape.TEXT
_BLOCK = 300  # the block whose metadata are read
_PLACES = [
    EntryPlace("chain-a", 4),
    EntryPlace("chain-a", 5),
    EntryPlace("chain-a+chain-b", 300),
    EntryPlace("chain-a", 7),
]


class _NoChannels:
    """The chains of a node that runs none."""

    def names(self) -> list[str]:
        return []

    def get(self, name: str) -> None:
        """Give no chain."""


class _OneBlock:
    """A channel whose ledger holds one block."""

    name = "chain-a"
    base, height = 0, 1

    def __init__(self, raw: bytes) -> None:
        self.ledger = self
        self._raw = raw

    def read(self, _number: int) -> bytes:
        return self._raw


def _entries(raw: bytes) -> None:
    places = read_entries(raw, len(_PLACES))
    require(encode_entries(places) == raw, "the places are encoded as other bytes")


def _windows(path: Path) -> None:
    for chains, places in read_windows(path.parent).items():
        require(all(isinstance(name, str) for name in chains), "a chain without a name")
        require(all(len(place.bundle_id) == 32 for place in places), "a bundle without an ID")


def _block_entries(raw: bytes) -> None:
    """Read a block's entries as a reader of several chains does; the ledger gives whole blocks."""
    decoded(Block, raw, "the block")
    channel: Any = _OneBlock(raw)
    entries = LedgerEntries(channel)
    while (entry := entries.peek()) is not None:
        require(entry.block == 0, "an entry of another block")
        entries.skip()


def _sets(places: list[PartPlace], raw: bytes) -> None:
    """Restore the sets from one block; all blocks before it are pruned."""
    bundles = read_block_bundles(raw)
    restored = restored_sets(
        _BLOCK,
        lambda number: bundles if number == _BLOCK else None,
        pruned={CHAINS: places},
        window_max=WINDOW_MAX,
    )
    for each in restored:
        require(len(each.places) <= WINDOW_MAX, "more bundles than a window holds")


def _wanted(raw: bytes) -> None:
    deliver_multi._wanted(read_signed_request(raw, now=NOW, tls_hash=None))  # noqa: SLF001


def _status(raw: bytes) -> None:
    channels: Any = _NoChannels()
    answer = asyncio.run(status.bundle_status(channels, raw, now=NOW, tls_hash=None))
    answered, info, _ = messages.read_fate(answer)
    require(answered in (400, 403) and info, "a node without chains answered a request")


def _submitted(raw: bytes) -> None:
    messages.read_submitted(raw, b"i" * 32)


def targets() -> list[FuzzTarget]:
    """List the targets."""
    return [*_of_requests(), *_of_answers(), *_of_blocks()]


def _of_requests() -> list[FuzzTarget]:
    signed = partial(signed_request, user(), now=NOW)
    starts: tuple[dict[str, Any], ...] = (
        {"oldest": wire.Oldest()},
        {"newest": wire.Newest()},
        {"cursor": b"1:1/K1/3/0/3"},
    )
    entries = [signed(deliver=wire.DeliverMultiRequest(chains=CHAINS, **each)) for each in starts]
    fate = signed(status=wire.StatusRequest(bundle_id=b"i" * 32, wait_ms=3))
    return [
        FuzzTarget("request for entries", _wanted, (Refused,), entries, _PROTO, 5),
        FuzzTarget("request for a fate", _status, (), [fate], _PROTO, 2),
    ]


def _of_answers() -> list[FuzzTarget]:
    place = {"chain": "chain-a", "block": 300, "index": 1}
    submitted = wire.BundleResponse(status=403, info="no", bundle_id=b"i" * 32, chain="chain-a")
    fates = [
        wire.StatusResponse(status=200, committed={"places": [place]}, chains_not_covered=["b"]),
        wire.StatusResponse(status=200, info="later", void={"reason": 6, "chain": "chain-a"}),
    ]
    part = {"place": place, "envelope": b"envelope"}
    delivered = [
        wire.DeliverMultiResponse(
            entry={"cursor": b"1:", "bundle_id": b"i", "chains": CHAINS, "parts": [part]}
        ),
        wire.DeliverMultiResponse(end={"status": 503, "info": "it stops"}),
    ]
    bad = (messages.BadAnswer,)
    return [
        FuzzTarget("answer to a bundle", _submitted, bad, _raws([submitted]), _PROTO, 5),
        FuzzTarget("fate of a bundle", messages.read_fate, bad, _raws(fates), _PROTO, 5),
        FuzzTarget("entry of a stream", messages.read_delivered, bad, _raws(delivered), _PROTO, 5),
    ]


def _raws(answers: list[Any]) -> list[bytes]:
    return [answer.SerializeToString() for answer in answers]


def _of_blocks() -> list[FuzzTarget]:
    made = [bundle_of(b"%d" % nonce) for nonce in range(3)]
    markers = [encode_config_marker(ConfigMarker(chain, 0, 0)) for chain in CHAINS]
    records = [encode_bundle_record(BundleRecord(bundle, (0, 0))) for bundle in made]
    rule = rule_after((*markers, *records))
    older = [PartPlace(made[0].id, 8, 1)]
    metadata = encode_block_bundles(
        BlockBundles(
            tuple(metadata_of(bundle, "chain-a", 1 + 2 * i) for i, bundle in enumerate(made[1:])),
            (SetHead(CHAINS, encode_state(rule.head), 8),),
        )
    )
    places = encode_entries(_PLACES)
    parts = [bundle.parts[0].envelope for bundle in made[1:]]
    block = blocks.new_block(1, b"", [b"one", parts[0], b"two", parts[1]])
    consenter = KafkaMetadata(last_offset_persisted=9, bundles=metadata, entries=places)
    blocks.seal(block, last_config=0, consenter=consenter.SerializeToString(), signer=user())
    windows = {
        "schema_version": 1,
        "sets": [{"chains": CHAINS, "places": [[made[0].id.hex(), 8, 1]]}],
    }
    of_windows = RewrittenFile(WINDOWS_FILE, _windows)
    bad_block = (BadEnvelope, blocks.CorruptMetadata, BadBundleMetadata, BadEntries)
    of_sets = partial(_sets, older)
    return [
        FuzzTarget("places of entries", _entries, (BadEntries,), [places], _PROTO, 20),
        FuzzTarget("entries of a block", _block_entries, bad_block, _raws([block]), _PROTO, 10),
        FuzzTarget("sets at a restart", of_sets, (BadState, BadBundleMetadata), [metadata], _PROTO,
                   10),
        FuzzTarget("windows of a ledger", of_windows, (LedgerDamaged,),
                   [json.dumps(windows).encode()], _TEXT, 5),
    ]  # fmt: skip
