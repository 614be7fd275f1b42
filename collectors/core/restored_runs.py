"""What a recovery restores: runs with which streams begin the next epoch. No I/O, no clock.

A recovery ends an epoch that cannot end by itself: it appends to each stream a freeze that names
nothing. All readers of a stream agree where that is, whatever producers write meanwhile. Then some
streams have ordered less than others. In the next epoch each one begins at its own positions, and
first orders the rest: what its parent's stream had ordered beyond what it had relayed, in the
parent's order. So over both epochs every stream orders each offset once, and in one order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from collectors.core.relay import ENTRIES_MAX
from multicast.order.records import Position, RestoredRecord
from multicast.order.runs import ORDERED_MAX, Run


@dataclass(frozen=True, slots=True)
class EndedStream:
    """A frozen stream: its collector's parent, its positions, and what it has ordered.

    `runs` may begin anywhere where no position is above that of a child. By `parent_next` nobody
    can tell where that is: a wrong relay may have left out what lies before it.
    """

    parent: str | None
    positions: Mapping[int, int]
    runs: Sequence[Run]


def restored_runs(streams: Mapping[str, EndedStream]) -> dict[str, list[Run]]:
    """Give, by collector, the runs with which its stream begins the next epoch, in this order.

    Afterwards all streams of the tree agree on the position of each log.
    """
    ends: dict[int, int] = {}
    for stream in streams.values():
        for log, position in stream.positions.items():
            ends[log] = max(position, ends.get(log, 0))
    restored: dict[str, list[Run]] = {}

    def find(name: str) -> list[Run]:
        if name in restored:
            return restored[name]
        stream = streams[name]
        above: list[Run] = []
        if stream.parent is not None:
            above += streams[stream.parent].runs
            above += find(stream.parent)
        # A wrong record can have brought a stream further than its parent: the rest, log by log.
        above += [Run(log, 0, ends[log]) for log in sorted(stream.positions)]
        restored[name] = runs_ahead(stream.positions, above)
        return restored[name]

    for name in streams:
        find(name)
    return restored


def runs_ahead(positions: Mapping[int, int], above: Iterable[Run]) -> list[Run]:
    """Give what these runs order beyond the positions, in their order.

    Logs without a position are left out, and a run of more than ORDERED_MAX offsets is cut.
    """
    ahead, runs = dict(positions), []
    for log, _, end in above:
        while log in ahead and ahead[log] < end:
            first = ahead[log]
            ahead[log] = min(end, first + ORDERED_MAX)
            runs.append(Run(log, first, ahead[log]))
    return runs


def restored_records(runs: Sequence[Run], first: int = 0) -> Iterator[RestoredRecord]:
    """Give the records of these runs from number `first` on; they may come repeatedly and late."""
    entries: list[Position] = []
    ordered = 0
    for number in range(first, len(runs)):
        log, begin, end = runs[number]
        if len(entries) >= ENTRIES_MAX or ordered + end - begin > ORDERED_MAX:
            yield RestoredRecord(number - len(entries), number, tuple(entries))
            entries, ordered = [], 0
        entries.append(Position(log, end))
        ordered += end - begin
    if entries:
        yield RestoredRecord(len(runs) - len(entries), len(runs), tuple(entries))
