"""Replay: all readings of one consumer are stretches of one sequence.

A history's index goes in, a witness comes out, or nothing. The same cursor gives the same sequence
on any machine at any later time; so two instances of a consumer, or one before and after a restart,
have the same neighbours of each message, wherever each began.
"""

from __future__ import annotations

from array import array
from itertools import pairwise

from multicast.verification.acyclic import core, shortest_cycle
from multicast.verification.index import HistoryIndex, bits
from multicast.verification.report import Witness, cycle_witness, no_delivery, said


def replay(index: HistoryIndex) -> Witness | None:
    """Find two readings of one consumer that are no stretches of one sequence."""
    return _positions(index) or _stretches(index)


def _stretches(index: HistoryIndex) -> Witness | None:
    """Look for a message that two readings of one consumer deliver with different neighbours.

    Where every message has one neighbour on each side, the readings together are lines; they
    are stretches of one sequence unless a line closes to a ring.
    """
    history = index.history
    count = len(history.messages)
    after, before = array("i", [-1]) * count, array("i", [-1]) * count
    for readings in index.readings_of.values():
        if not readings & (readings - 1):
            continue
        chosen = list(bits(readings))
        for at in chosen:
            sequence = index.sequences[at]
            for earlier, later in pairwise(sequence):
                if after[earlier] != later or before[later] != earlier:
                    if after[earlier] >= 0 or before[later] >= 0:
                        return _two_ways(index, chosen, at, earlier, later)
                    after[earlier], before[later] = later, earlier
        if index.core and (ring := core([index.sequences[at] for at in chosen], count)):
            steps = [step._replace(sequence=chosen[step.sequence]) for step in shortest_cycle(ring)]
            return cycle_witness("ring", index, tuple(steps))
        for at in chosen:
            for message in index.sequences[at]:
                after[message] = before[message] = -1
    return None


def _two_ways(index: HistoryIndex, chosen: list[int], at: int, earlier: int, later: int) -> Witness:
    """Find the reading that goes another way at one of two neighbours of the reading `at`."""
    history = index.history
    for other in chosen:
        sequence = index.sequences[other]
        for one, two in pairwise(sequence):
            if (one == earlier) != (two == later):
                return said(
                    "two sequences",
                    f"{history.readings[other].name} delivered {history.name(one)} and next "
                    f"{history.name(two)}; {history.readings[at].name}, of the same consumer, "
                    f"delivered {history.name(earlier)} and next {history.name(later)}.",
                )
    raise AssertionError("two readings differ here")


def _positions(index: HistoryIndex) -> Witness | None:
    """Compare, in one instance, readings that count on from one another's positions.

    A reading that begins at 0 counts anew; one that begins at a position that the instance was
    past must deliver there what was delivered there before.
    """
    history = index.history
    known: dict[tuple[str, str], tuple[int, array[int]]] = {}
    for reading in history.readings:
        key = (reading.consumer, reading.instance)
        first, line = known.get(key, (0, array("i")))
        if reading.first == 0 or not first <= reading.first <= first + len(line):
            known[key] = (reading.first, reading.messages[:])
            continue
        there = reading.first - first
        for place, (old, new) in enumerate(zip(line[there:], reading.messages, strict=False)):
            if old != new:
                return said(
                    "two sequences",
                    f"{reading.name} delivered {history.name(old)} at position "
                    f"{reading.first + place}, and after a restart {history.name(new)} there.",
                )
        line.extend(reading.messages[len(line) - there :])
        known[key] = (first, line)
    return None


def replay_unchecked(index: HistoryIndex) -> str:
    """Say why there is nothing to compare; "" where there is."""
    if any(mask & (mask - 1) for mask in index.readings_of.values()):
        return ""
    return no_delivery(index) or "no consumer was read twice"
