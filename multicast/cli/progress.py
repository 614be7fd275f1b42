"""What the verbs show of their progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Self

from multicast.cli.lines import Line

_EVERY_S = 0.2  # a human notices a change after some 0.2 s


class CountShown:
    """Shows a count on stderr if that is a terminal; a context manager that clears its line."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._shows = sys.stderr.isatty()
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown_at:
            sys.stderr.write("\r\x1b[K")

    def over(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Give the lines one by one, and show their count."""
        for count, line in enumerate(lines):
            self.show(count)
            yield line

    def show(self, count: int) -> None:
        """Show a count, a few times a second at most."""
        if self._shows and time.monotonic() - self._shown_at > _EVERY_S:
            self._shown_at = time.monotonic()
            sys.stderr.write(f"\r{self._verb} {count}")
            sys.stderr.flush()
