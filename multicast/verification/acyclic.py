"""Decides whether a common order of several sequences exists; if not, finds a short cycle.

The sequences are of numbers, and none contains a number twice. The result is the core, the parts
that no common order can contain, and the steps of a short cycle through it. This module knows
nothing of histories, and makes no sentences.

    step    in one sequence, an earlier number precedes a later one (not always its neighbour)
    cycle   steps, each in another sequence, that lead from a number back to it
    core    a slice of every sequence; a number in one slice is in the slices of all sequences that
            contain it. The core is empty iff a common order exists

Only neighbours matter for the core (a longer step adds nothing), so it takes time linear in the
length of the sequences: a number is removed if it comes first in all sequences that contain it
(Kahn's algorithm), and then likewise from the other end. Each number of the core is on a cycle or
between two cycles.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

# Numbers that the search for a shorter cycle looks at: some seconds. A longer cycle is as valid a
# witness, only harder to read.
SCAN_MAX = 5_000_000


class Step(NamedTuple):
    """Two places in the sequence with index `sequence`: earlier < later."""

    sequence: int
    earlier: int
    later: int


class _Entry(NamedTuple):
    """A state of the search: it entered a sequence at a place, from another sequence."""

    sequence: int
    place: int
    came_from: _Entry | None
    left_at: int  # the place in the sequence of `came_from` that holds the same number


@dataclass(frozen=True)
class Core:
    """The part without a common order: `sequences[i][low[i]:high[i]]` for each i."""

    sequences: Sequence[array[int]]
    low: list[int]
    high: list[int]

    def __bool__(self) -> bool:
        """Whether the core is not empty, which means that a cycle exists."""
        return any(low < high for low, high in zip(self.low, self.high, strict=True))

    @cached_property
    def places(self) -> dict[int, list[tuple[int, int]]]:
        """For each number of the core, its (sequence, place) in all sequences."""
        places: dict[int, list[tuple[int, int]]] = {}
        for index, sequence in enumerate(self.sequences):
            for place in range(self.low[index], self.high[index]):
                places.setdefault(sequence[place], []).append((index, place))
        return places


def core(sequences: Sequence[array[int]], count: int) -> Core:
    """Give the core of these sequences, whose numbers are below `count`."""
    low = [0] * len(sequences)
    high = [len(sequence) for sequence in sequences]
    _peel(sequences, low, high, 1, array("i", bytes(4 * count)))
    if any(start < stop for start, stop in zip(low, high, strict=True)):
        last = [stop - 1 for stop in high]
        _peel(sequences, last, [start - 1 for start in low], -1, array("i", bytes(4 * count)))
        high = [place + 1 for place in last]
    return Core(sequences, low, high)


def _peel(
    sequences: Sequence[array[int]],
    places: list[int],
    stop: list[int],
    direction: int,
    left: array[int],
) -> None:
    """Advance `places` towards `stop` past the numbers that come first in all their sequences.

    `direction` is 1 or -1; `left` counts, by number, the sequences that have not yet reached it.
    """
    for index, sequence in enumerate(sequences):
        first = places[index]
        rest = sequence[first:] if direction == 1 else sequence[stop[index] + 1 : first + 1]
        for number in rest:
            left[number] += 1
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(sequences)))
    while ready:
        index = ready.pop()
        sequence, place, end = sequences[index], places[index], stop[index]
        while place != end:
            number = sequence[place]
            left[number] -= 1
            if left[number]:  # not yet first in all its sequences
                waiting.setdefault(number, []).append(index)
                break
            place += direction
            freed = waiting.pop(number, None)
            if freed:
                for other in freed:
                    places[other] += direction
                ready += freed
        places[index] = place


def disagreement(core: Core) -> tuple[Step, Step] | None:
    """Find two sequences that have two numbers in opposite orders; None if there are none."""
    for index, sequence in enumerate(core.sequences):
        last: dict[int, tuple[int, int]] = {}  # by other sequence: its place, and ours
        for place in range(core.low[index], core.high[index]):
            for other, there in core.places[sequence[place]]:
                if other <= index:
                    continue
                before = last.get(other, (-1, -1))
                if there < before[0]:
                    return Step(index, before[1], place), Step(other, there, before[0])
                last[other] = (there, place)
    return None


def shortest_cycle(core: Core, *, scan_max: int = SCAN_MAX) -> tuple[Step, ...]:
    """Find a short cycle in a core that is not empty.

    It is a shortest one if the search through every number of the core looks at no more than
    `scan_max` numbers; else the shortest found until then. One search is always completed.
    """
    pair = disagreement(core)
    if pair is not None:
        return pair
    best: tuple[Step, ...] = ()
    budget = scan_max
    for number in core.places:
        cycle, scanned = _cycle_through(core, number, len(best))
        if cycle is not None:
            best = cycle
        budget -= scanned
        # If no two sequences disagree, a cycle has at least three steps.
        if len(best) == 3 or (best and budget <= 0):
            break
    assert best, "a core holds a cycle"
    return best


def _cycle_through(core: Core, start: int, below: int) -> tuple[tuple[Step, ...] | None, int]:
    """Search breadth first, one sequence per step; for less than `below` steps unless it is 0.

    Gives the cycle, or None, and how many numbers were looked at.
    """
    reached = list(core.high)  # by sequence: everything from here on was looked at
    level = {index: _Entry(index, place, None, -1) for index, place in core.places[start]}
    steps, scanned = 0, 0
    while level:
        steps += 1
        if below and steps >= below:
            break
        following: dict[int, _Entry] = {}
        for entry in level.values():
            sequence = core.sequences[entry.sequence]
            end = reached[entry.sequence]
            reached[entry.sequence] = min(end, entry.place + 1)
            scanned += max(0, end - entry.place)
            for place in range(entry.place + 1, end):
                number = sequence[place]
                if number == start:
                    return tuple(_steps(entry, place))[::-1], scanned
                for other, there in core.places[number]:
                    known = following.get(other)
                    if there + 1 < (reached[other] if known is None else known.place + 1):
                        following[other] = _Entry(other, there, entry, place)
        level = following
    return None, scanned


def _steps(entry: _Entry, later: int) -> Iterator[Step]:
    """Give the steps that led to an entry, the last one first."""
    current: _Entry | None = entry
    while current is not None:
        yield Step(current.sequence, current.place, later)
        later = current.left_at
        current = current.came_from
