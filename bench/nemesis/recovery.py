"""Computes the recovery time of each fault from the histories of the clients.

The inputs are faults, calls and deliveries with times of one clock, in nanoseconds; the results are
seconds, by kind of fault. No I/O, no clock.

    healed      the fault has ended: the process runs again, the link is up. If a fault needs no
                healing (a standby takes over), the moment of the fault
    pair        a consumer, and a destination set that meets its interest and has load: some
                accepted message to it was sent after the fault was healed
    recovered   every pair's consumer has delivered a message to its set that was sent after the
                fault was healed. A redelivery of an older message does not count

Invariant: recovery time > 0; there is none if some pair never recovered.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.nemesis.histories import AcceptedDeliveries

_NS = 1e9


@dataclass(frozen=True, slots=True)
class RecoveryFigures:
    """Recovery times of one kind of fault, in seconds; None if none was measured."""

    count: int
    unrecovered: int
    p50_s: float | None
    p99_s: float | None
    worst_s: float | None


def recoveries(
    faults: Iterable[tuple[str, int]],
    *,
    load: Mapping[str, Sequence[int]],
    delivered: Mapping[tuple[str, str], AcceptedDeliveries],
    interests: Mapping[str, Sequence[str]],
) -> dict[str, RecoveryFigures]:
    """Measure the recovery times of faults, given by kind and when each was healed.

    `load` holds by destination set ("P1+P3") when its accepted messages were sent, `delivered` the
    deliveries by consumer and destination set, `interests` the partitions of each consumer to
    judge. A delay by a later fault is part of the recovery time. Gives the figures by kind, sorted.
    """
    pairs = [
        (max(times), _Firsts(delivered.get((name, to))))
        for name, interest in interests.items()
        for to, times in load.items()
        if not set(interest).isdisjoint(to.split("+"))
    ]
    kinds: dict[str, list[list[int | None]]] = {}
    for kind, healed_ns in faults:
        ready = [firsts.after(healed_ns) for last_ns, firsts in pairs if last_ns > healed_ns]
        times = [None if at_ns is None else at_ns - healed_ns for at_ns in ready]
        kinds.setdefault(kind, []).append(times)
    return {kind: _figures(faults_of_kind) for kind, faults_of_kind in sorted(kinds.items())}


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the least value that at least this share of the values does not exceed.

    The result is a measured value: of fewer than a hundred, the 99th percentile is the greatest.
    """
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def _figures(faults: Sequence[Sequence[int | None]]) -> RecoveryFigures:
    """Summarize the recovery times of each fault's pairs; None: a pair never recovered."""
    whole = [[ns for ns in times if ns is not None] for times in faults if None not in times]
    took = [max(times) / _NS for times in whole if times]
    return RecoveryFigures(
        count=len(faults),
        unrecovered=len(faults) - len(whole),
        p50_s=quantile(took, 0.5),
        p99_s=quantile(took, 0.99),
        worst_s=max(took, default=None),
    )


class _Firsts:
    """The first delivery of a pair among the messages that were sent after a given time."""

    def __init__(self, delivered: AcceptedDeliveries | None) -> None:
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
