"""Who ordered which offsets of a log, and when: the last runs of each, in bounded memory. No I/O.

Only the top of a log enters it into the order; what other collectors relay is left out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from multicast.order.runs import Run
from multicast.order.stream import OrderStream

_RUNS_MAX = 100_000  # of all logs: some 20 MB
_RUNS_OF_LOG_MIN = 100  # however many logs there are


class OrderedRun(NamedTuple):
    """The offsets first … next-1 of a log, ordered by `collector` in a record of its stream."""

    first: int
    next: int
    collector: str
    record: int
    time_ms: int | None


class OrderedRuns:
    """The last runs of each log. One thread adds, others may ask."""

    def __init__(self) -> None:
        self._runs: dict[str, list[OrderedRun]] = {}

    def add(
        self, stream: OrderStream, offset: int, ordered: Sequence[Run], time_ms: int | None
    ) -> None:
        """Take what the accepted record at an offset of a stream orders, and its time (ms)."""
        bound = max(_RUNS_OF_LOG_MIN, _RUNS_MAX // len(stream.plan.logs))
        for run in ordered:
            if run.log not in stream.own:
                continue
            name = stream.plan.logs[run.log].name
            runs = self._runs.setdefault(name, [])
            if len(runs) >= bound:
                # A new list: another thread may be searching in the old one.
                self._runs[name] = runs = runs[bound // 2 :]
            runs.append(OrderedRun(run.first, run.next, stream.collector, offset, time_ms))

    def of(self, log: str, offset: int) -> OrderedRun | None:
        """Give the run with an offset of a log; None if it is not known, or no more."""
        runs = self._runs.get(log, [])
        place = bisect_right(runs, offset, key=lambda run: run.first) - 1
        return runs[place] if place >= 0 and offset < runs[place].next else None
