"""The codecs by which kafka-python compresses record batches, and the package that each needs."""

from __future__ import annotations

import gzip
import importlib
from collections.abc import Callable
from functools import partial

from multicast.drivers.appender.record_batch import Codec
from multicast.drivers.kafka.private import codec
from multicast.errors import UsageError

# Before the blocks of Java's snappy streams: its name, version, and the least that reads it.
_SNAPPY_HEAD = b"\x82SNAPPY\0" + bytes((0, 0, 0, 1, 0, 0, 0, 1))
_SNAPPY_BLOCK_MAX = 32 * 1024  # uncompressed; most batches are one block


def _snappy_encode(raw: bytes) -> bytes:
    """Compress as Java's client does; kafka-python's takes 3 us more for one block."""
    if len(raw) > _SNAPPY_BLOCK_MAX:
        return bytes(codec.snappy_encode(raw))
    block = codec.snappy.compress(raw)
    return b"".join((_SNAPPY_HEAD, len(block).to_bytes(4, "big"), block))


# gzip has the level of Java's client and librdkafka; kafka-python's takes three times as long.
_CODECS = (
    Codec("gzip", 1, "zlib", codec.has_gzip, partial(gzip.compress, compresslevel=6)),
    Codec("snappy", 2, "python-snappy", codec.has_snappy, _snappy_encode),
    Codec("lz4", 3, "lz4", codec.has_lz4, codec.lz4_encode),
    Codec("zstd", 4, "zstandard", codec.has_zstd, codec.zstd_encode),
)
_BY_NAME = {one.name: one for one in _CODECS}


def codec_of(compression: str) -> Codec | None:
    """Give the codec of a compression.type, None for "none".

    Raises `UsageError` if its package is missing.
    """
    if compression == "none":
        return None
    found = _BY_NAME[compression]
    if not found.is_installed():
        raise UsageError(
            f"compression.type {compression} needs the package {found.library}; install it, or "
            f"choose gzip"
        )
    return found._replace(encode=_zstd_encode()) if found.name == "zstd" else found


def _zstd_encode() -> Callable[[bytes], bytes]:
    """Give what compresses for one appender.

    kafka-python makes a compressor for each batch, which takes as long as to compress 16 kB.
    """
    encode: Callable[[bytes], bytes] = (
        importlib.import_module("zstandard").ZstdCompressor().compress
    )
    return encode


def missing_for(number: int) -> str | None:
    """Say what a reader of a batch lacks whose codec has this number; None: nothing."""
    found = next((one for one in _CODECS if one.number == number), None)
    if found is None or found.is_installed():
        return None
    return (
        f"they are compressed by {found.name}, which needs the package {found.library} with driver "
        f"kafka-python; install it, or choose driver librdkafka"
    )
