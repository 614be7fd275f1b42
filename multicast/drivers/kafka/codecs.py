"""The codecs of record batches: they compress, and decompress within a bound.

The package's own decoders have no bound: some kilobytes in a log can become gigabytes.
"""

from __future__ import annotations

import gzip
import importlib
import io
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from multicast.drivers.appender.record_batch import Codec
from multicast.drivers.kafka.private import codec
from multicast.errors import UsageError

# Before the blocks of Java's snappy streams: its name, its version, and the least that reads it.
_SNAPPY_NAME = b"\x82SNAPPY\0"
_SNAPPY_HEAD_BYTES = 16
_PIECE_BYTES = 1 << 20  # most batches are one piece


class TooLarge(ValueError):
    """A batch becomes larger than the bound when it is decompressed."""


def _bounded(pieces: Iterator[bytes], bytes_max: int) -> bytes:
    whole = []
    for piece in pieces:
        bytes_max -= len(piece)
        if bytes_max < 0:
            raise TooLarge
        whole.append(piece)
    return b"".join(whole)


def _streamed(opened: Callable[[Any], Any], raw: bytes, bytes_max: int) -> bytes:
    stream = opened(io.BytesIO(raw))
    return _bounded(iter(partial(stream.read, _PIECE_BYTES), b""), bytes_max)


def _lz4_pieces(raw: bytes) -> Iterator[bytes]:
    frame = codec.lz4.LZ4FrameDecompressor()
    yield frame.decompress(raw, _PIECE_BYTES)
    while not frame.eof:
        if frame.needs_input:
            raise EOFError("the frame of lz4 ends too early")
        yield frame.decompress(b"", _PIECE_BYTES)


def _zstd_decode(raw: bytes, bytes_max: int) -> bytes:
    opened = importlib.import_module("zstandard").ZstdDecompressor().stream_reader
    return _streamed(partial(opened, read_across_frames=True), raw, bytes_max)


def _snappy_pieces(raw: bytes, bytes_max: int) -> Iterator[bytes]:
    """Decompress block after block; each begins with its size, for which memory is taken."""
    framed = raw.startswith(_SNAPPY_NAME)
    place = _SNAPPY_HEAD_BYTES if framed else 0
    while place < len(raw):
        end = len(raw)
        if framed:
            place += 4
            end = place + int.from_bytes(raw[place - 4 : place], "big")
        block = raw[place:end]
        size = 0
        for shift, byte in enumerate(block[:5]):
            size |= (byte & 0x7F) << 7 * shift
            if byte < 0x80:
                break
        if size > bytes_max:
            raise TooLarge
        yield codec.snappy.decompress(block)
        place = end


# gzip has the level of Java's client and librdkafka; kafka-python's takes three times as long.
_CODECS = (
    Codec("gzip", 1, "zlib", codec.has_gzip, partial(gzip.compress, compresslevel=6)),
    Codec("snappy", 2, "python-snappy", codec.has_snappy, codec.snappy_encode),
    Codec("lz4", 3, "lz4", codec.has_lz4, codec.lz4_encode),
    Codec("zstd", 4, "zstandard", codec.has_zstd, codec.zstd_encode),
)
_BY_NAME = {one.name: one for one in _CODECS}
_DECODERS: dict[int, Callable[[bytes, int], bytes]] = {
    1: partial(_streamed, lambda raw: gzip.GzipFile(fileobj=raw)),
    2: lambda raw, most: _bounded(_snappy_pieces(raw, most), most),
    3: lambda raw, most: _bounded(_lz4_pieces(raw), most),
    4: _zstd_decode,
}


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
    if found.name == "zstd":
        # kafka-python makes a compressor for each batch, which takes as long as to compress 16 kB.
        zstd = importlib.import_module("zstandard").ZstdCompressor()
        return found._replace(encode=zstd.compress)
    return found


def decompressed(number: int, raw: bytes, bytes_max: int) -> bytes:
    """Decompress by the codec of this number; raises `TooLarge`, and each codec's own errors."""
    return _DECODERS[number](raw, bytes_max)


def missing_for(number: int) -> str | None:
    """Say what a reader of a batch lacks whose codec has this number; None: nothing."""
    found = next((one for one in _CODECS if one.number == number), None)
    if found is None or found.is_installed():
        return None
    return (
        f"they are compressed by {found.name}, which needs the package {found.library} with driver "
        f"kafka-python; install it, or choose driver librdkafka"
    )
