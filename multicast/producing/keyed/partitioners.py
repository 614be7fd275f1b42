"""The partitioners of Kafka's clients: from a key and a number of partitions to a partition.

A topic keeps the order of a key only if all its producers put the key into the same partition. So
these functions give exactly what the clients give (`tests/multicast/producing/keyed/` compares them
with the clients on a broker):

    murmur2     Java's default, kafka-python's, and librdkafka's "murmur2_random" with a key
    crc32       librdkafka's default ("consistent_random") with a key that is not empty, and so the
                default of confluent-kafka
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from struct import unpack_from

from multicast.errors import UsageError

# A str means its UTF-8, as the string serializers of Kafka's clients write it.
Key = bytes | str
# Takes a key and the topic's number of Kafka partitions; gives one of them, from 0.
Partitioner = Callable[[bytes, int], int]

_SEED = 0x9747B28C  # of Kafka's murmur2 (org.apache.kafka.common.utils.Utils)
_MULTIPLIER = 0x5BD1E995  # of murmur2
_SHIFT = 24  # of murmur2
_UINT32 = 0xFFFFFFFF  # murmur2 counts modulo 2^32
_POSITIVE = 0x7FFFFFFF  # Kafka clears the sign instead of taking the absolute value


@dataclass(frozen=True, slots=True)
class Keys:
    """A destination set by keys: the partitions of all of them. `keys` makes one."""

    values: tuple[bytes, ...]


def keys(*of: Key) -> Keys:
    """Name a destination set by keys: `multicast(value, to=keys("a", "b"))`.

    The set is that of the partitions of the keys, so it may be smaller than the number of keys. The
    record's key is the first of them, unless the call gives a `key`. Raises `UsageError` if no key
    is given, or one is neither bytes nor text.
    """
    if not of:
        raise UsageError("keys() names no key; name at least one")
    return Keys(tuple(key_bytes(key) for key in of))


def key_bytes(key: Key) -> bytes:
    """Give a key as Kafka stores it; raises `UsageError` for anything but bytes and text."""
    if isinstance(key, bytes):
        return key
    try:
        return key.encode()
    except (AttributeError, UnicodeEncodeError):
        raise UsageError(f"{key!r} is not a key; a key is bytes, or text for its UTF-8") from None


def murmur2(key: bytes) -> int:
    """Give Kafka's murmur2 hash of a key, from 0 to 2^32 - 1 (Java shows it as a signed int)."""
    length = len(key)
    blocks, rest = divmod(length, 4)
    hashed = _SEED ^ length
    for word in unpack_from(f"<{blocks}I", key):
        mixed = (word * _MULTIPLIER) & _UINT32
        mixed ^= mixed >> _SHIFT
        hashed = (hashed * _MULTIPLIER) & _UINT32 ^ (mixed * _MULTIPLIER) & _UINT32
    if rest:
        hashed ^= int.from_bytes(key[-rest:], "little")
        hashed = (hashed * _MULTIPLIER) & _UINT32
    hashed ^= hashed >> 13
    hashed = (hashed * _MULTIPLIER) & _UINT32
    return hashed ^ hashed >> 15


def by_murmur2(key: bytes, count: int) -> int:
    """Choose the partition of a key as Java's client does by default."""
    return (murmur2(key) & _POSITIVE) % count


def by_crc32(key: bytes, count: int) -> int:
    """Choose the partition of a key as librdkafka does by default."""
    return zlib.crc32(key) % count


PARTITIONERS: dict[str, Partitioner] = {"murmur2": by_murmur2, "crc32": by_crc32}


def partitioner_named(chosen: str | Partitioner) -> Partitioner:
    """Look up a partitioner by its name, or give the function; raises `UsageError`."""
    if callable(chosen):
        return chosen
    if not isinstance(chosen, str) or chosen not in PARTITIONERS:
        raise UsageError(
            f"partitioner {chosen!r} is unknown; choose one of {', '.join(PARTITIONERS)}, or give "
            f"a function of a key and the number of partitions"
        )
    return PARTITIONERS[chosen]
