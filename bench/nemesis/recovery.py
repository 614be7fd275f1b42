"""Computes the recovery time of each fault from the histories of the clients.

The inputs are faults, calls and deliveries with times of one clock, in nanoseconds; the results are
seconds, by kind of fault. No I/O, no clock.

    healed      the fault has ended: the process runs again, the link is up. If a fault needs no
                healing (a standby takes over), the moment of the fault
    pair        a consumer, and a destination set that meets its interest and has load: some
                accepted message to it was sent after the fault was healed
    recovered   every pair's consumer has delivered a message to its set that was sent after the
                fault was healed. A redelivery of an older message does not count

Invariant: recovery time > 0; it is None if some pair never recovered.
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
    """One fault: its kind, and when it was injected and healed."""

    kind: str
    injected_ns: int
    healed_ns: int


class RecoveryTime(NamedTuple):
    """A fault's recovery time.

    `took_s` is None if there was no load to measure it with, or if the `waiting` pairs (consumer,
    destination set) never delivered a message that was sent after the fault was healed.
    """

    fault: Fault
    took_s: float | None
    waiting: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """Recovery times of one kind of fault, in seconds; None if none was measured."""

    count: int
    unrecovered: int
    p50_s: float | None
    p99_s: float | None
    worst_s: float | None


class PairDeliveries(Protocol):
    """One pair's deliveries: when each message was sent, acknowledged and delivered."""

    @property
    def begun_ns(self) -> Sequence[int]:
        """When the message of each delivery was sent."""

    @property
    def accepted_ns(self) -> Sequence[int]:
        """When the message of each delivery was acknowledged."""

    @property
    def at_ns(self) -> Sequence[int]:
        """The time of each delivery."""


def recoveries(
    faults: Iterable[Fault],
    *,
    load: Mapping[str, Sequence[int]],
    delivered: Mapping[tuple[str, str], PairDeliveries],
    interests: Mapping[str, Sequence[str]],
) -> list[RecoveryTime]:
    """Measure the recovery time of each fault.

    `load` holds by destination set ("P1+P3") when its accepted messages were sent, `delivered` the
    deliveries by consumer and destination set, `interests` the partitions of each consumer to
    judge. A delay by a later fault is part of the recovery time.
    """
    begun = {to: sorted(times) for to, times in load.items()}
    pairs = [
        (name, to)
        for name, interest in interests.items()
        for to in begun
        if not set(interest).isdisjoint(to.split("+"))
    ]
    firsts = {pair: _Firsts(delivered.get(pair)) for pair in pairs}
    times = []
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
        times.append(RecoveryTime(fault, max(took) / _NS if whole else None, waiting))
    return times


def by_kind(times: Iterable[RecoveryTime]) -> dict[str, RecoveryFigures]:
    """Summarize recovery times by kind of fault, sorted by name."""
    kinds: dict[str, list[RecoveryTime]] = {}
    for time in times:
        kinds.setdefault(time.fault.kind, []).append(time)
    return {kind: _figures(some) for kind, some in sorted(kinds.items())}


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that at least this share of the values does not exceed.

    The result is a measured value: of fewer than a hundred, the 99th percentile is the greatest.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _figures(times: Sequence[RecoveryTime]) -> RecoveryFigures:
    took = [time.took_s for time in times if time.took_s is not None]
    return RecoveryFigures(
        count=len(times),
        unrecovered=sum(1 for time in times if time.waiting),
        p50_s=quantile(took, 0.5),
        p99_s=quantile(took, 0.99),
        worst_s=max(took, default=None),
    )


class _Firsts:
    """The first delivery of a pair among the messages that were sent after a given time."""

    def __init__(self, delivered: PairDeliveries | None) -> None:
        both = (delivered.begun_ns, delivered.at_ns) if delivered is not None else ((), ())
        pairs = sorted(zip(*both, strict=True))
        self._begun = [begun for begun, _ in pairs]
        self._first = [at_ns for _, at_ns in pairs]
        # From the last to the first: the earliest delivery of messages sent then or later.
        for index in range(len(pairs) - 2, -1, -1):
            self._first[index] = min(self._first[index], self._first[index + 1])

    def after(self, healed_ns: int) -> int | None:
        """Return the time of the first delivery of a message that was sent after `healed_ns`."""
        index = bisect_left(self._begun, healed_ns + 1)
        return self._first[index] if index < len(self._first) else None
