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

from ordering_osn.chain.bundles.bundle import (
    BUNDLE_BYTES_MAX,
    CHAIN_NAME_BYTES_MAX,
    CHAINS_MAX,
    BadBundle,
    Bundle,
    encode_bundle,
    read_bundle,
)
from ordering_osn.chain.bundles.wire_format import (
    BadWireFormat,
    Value,
    fields,
    message_field,
    number_field,
    numbers,
    numbers_field,
    octets,
    text,
    text_field,
    varint,
    whole,
)

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
    return _encode_bundle_record(encode_bundle(record.bundle), record.stamps)


def _encode_bundle_record(bundle: bytes | memoryview, stamps: tuple[int, ...]) -> bytes:
    body = message_field(1, bytes(bundle)) + numbers_field(2, stamps)
    return message_field(_BUNDLE, body)


def read_bundle_record(raw: bytes) -> BundleRecord:
    """Read a bundle record; raises `BadLogRecord`."""
    if len(raw) > _RECORD_BYTES_MAX:
        raise BadLogRecord(f"the record has {len(raw)} bytes, more than {_RECORD_BYTES_MAX}")
    inner = memoryview(b"")
    stamps: tuple[int, ...] = ()
    try:
        for number, value in fields(_body(raw, _BUNDLE), "the bundle record"):
            if number == 1:
                inner = octets(value, "the record's bundle")
            elif number == 2:
                stamps = numbers(value, "the record's stamps", count_max=CHAINS_MAX)
            else:
                raise BadLogRecord(f"the bundle record has an unknown field {number}")
        bundle = read_bundle(inner)
    except (BadWireFormat, BadBundle) as error:
        raise BadLogRecord(str(error)) from error
    if len(stamps) != len(bundle.parts):
        raise BadLogRecord(f"the record has {len(stamps)} stamps for {len(bundle.parts)} chains")
    if _encode_bundle_record(inner, stamps) != raw:
        raise BadLogRecord("the bundle record is not in its only encoding")
    return BundleRecord(bundle, stamps)


def encode_config_marker(marker: ConfigMarker) -> bytes:
    """Serialize a config marker; `read_config_marker` gives an equal one."""
    return message_field(_CONFIG_MARKER, marker_body(marker))


def read_config_marker(raw: bytes) -> ConfigMarker:
    """Read a config marker; raises `BadLogRecord`."""
    try:
        marker = read_marker_body(_body(raw, _CONFIG_MARKER))
    except BadWireFormat as error:
        raise BadLogRecord(str(error)) from error
    if encode_config_marker(marker) != raw:
        raise BadLogRecord("the config marker is not in its only encoding")
    return marker


def marker_body(marker: ConfigMarker) -> bytes:
    """Serialize the marker alone, as it stands inside other messages."""
    head = text_field(1, marker.chain) + number_field(2, marker.config_block)
    return head + number_field(3, marker.sequence)


def read_marker_body(raw: bytes | memoryview) -> ConfigMarker:
    """Read what `marker_body` gives; raises `BadWireFormat`. The caller compares the encodings."""
    chain = ""
    config_block = sequence = 0
    for number, value in fields(raw, "the config marker"):
        if number == 1:
            chain = text(value, "the name of the marker's chain")
        elif number == 2:
            config_block = whole(value, "the marker's block number")
        elif number == 3:
            sequence = whole(value, "the marker's sequence")
        else:
            raise BadWireFormat(f"the config marker has an unknown field {number}")
    if not 1 <= len(chain.encode()) <= CHAIN_NAME_BYTES_MAX:
        raise BadWireFormat(
            f"the name of the marker's chain has {len(chain.encode())} bytes, "
            f"not 1 to {CHAIN_NAME_BYTES_MAX}"
        )
    return ConfigMarker(chain, config_block, sequence)


def _body(raw: bytes, expected: int) -> memoryview:
    bodies: list[Value] = []
    for number, value in fields(raw, "the record"):
        if number != expected or bodies:
            raise BadWireFormat(f"the record has another field, {number}")
        bodies.append(value)
    if not bodies:
        raise BadWireFormat("the record is empty")
    return octets(bodies[0], "the record's content")
