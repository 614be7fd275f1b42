"""How long the system took to recover from each fault: figures from what its clients noted.

In go faults, calls and deliveries with times of one clock, in nanoseconds; out come seconds, by
kind of fault. No I/O, no clock.

    healed      the fault was taken back: the process runs again, the link is up. Where nothing is
                taken back (a standby takes over), the moment of the fault
    pair        a consumer, and a destination set that meets its interest and has load: some
                accepted message to it was begun after the fault had healed
    recovered   every pair's consumer has delivered a message to its set that was begun after the
                fault had healed. A redelivery of an older message says nothing

Invariant: a recovery takes longer than nothing; it is None where some pair was never delivered.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_NS = 1e9


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, when it was made, and when it was over."""

    kind: str
    injected_ns: int
    healed_ns: int


class RecoveryTime(NamedTuple):
    """How long a fault's recovery took.

    `took_s` is None where there was no load to measure it with, or where `waiting` pairs
    (consumer, destination set) never delivered anything that was begun after the fault had healed.
    """

    fault: Fault
    took_s: float | None
    waiting: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """Recoveries of one kind of fault, in seconds; None where none was measured."""

    count: int
    measured: int
    unrecovered: int
    p50_s: float | None
    p99_s: float | None
    worst_s: float | None


class PairDeliveries(Protocol):
    """One pair's deliveries: when each message was begun, and when it was delivered."""

    @property
    def begun_ns(self) -> Sequence[int]:
        """Begun, by delivery."""

    @property
    def at_ns(self) -> Sequence[int]:
        """Delivered, by delivery."""


def recoveries(
    faults: Iterable[Fault],
    *,
    load: Mapping[str, Sequence[int]],
    delivered: Mapping[tuple[str, str], PairDeliveries],
    interests: Mapping[str, Sequence[str]],
) -> list[RecoveryTime]:
    """Measure the recovery of each fault.

    `load` has by destination set ("P1+P3") when its accepted messages were begun, `delivered` the
    deliveries by consumer and destination set, `interests` the partitions of each consumer that
    counts. A recovery that a later fault delayed counts that delay, too.
    """
    begun = {to: sorted(times) for to, times in load.items()}
    pairs = [
        (name, to)
        for name, interest in interests.items()
        for to in begun
        if not set(interest).isdisjoint(to.split("+"))
    ]
    firsts = {pair: _Firsts(delivered.get(pair)) for pair in pairs}
    found = []
    for fault in faults:
        after = fault.healed_ns
        ready = {
            pair: firsts[pair].after(after)
            for pair in pairs
            if bisect_right(begun[pair[1]], after) < len(begun[pair[1]])
        }
        waiting = tuple(pair for pair, at_ns in ready.items() if at_ns is None)
        took = [at_ns - after for at_ns in ready.values() if at_ns is not None]
        whole = bool(took) and not waiting
        found.append(RecoveryTime(fault, max(took) / _NS if whole else None, waiting))
    return found


def by_kind(found: Iterable[RecoveryTime]) -> dict[str, RecoveryFigures]:
    """Sum recoveries up by kind of fault, sorted by name."""
    kinds: dict[str, list[RecoveryTime]] = {}
    for one in found:
        kinds.setdefault(one.fault.kind, []).append(one)
    return {kind: _figures(some) for kind, some in sorted(kinds.items())}


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that at least this share of the values does not exceed.

    That is a value that was measured: of fewer than a hundred the 99th percentile is the worst.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _figures(some: Sequence[RecoveryTime]) -> RecoveryFigures:
    took = [one.took_s for one in some if one.took_s is not None]
    return RecoveryFigures(
        count=len(some),
        measured=len(took),
        unrecovered=sum(1 for one in some if one.waiting),
        p50_s=quantile(took, 0.5),
        p99_s=quantile(took, 0.99),
        worst_s=max(took, default=None),
    )


class _Firsts:
    """One pair's deliveries, by when the message was begun: what was delivered first after that."""

    def __init__(self, delivered: PairDeliveries | None) -> None:
        both = (delivered.begun_ns, delivered.at_ns) if delivered is not None else ((), ())
        pairs = sorted(zip(*both, strict=True))
        self._begun = [begun for begun, _ in pairs]
        self._first = [at_ns for _, at_ns in pairs]
        # From the last to the first: the earliest delivery of what was begun then or later.
        for index in range(len(pairs) - 2, -1, -1):
            self._first[index] = min(self._first[index], self._first[index + 1])

    def after(self, healed_ns: int) -> int | None:
        """Return the first delivery of a message that was begun later than that."""
        index = bisect_left(self._begun, healed_ns + 1)
        return self._first[index] if index < len(self._first) else None
