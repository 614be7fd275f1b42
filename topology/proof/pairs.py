"""Pairs of disjoint sets of demands whose boundaries fit in one bag.

Two children of a light collector have boundaries that fit in its bag together. There are few such
pairs, but very many sets to choose from. So this search does not compare sets one by one: for each
demand and each log it keeps the listed sets with it as a bit set (of sets), and finds all partners
of a set by some operations on these. Units of rate with the same readers (`boundaries.py`) are one
log here. All sets are first sets; two that fit count as disjoint (`alike.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from topology.planner.cost import bits
from topology.proof.boundaries import Restricted


def partners(
    part: Restricted, listed: Mapping[int, int], level: int
) -> Iterator[tuple[int, list[int], int]]:
    """List each set with its partners: disjoint sets whose lowest demand is not a lower one.

    `listed` has the boundary of each set; those of two partners have at most `level` logs together.
    The last item is the work, in steps (`light.Budget`).
    """
    by_first: dict[int, list[int]] = {}
    for members in listed:
        by_first.setdefault(members & -members, []).append(members)
    order: list[int] = []
    holding = [0] * len(part.weight)  # by demand, the sets of `order` that contain it
    logs = _logs(part)
    reading = [0] * len(logs)  # by log, the sets of `order` with it in their boundary
    for first in sorted(by_first, reverse=True):
        same = by_first[first]
        # Sets with the same lowest demand fit only if others are like it.
        several = part.alike.group[first.bit_length() - 1] != first
        if several:
            _append(same, listed, logs, place=len(order), holding=holding, reading=reading)
            order += same
        for members in same:
            boundary = listed[members]
            spare = level - boundary.bit_count()
            if spare < 0:
                continue
            met = 0
            for demand in bits(part.alike.highest(members)):
                met |= holding[demand]
            others = [
                (sets, units.bit_count())
                for sets, units in zip(reading, logs, strict=True)
                if not boundary & units
            ]
            fit = ((1 << len(order)) - 1) & ~(met | _with_more_than(spare, others))
            found = [order[place] for place in _places(fit)]
            work = len(others) * (spare + 1) * len(order) // STEP_BITS
            yield members, found, 1 + len(found) + work
        if not several:
            _append(same, listed, logs, place=len(order), holding=holding, reading=reading)
            order += same


STEP_BITS = 50_000  # a step of about 1 us handles so many bits


def _logs(part: Restricted) -> list[int]:
    """List the logs, each as the bit set of its units."""
    units: dict[int, int] = {}
    for unit, readers in enumerate(part.readers):
        units[readers] = units.get(readers, 0) | 1 << unit
    return list(units.values())


def _with_more_than(spare: int, others: list[tuple[int, int]]) -> int:
    """Give the sets that occur more than `spare` times in bit sets of sets, each with its count."""
    if spare == 0:
        once = 0
        for sets, _ in others:
            once |= sets
        return once
    times = [0] * (spare + 2)  # times[n]: in n of them at least
    for sets, more in others:
        for count in range(spare + 1, more, -1):
            times[count] |= times[count - more] & sets
        for count in range(1, min(more, spare + 1) + 1):
            times[count] |= sets
    return times[spare + 1]


def _places(sets: int) -> Iterator[int]:
    """List the members of a long and sparse bit set; `bits` would copy it for each."""
    text = bin(sets)[:1:-1]
    place = text.find("1")
    while place >= 0:
        yield place
        place = text.find("1", place + 1)


def _append(
    added: list[int],
    listed: Mapping[int, int],
    logs: Sequence[int],
    *,
    place: int,
    holding: list[int],
    reading: list[int],
) -> None:
    """Add sets to the bit sets, from a place on."""
    rows = [bytearray(len(added) // 8 + 1) for _ in range(len(holding) + len(reading))]
    for number, members in enumerate(added):
        byte, bit = number >> 3, 1 << (number & 7)
        for demand in bits(members):
            rows[demand][byte] |= bit
        boundary = listed[members]
        for log, units in enumerate(logs, start=len(holding)):
            if boundary & units:
                rows[log][byte] |= bit
    for number, row in enumerate(rows):
        more = int.from_bytes(row, "little") << place
        if number < len(holding):
            holding[number] |= more
        else:
            reading[number - len(holding)] |= more
