"""Writes a history beside what a command does: added to its file, which may be there already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multicast.errors import AmcastError


@contextmanager
def stored_in(place: str) -> Iterator[None]:
    """Say in one sentence that something cannot be written; a closed pipe is no such thing."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AmcastError(f"{place} cannot be written: {error.strerror}") from error


class HistoryWriter:
    """Adds lines to a history's file: many at a time, and all of them or none."""

    def __init__(self, file: Path) -> None:
        self._place = str(file)
        self._lines: list[str] = []
        with stored_in(self._place):
            self._file = file.open("ab", buffering=0)

    def note(self, line: str) -> None:
        """Add a line to what `store` will write."""
        self._lines.append(line)

    def store(self) -> None:
        """Write what was noted; raises `AmcastError`, and then the file ends where it did."""
        raw = "".join(self._lines).encode()
        end = os.fstat(self._file.fileno()).st_size
        with stored_in(self._place):
            try:
                while raw:
                    raw = raw[self._file.write(raw) :]
            except OSError:
                # Half a line would spoil the history for whoever goes on with it.
                os.ftruncate(self._file.fileno(), end)
                raise
        self._lines.clear()

    def close(self) -> None:
        """Close the file; what was only noted is not written."""
        self._file.close()
