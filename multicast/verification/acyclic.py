"""Whether there is one order that all sequences keep; if not, which few steps forbid it.

Sequences of numbers go in, none with a number twice. What comes out is the core, the parts that no
single order can hold, and the steps of a short cycle through it. No history, no words here.

    step    in one sequence, an earlier number stands before a later one (not always next to it)
    cycle   steps, each from another sequence, that lead from a number back to it
    core    of every sequence a slice; a number in one slice is in the slice of every sequence
            that has the number. It is empty iff there is a common order

Only neighbours matter for the core (a step over others adds nothing), so it takes time linear in
the sequences' length: a number is taken off when it is the first of all sequences that have it
(Kahn), then from the other end likewise. Each number of the core lies on a cycle or between two.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

SCAN_MAX = 5_000_000  # numbers looked at in search of a shorter cycle; some seconds


class Step(NamedTuple):
    """In the sequence of that index, the places of two numbers: earlier < later."""

    sequence: int
    earlier: int
    later: int


class _Entry(NamedTuple):
    """A search came into a sequence at a place, from a place in another sequence."""

    sequence: int
    place: int
    came_from: _Entry | None
    left_at: int  # the place in the sequence of `came_from` that holds the same number


@dataclass(frozen=True)
class Core:
    """What no order can hold: `sequences[r][low[r]:high[r]]` for each r."""

    sequences: Sequence[array[int]]
    low: list[int]
    high: list[int]

    def __bool__(self) -> bool:
        """Whether there is anything in it: whether a cycle exists."""
        return any(low < high for low, high in zip(self.low, self.high, strict=True))

    @cached_property
    def places(self) -> dict[int, list[tuple[int, int]]]:
        """For each number of the core: (sequence, place) wherever it stands."""
        places: dict[int, list[tuple[int, int]]] = {}
        for index, sequence in enumerate(self.sequences):
            for place in range(self.low[index], self.high[index]):
                places.setdefault(sequence[place], []).append((index, place))
        return places


def core(sequences: Sequence[array[int]], count: int) -> Core:
    """Take off all that a common order can hold. Numbers are below `count`."""
    low = [0] * len(sequences)
    high = [len(sequence) for sequence in sequences]
    _peel(sequences, low, high, 1, array("i", bytes(4 * count)))
    if any(start < stop for start, stop in zip(low, high, strict=True)):
        last = [stop - 1 for stop in high]
        _peel(sequences, last, [start - 1 for start in low], -1, array("i", bytes(4 * count)))
        high = [place + 1 for place in last]
    return Core(sequences, low, high)


def _peel(
    sequences: Sequence[array[int]], at: list[int], stop: list[int], way: int, left: array[int]
) -> None:
    """Move every `at` towards `stop` past the numbers that no other sequence still holds back."""
    for index, sequence in enumerate(sequences):
        rest = sequence[at[index] :] if way == 1 else sequence[stop[index] + 1 : at[index] + 1]
        for number in rest:
            left[number] += 1
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(sequences)))
    while ready:
        index = ready.pop()
        sequence, place, end = sequences[index], at[index], stop[index]
        while place != end:
            number = sequence[place]
            left[number] -= 1
            if left[number]:  # not the first of them all, yet
                waiting.setdefault(number, []).append(index)
                break
            place += way
            freed = waiting.pop(number, None)
            if freed:
                for other in freed:
                    at[other] += way
                ready += freed
        at[index] = place


def disagreement(core: Core) -> tuple[Step, Step] | None:
    """Find two sequences that have two numbers in opposite orders; None where there are none."""
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
    """Find a cycle of fewest steps in a core that is not empty.

    It is a shortest of all where trying every number of the core looks at no more than `scan_max`
    numbers; else the shortest of those found until then (one search is always finished).
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
        # Three is the least where no two sequences disagree.
        if len(best) == 3 or (best and budget <= 0):
            break
    assert best, "a core holds a cycle"
    return best


def _cycle_through(core: Core, start: int, below: int) -> tuple[tuple[Step, ...] | None, int]:
    """Search breadth first, a sequence a step; only for fewer than `below` steps unless it is 0."""
    reached = list(core.high)  # by sequence: all from here on was looked at
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
    """Give the steps that led here, the last one first."""
    at: _Entry | None = entry
    while at is not None:
        yield Step(at.sequence, at.place, later)
        later = at.left_at
        at = at.came_from
