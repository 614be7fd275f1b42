"""How far a collector's own logs are ordered behind their ends, or ahead. No I/O.

Both cores of collectors (`core.py`) have it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from multicast.control import AnyStream

_Stream = TypeVar("_Stream", bound=AnyStream)


class LogLags(Generic[_Stream]):
    """Compares the positions of the stream `own` with the ends of its own logs, as last reported.

    `fill_max` is how many offsets beyond a log's end holes are filled.
    """

    def __init__(self, own: _Stream, fill_max: int) -> None:
        self.own = own
        self._fill_max = fill_max
        self._ends: dict[int, int] = {}

    @property
    def frozen(self) -> bool:
        """Whether our stream is frozen: no later record is accepted."""
        return self.own.state.frozen

    @property
    def ahead(self) -> dict[int, int]:
        """By own log, how many offsets it is ordered ahead of its end; below 0, what it lags.

        Logs that are ordered exactly to their ends are left out.
        """
        positions = self.own.state.positions
        ahead = {log: positions[log] - end for log, end in self._ends.items()}
        return {log: count for log, count in ahead.items() if count}

    @property
    def lag(self) -> int:
        """The number of offsets below the ends of our own logs that are not ordered yet."""
        return sum(max(0, -count) for count in self.ahead.values())

    @property
    def early(self) -> int:
        """The number of offsets of our own logs that are ordered ahead of their log's end."""
        return sum(max(0, count) for count in self.ahead.values())

    @property
    def too_far(self) -> dict[int, int]:
        """By how much own logs are ordered beyond their ends, if by more than `fill_max`."""
        return {log: count for log, count in self.ahead.items() if count > self._fill_max}
