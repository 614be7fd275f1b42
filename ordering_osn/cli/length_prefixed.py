"""Length-prefixed frames in a file or a pipe: 4 bytes of length, big-endian, then the content.

`amcast osn broadcast` reads envelopes in this form, and `amcast osn deliver --raw` prints blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import BinaryIO

from multicast.errors import UsageError

LENGTH_BYTES = 4  # of the file format (docs/ordering.md)
# The most that a node accepts or sends (`services.MESSAGE_BYTES_MAX`). A larger length means
# that the file has another format; without a limit its first bytes could ask for 4 GiB of memory.
FRAME_BYTES_MAX = 100 << 20
# How many frames are read ahead of who takes them: some, so that the reading thread seldom waits.
# With ten times more, large envelopes (10 MB) would take gigabytes of memory.
_AHEAD_MAX = 16


def check_frames(file: Path | None) -> None:
    """Read a whole file; raises `UsageError` unless it consists of complete frames.

    Standard input (None) is read once, where its frames are sent.
    """
    if file is not None:
        if not file.is_file():
            raise UsageError(f"{file} is not a file")
        for _ in frames(file):
            pass


def framed(content: bytes) -> bytes:
    """Give a frame."""
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def print_frame(content: bytes) -> None:
    """Write a frame to stdout at once."""
    sys.stdout.buffer.write(framed(content))
    sys.stdout.buffer.flush()


def frames(file: Path | None) -> Iterator[bytes]:
    """Yield the content of each frame of a file, or of standard input (None).

    Raises `UsageError` where the file cannot be opened or a frame is incomplete.
    """
    name = str(file) if file else "standard input"
    with contextlib.ExitStack() as opened:
        try:
            source = opened.enter_context(file.open("rb") if file else _standard_input())
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror or error}") from error
        count = 0
        while head := source.read(LENGTH_BYTES):
            length = int.from_bytes(head, "big")
            if len(head) < LENGTH_BYTES or length > FRAME_BYTES_MAX:
                raise UsageError(
                    f"{name} is not a file of length-prefixed frames: no length of {LENGTH_BYTES} "
                    f"bytes up to {FRAME_BYTES_MAX} follows frame {count}"
                )
            frame = source.read(length)
            if len(frame) < length:
                raise UsageError(
                    f"{name} ends within frame {count + 1}: {len(frame)} of its {length} bytes "
                    "are there; check whether the file was cut off"
                )
            count += 1
            yield frame


def _standard_input() -> BinaryIO:
    # Not `sys.stdin.buffer`: Python ends with an error if a thread still reads that one.
    return os.fdopen(sys.stdin.fileno(), "rb", closefd=False)


async def frames_as_they_come(file: Path | None) -> AsyncIterator[bytes]:
    """Yield what `frames` does; the event loop goes on while a pipe pauses."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
    free = threading.Semaphore(_AHEAD_MAX)

    def arrive(item: bytes | Exception | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
            loop.call_soon_threadsafe(arrived.put_nowait, item)

    def read() -> None:
        try:
            for frame in frames(file):
                free.acquire()
                arrive(frame)
        except Exception as error:  # noqa: BLE001 - raised below
            arrive(error)
        else:
            arrive(None)

    # A daemon: the command ends though the thread still waits for the pipe.
    threading.Thread(target=read, name="frames", daemon=True).start()
    while (item := await arrived.get()) is not None:
        if isinstance(item, Exception):
            raise item
        free.release()
        yield item
