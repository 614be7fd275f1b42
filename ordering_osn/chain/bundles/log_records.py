"""The records of a set's log that concern bundles, next to Fabric's `KafkaMessage` records.

    bundle record   a bundle, and for each of its chains the *stamp*: the sequence of the config
                    under which the node that took it in admitted it
    config marker   "block `config_block` of this chain holds the config with this sequence"

A record is a `LogRecord` (ordering_osn/wire/multichain.proto). Its first bytes tell its kind; no
`KafkaMessage` begins so. Nodes without bundles read it as a `KafkaMessage` without content.
No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ordering_osn.chain.bundles.bundle import (
    BUNDLE_BYTES_MAX,
    CHAIN_NAME_BYTES_MAX,
    BadBundle,
    Bundle,
    bundle_of,
    encode_bundle,
)
from ordering_osn.chain.bundles.wire_format import (
    BadWireFormat,
    message_field,
    number_field,
    numbers_field,
    parsed,
    text_field,
    varint,
)
from ordering_osn.wire import multichain_pb2 as wire

_BUNDLE, _CONFIG_MARKER = 16, 17  # fields of LogRecord; Fabric's KafkaMessage has 1 to 3
_BUNDLE_TAG = varint(_BUNDLE << 3 | 2)  # wire type 2: bytes follow
_MARKER_TAG = varint(_CONFIG_MARKER << 3 | 2)
# A bundle, 64 stamps of up to 10 bytes, and lengths.
_RECORD_BYTES_MAX = BUNDLE_BYTES_MAX + 1024


class BadLogRecord(ValueError):
    """The bytes are of a kind of this module, but nobody can read them; the text says why."""


@dataclass(frozen=True, slots=True)
class BundleRecord:
    """A bundle in the log. `stamps`: the admitting config's sequence of each chain, in order."""

    bundle: Bundle
    stamps: tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class ConfigMarker:
    """A chain's config: the number of its block, and its sequence. Both grow with each config."""

    chain: str
    config_block: int
    sequence: int


RecordReader = Callable[[bytes], BundleRecord]
"""`read_bundle_record`, or what gives the same for the same bytes."""


def is_bundle_record(raw: bytes) -> bool:
    """Whether the record is meant to be a bundle record; it may be malformed."""
    return raw.startswith(_BUNDLE_TAG)


def is_config_marker(raw: bytes) -> bool:
    """Whether the record is meant to be a config marker; it may be malformed."""
    return raw.startswith(_MARKER_TAG)


def encode_bundle_record(record: BundleRecord) -> bytes:
    """Serialize a bundle record; `read_bundle_record` gives an equal one."""
    assert len(record.stamps) == len(record.bundle.parts), "a stamp for each chain"
    body = message_field(1, encode_bundle(record.bundle)) + numbers_field(2, record.stamps)
    return message_field(_BUNDLE, body)


def read_bundle_record(raw: bytes) -> BundleRecord:
    """Read a bundle record; raises `BadLogRecord`."""
    if len(raw) > _RECORD_BYTES_MAX:
        raise BadLogRecord(f"the record has {len(raw)} bytes, more than {_RECORD_BYTES_MAX}")
    try:
        message = parsed(wire.LogRecord, raw, "the bundle record").bundle
        bundle = bundle_of(message.bundle)
    except (BadWireFormat, BadBundle) as error:
        raise BadLogRecord(str(error)) from error
    stamps = tuple(message.config_sequences)
    if len(stamps) != len(bundle.parts):
        raise BadLogRecord(f"the record has {len(stamps)} stamps for {len(bundle.parts)} chains")
    record = BundleRecord(bundle, stamps)
    if encode_bundle_record(record) != raw:
        raise BadLogRecord("the bundle record is not in its only encoding")
    return record


def encode_config_marker(marker: ConfigMarker) -> bytes:
    """Serialize a config marker; `read_config_marker` gives an equal one."""
    return message_field(_CONFIG_MARKER, marker_body(marker))


def read_config_marker(raw: bytes) -> ConfigMarker:
    """Read a config marker; raises `BadLogRecord`."""
    try:
        marker = marker_of(parsed(wire.LogRecord, raw, "the config marker").config_marker)
    except BadWireFormat as error:
        raise BadLogRecord(str(error)) from error
    if encode_config_marker(marker) != raw:
        raise BadLogRecord("the config marker is not in its only encoding")
    return marker


def marker_body(marker: ConfigMarker) -> bytes:
    """Serialize the marker alone, as it stands inside other messages."""
    head = text_field(1, marker.chain) + number_field(2, marker.config_block)
    return head + number_field(3, marker.sequence)


def marker_of(message: Any) -> ConfigMarker:
    """Take a `ConfigMarker` message; raises `BadWireFormat`. The caller compares the encodings."""
    size = len(message.chain.encode())
    if not 1 <= size <= CHAIN_NAME_BYTES_MAX:
        raise BadWireFormat(
            f"the name of the marker's chain has {size} bytes, not 1 to {CHAIN_NAME_BYTES_MAX}"
        )
    return ConfigMarker(message.chain, message.config_block, message.sequence)
