"""Replay: all readings of one consumer are parts of one sequence.

A cursor gives the same sequence on any machine at any later time. So each message has the same
neighbours in two instances of a consumer, or before and after a restart, wherever they began.
"""

from __future__ import annotations

from array import array
from itertools import pairwise

from multicast.verification.acyclic import core, shortest_cycle
from multicast.verification.index import HistoryIndex, bits
from multicast.verification.report import Witness, cycle_witness, no_delivery, witness_of


def replay(index: HistoryIndex) -> Witness | None:
    """Find two readings of one consumer that are not parts of one sequence."""
    return _positions(index) or _neighbours(index)


def _neighbours(index: HistoryIndex) -> Witness | None:
    """Look for a message that two readings of one consumer deliver with different neighbours.

    If every message has at most one neighbour on each side, the readings together form lines. They
    are parts of one sequence unless a line closes to a ring.
    """
    history = index.history
    count = len(history.messages)
    after, before = array("i", [-1]) * count, array("i", [-1]) * count
    for readings in index.readings_of.values():
        if not readings & (readings - 1):
            continue
        chosen = list(bits(readings))
        for number in chosen:
            sequence = index.sequences[number]
            for earlier, later in pairwise(sequence):
                if after[earlier] != later or before[later] != earlier:
                    if after[earlier] >= 0 or before[later] >= 0:
                        return _two_ways(index, chosen, number, earlier, later)
                    after[earlier], before[later] = later, earlier
        if index.core and (ring := core([index.sequences[number] for number in chosen], count)):
            steps = [step._replace(sequence=chosen[step.sequence]) for step in shortest_cycle(ring)]
            return cycle_witness("ring", index, tuple(steps))
        for number in chosen:
            for message in index.sequences[number]:
                after[message] = before[message] = -1
    return None


def _two_ways(
    index: HistoryIndex, chosen: list[int], number: int, earlier: int, later: int
) -> Witness:
    """Find a reading that differs from reading `number` at one of two neighbouring messages."""
    history = index.history
    for other in chosen:
        sequence = index.sequences[other]
        for first, second in pairwise(sequence):
            if (first == earlier) != (second == later):
                return witness_of(
                    "two sequences",
                    f"{history.readings[other].name} delivered {history.name(first)} and next "
                    f"{history.name(second)}; {history.readings[number].name}, of the same "
                    f"consumer, delivered {history.name(earlier)} and next {history.name(later)}.",
                )
    raise AssertionError("two readings differ here")


def _positions(index: HistoryIndex) -> Witness | None:
    """Compare readings of one instance whose positions overlap.

    A reading that begins at 0 counts anew. One that begins at a position that the instance has
    passed must deliver the same messages at the same positions.
    """
    history = index.history
    known: dict[tuple[str, str], tuple[int, array[int]]] = {}
    for reading in history.readings:
        key = (reading.consumer, reading.instance)
        first, line = known.get(key, (0, array("i")))
        if reading.first == 0 or not first <= reading.first <= first + len(line):
            known[key] = (reading.first, reading.messages[:])
            continue
        overlap = reading.first - first  # where the reading begins in `line`
        for place, (old, new) in enumerate(zip(line[overlap:], reading.messages, strict=False)):
            if old != new:
                return witness_of(
                    "two sequences",
                    f"{reading.name} delivered {history.name(old)} at position "
                    f"{reading.first + place}, and after a restart {history.name(new)} there.",
                )
        line.extend(reading.messages[len(line) - overlap :])
        known[key] = (first, line)
    return None


def replay_unchecked(index: HistoryIndex) -> str:
    """Say why there is nothing to compare; "" if there is something."""
    if any(mask & (mask - 1) for mask in index.readings_of.values()):
        return ""
    return no_delivery(index) or "no consumer was read twice"
