"""Appends the lines of a history to a file while a command runs; the file may exist already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multicast.errors import AmcastError, UsageError


@contextmanager
def stored_in(place: str) -> Iterator[None]:
    """Turn an `OSError` into an `AmcastError` that names `place`; a closed pipe stays as it is."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise AmcastError(f"{place} cannot be written: {error.strerror}") from error


class HistoryWriter:
    """Appends lines to a history's file; each `store` writes all of its lines or none.

    Raises `UsageError` if the file cannot be opened.
    """

    def __init__(self, file: Path) -> None:
        self._place = str(file)
        self._lines: list[str] = []
        try:
            self._file = file.open("ab", buffering=0)
        except OSError as error:
            raise UsageError(f"{file} cannot be written: {error.strerror}") from error

    def note(self, line: str) -> None:
        """Add a line for the next `store`."""
        self._lines.append(line)

    def store(self) -> None:
        """Write the added lines; if that raises `AmcastError`, the file is as it was before."""
        raw = "".join(self._lines).encode()
        end = os.fstat(self._file.fileno()).st_size
        with stored_in(self._place):
            try:
                while raw:
                    raw = raw[self._file.write(raw) :]
            except OSError:
                # Half a line would make the file unreadable for everything appended later.
                os.ftruncate(self._file.fileno(), end)
                raise
        self._lines.clear()

    def close(self) -> None:
        """Close the file without writing the lines added since the last `store`."""
        self._file.close()
