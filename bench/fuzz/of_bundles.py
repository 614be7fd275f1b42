"""Fuzz targets of transactions over several chains: bundles, records of a set's log, saved states.

What our own readers accept, protobuf's library must read alike: it is what clients and tools use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from bench.fuzz.mutation import Shape
from bench.fuzz.target import FuzzTarget, require
from bench.osn.transactions import user
from ordering_osn.chain import transactions
from ordering_osn.chain.bundles.bundle import (
    BadBundle,
    Bundle,
    check_signature,
    encode_bundle,
    make_bundle,
    read_bundle,
)
from ordering_osn.chain.bundles.log_records import (
    BadLogRecord,
    BundleRecord,
    ConfigMarker,
    encode_bundle_record,
    encode_config_marker,
    read_bundle_record,
    read_config_marker,
)
from ordering_osn.chain.bundles.metadata import (
    BadBundleMetadata,
    BlockBundles,
    SetHead,
    encode_block_bundles,
    metadata_of,
    read_block_bundles,
)
from ordering_osn.chain.bundles.parts import read_part
from ordering_osn.chain.bundles.rule import BundleRule, RuleState
from ordering_osn.chain.bundles.saved import BadState, encode_state, read_bare_head, read_head
from ordering_osn.chain.bundles.wire_format import BadWireFormat
from ordering_osn.chain.envelopes import signed_envelope
from ordering_osn.protos import HeaderType
from ordering_osn.wire import multichain_pb2 as stubs

_PROTO = Shape.PROTOBUF
NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
CHAINS = ("chain-a", "chain-b")
WINDOW_MAX = 4


def bundle_of(data: bytes, *, expiry: int = 0) -> Bundle:
    """Make a bundle with these data in each part."""
    signer, kind = user(), HeaderType.ENDORSER_TRANSACTION
    parts = {chain: signed_envelope(kind, chain, data, signer=signer, now=NOW) for chain in CHAINS}
    return make_bundle(parts, signer=signer, expiry=expiry)


def rule_after(records: Iterable[bytes]) -> BundleRule:
    """Give the rule of a set's log that has read these records."""
    rule = BundleRule(RuleState(CHAINS, 0, window_max=WINDOW_MAX))
    for offset, raw in enumerate(records):
        rule.step(offset, raw, CHAINS)
    return rule


def _read(raw: bytes) -> None:
    bundle = read_bundle(raw)
    require(encode_bundle(bundle) == raw, "a bundle is encoded as other bytes")
    wire = stubs.Bundle.FromString(raw)
    content = stubs.BundleContent.FromString(wire.content)
    require(wire.SerializeToString() == raw, "the library writes another bundle")
    chains = tuple(part.chain for part in content.parts)
    same = chains == bundle.chains and content.expiry == bundle.expiry
    require(same, "the library reads another bundle")
    check_signature(*bundle.signed)


def _part(raw: bytes) -> None:
    require(read_part(raw) == transactions.read(raw), "the library reads another envelope")


def _same_as_library(read: Callable[[bytes], object], kind: Any, raw: bytes) -> None:
    read(raw)
    require(kind.FromString(raw).SerializeToString() == raw, "the library writes other bytes")


def _stepped(genuine: list[bytes], raw: bytes) -> None:
    """Give the input to the rule, between valid records; save and restore it."""
    rule = rule_after(())
    for offset, each in enumerate((raw, *genuine[:2], raw, *genuine[2:], raw)):
        outcome = rule.step(offset, each, CHAINS)
        window = rule.state.window
        state = read_head(encode_state(rule.head), window, window_max=WINDOW_MAX)
        require(state == rule.state, f"another state is read back after {outcome}")


def _head(ids: list[bytes], raw: bytes) -> None:
    read_head(raw, ids, window_max=WINDOW_MAX)


def targets() -> list[FuzzTarget]:
    """List the targets of this package."""
    made = [bundle_of(b"data"), bundle_of(b"data", expiry=300)]
    raws = [encode_bundle(bundle) for bundle in made]
    records = [encode_bundle_record(BundleRecord(bundle, (3, 300))) for bundle in made]
    newest = [ConfigMarker("chain-a", 9, 3), ConfigMarker("chain-b", 900, 300)]
    markers = [encode_config_marker(marker) for marker in newest]
    head = encode_state(rule_after((*markers, *records)).head)
    metadata = BlockBundles(
        tuple(metadata_of(bundle, "chain-b", index) for index, bundle in enumerate(made)),
        (SetHead(CHAINS, head, 300),),
    )
    blocks = [encode_block_bundles(metadata)]
    parts = [part.envelope for part in made[0].parts]
    step = partial(_stepped, [*markers, *records])
    read_saved = partial(read_bare_head, window_max=WINDOW_MAX)
    of_record = partial(_same_as_library, read_bundle_record, stubs.LogRecord)
    of_marker = partial(_same_as_library, read_config_marker, stubs.LogRecord)
    of_state = partial(_same_as_library, read_saved, stubs.LogState)
    bad_record = (BadLogRecord,)
    return [
        FuzzTarget("bundle", _read, (BadBundle,), raws, _PROTO, 20),
        FuzzTarget("part of a bundle", _part, (BadWireFormat,), parts, _PROTO, 30),
        FuzzTarget("bundle record", of_record, bad_record, records, _PROTO, 20),
        FuzzTarget("config marker", of_marker, bad_record, markers, _PROTO, 20),
        FuzzTarget("rule of a set's log", step, (), [*records, *markers], _PROTO, 5),
        FuzzTarget("state of a rule", of_state, (BadState,), [head], _PROTO, 20),
        FuzzTarget("head of a rule", partial(_head, [b"i" * 32, b"j" * 32]), (BadState,), [head],
                   _PROTO, 20),
        FuzzTarget("bundles of a block", read_block_bundles, (BadBundleMetadata,), blocks, _PROTO,
                   20),
    ]  # fmt: skip
