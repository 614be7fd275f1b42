"""Byte strings in a file or a pipe, one after the other, each behind its length.

The length is 4 bytes, the most significant first. So are envelopes and blocks read and printed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from multicast.errors import UsageError

LENGTH_BYTES = 4
PIECE_BYTES_MAX = 100 << 20


def check(file: Path) -> None:
    """Raise `UsageError` where a file does not hold whole byte strings, one after the other."""
    for _ in pieces(file):
        pass


def pieces(file: Path | None) -> Iterator[bytes]:
    """Read a file's byte strings; None: standard input's. Raises `UsageError` where one is torn."""
    name = str(file) if file else "standard input"
    with contextlib.ExitStack() as opened:
        try:
            source = opened.enter_context(file.open("rb")) if file else sys.stdin.buffer
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror or error}") from error
        count = 0
        while head := source.read(LENGTH_BYTES):
            length = int.from_bytes(head, "big")
            if len(head) < LENGTH_BYTES or length > PIECE_BYTES_MAX:
                raise UsageError(
                    f"{name} does not hold byte strings behind their lengths: what follows number "
                    f"{count} is no length of 4 bytes up to {PIECE_BYTES_MAX}"
                )
            piece = source.read(length)
            if len(piece) < length:
                raise UsageError(
                    f"{name} ends within number {count + 1}: it says {length} bytes and has "
                    f"{len(piece)}; was the file cut off?"
                )
            count += 1
            yield piece
