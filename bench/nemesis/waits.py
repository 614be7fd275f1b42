"""How long acknowledged messages wait at consumers of several logs: the bound, and its judgement.

The inputs are incidents and deliveries with times of one clock, in nanoseconds; the results are
seconds. No I/O, no clock.

    wait       of a message at a consumer: from its acknowledgement to its delivery, without what is
               excused in between
    excused    an incident in which brokers, collectors or consumers are away; the time in which the
               consumer has no process that delivers; and of any other time, as much as threads
               that were ready waited for a core: a message moves on only if the machine lets it
    before     the `BEFORE_S` before an incident, without what belongs to other incidents
    settled    from `SETTLE_S` after an incident until the next one; judged if each of the two has
               `MESSAGES_MIN` messages of the log at the consumer

The bound: no wait is longer than `BOUND_S`; and settled, p50 and p99 of each log at each consumer
are at most `P50_MORE_S` and `P99_MORE_S` above those before the incident. What a producer does
excuses nothing. As a message passes several threads, each limit grows by the `STARVED` with its
name times the share of the run in which a thread waited for a core.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from bench.nemesis.histories import AcceptedDeliveries
from bench.nemesis.recovery import quantile

_NS = 10**9
BOUND_S = 2.0
SETTLE_S = 30.0
BEFORE_S = 60.0
MESSAGES_MIN = 20
P50_MORE_S = 0.02
P99_MORE_S = 0.5
STARVED_BOUND_S, STARVED_P50_S, STARVED_P99_S = 1.0, 0.5, 1.0

END_NS = 1 << 63  # later than all times

TIMES = ("before", "after", "settled")
Span = tuple[int, int]
Pair = tuple[str, str]  # a consumer and a destination set


class FaultTime(NamedTuple):
    """A fault from its beginning until all runs again; whether that time is excused."""

    kind: str
    begun_ns: int
    over_ns: int
    excused: bool


@dataclass(slots=True)
class WaitsJudged:
    """Figures by kind of fault, time (`TIMES`) and name; and findings."""

    kinds: dict[str, dict[str, dict[str, float | None]]] = field(default_factory=dict)
    starved_share: float = 0.0
    findings: list[str] = field(default_factory=list)


class _Waits(NamedTuple):
    """Of one pair, in the order of acknowledgement; messages that were acknowledged, and waits."""

    accepted_ns: list[int]
    waited_s: list[float]

    def between(self, span: Span) -> list[float]:
        first, last = (bisect_left(self.accepted_ns, end) for end in span)
        return self.waited_s[first:last]


class Spans:
    """A set of times: spans that may overlap."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, end in sorted(spans):
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(end, self._ends[-1])
            elif start < end:
                self._starts.append(start)
                self._ends.append(end)
        lengths = [end - start for start, end in zip(self._starts, self._ends, strict=True)]
        self._before = list(accumulate(lengths, initial=0))

    def within(self, start: int, end: int) -> int:
        """Return how much of a span they cover."""
        return self._until(end) - self._until(start)

    def outside(self, span: Span) -> Iterator[Span]:
        """Give the parts of a span that they do not cover."""
        at, last = span
        for start, end in zip([*self._starts, last], [*self._ends, last], strict=True):
            if at < min(start, last):
                yield at, min(start, last)
            at = max(at, end)

    def _until(self, time: int) -> int:
        place = bisect_right(self._starts, time) - 1
        if place < 0:
            return 0
        return self._before[place] + min(time, self._ends[place]) - self._starts[place]


class _Fair:
    """Gives a time without what threads had waited for a core until then."""

    def __init__(self, starved: Sequence[tuple[int, int]]) -> None:
        self._times = [time for time, _ in starved]
        self._totals = [total for _, total in starved]

    def __call__(self, time: int) -> int:
        place = bisect_right(self._times, time)
        if not 0 < place < len(self._times):
            return time - (self._totals[-1] if place and self._totals else 0)
        (before, after), (less, more) = (
            some[place - 1 : place + 1] for some in (self._times, self._totals)
        )
        return time - less - (more - less) * (time - before) // (after - before)


def judge_waits(
    incidents: Sequence[FaultTime],
    delivered: Mapping[Pair, AcceptedDeliveries],
    *,
    present: Mapping[str, Sequence[Span]],
    starved: Sequence[tuple[int, int]] = (),
) -> WaitsJudged:
    """Judge the waits of all pairs of consumers that read several logs.

    `incidents` are in their order; `present` holds by consumer when its processes deliver,
    `starved` by time for how long threads had waited for a core by then.
    """
    judged = WaitsJudged()
    fair = _Fair(starved)
    excused = [(one.begun_ns, one.over_ns) for one in incidents if one.excused]
    if len(starved) > 1:
        (began, less), (ended, more) = starved[0], starved[-1]
        judged.starved_share = (more - less) / (ended - began)
    waits: dict[Pair, _Waits] = {}
    several = {pair[0] for pair in delivered if sum(other[0] == pair[0] for other in delivered) > 1}
    for pair, times in sorted(delivered.items()):
        if pair[0] not in several:
            continue
        away = Spans(present[pair[0]]).outside((0, END_NS))
        spans = Spans((fair(start), fair(end)) for start, end in (*excused, *away))
        waits[pair] = _waits(times, spans, fair)
    for pair, some in waits.items():
        bound_s = BOUND_S + STARVED_BOUND_S * judged.starved_share
        judged.findings += _too_long(pair, some, incidents, bound_s)
    any_incident = Spans((one.begun_ns, one.over_ns) for one in incidents)
    pooled: dict[str, dict[str, list[float]]] = {}
    for place, incident in enumerate(incidents):
        nexts = incidents[place + 1 : place + 2]
        until = nexts[0].begun_ns if nexts else END_NS
        early = round(incident.begun_ns - BEFORE_S * _NS)
        settled = round(incident.over_ns + SETTLE_S * _NS)
        before = list(any_incident.outside((early, incident.begun_ns)))
        after = (incident.over_ns, min(settled, until))
        parts = dict(zip(TIMES, (before, [after], [(after[1], until)]), strict=True))
        of_kind = pooled.setdefault(incident.kind, {name: [] for name in parts})
        for pair, some in waits.items():
            taken = {
                name: [wait for span in spans for wait in some.between(span)]
                for name, spans in parts.items()
            }
            for name, values in taken.items():
                of_kind[name] += values
            judged.findings += _unsettled(
                pair, incident, taken["before"], taken["settled"], judged.starved_share
            )
    judged.kinds = {
        kind: {name: _figures(values) for name, values in parts.items()}
        for kind, parts in sorted(pooled.items())
    }
    return judged


def _waits(times: AcceptedDeliveries, excused: Spans, fair: _Fair) -> _Waits:
    # A message that is delivered again, after a kill, has waited until its first delivery.
    firsts: dict[int, int] = {}
    for accepted, at in zip(times.accepted_ns, times.at_ns, strict=True):
        firsts[accepted] = min(at, firsts.get(accepted, at))
    waits = _Waits([], [])
    for accepted, at in sorted(firsts.items()):
        start, end = fair(accepted), fair(max(accepted, at))
        waits.accepted_ns.append(accepted)
        waits.waited_s.append((end - start - excused.within(start, end)) / _NS)
    return waits


def _too_long(
    pair: Pair, waits: _Waits, incidents: Sequence[FaultTime], bound_s: float
) -> Iterator[str]:
    """Say after which incidents a pair's messages waited longer than the bound."""
    longer: dict[int, list[float]] = {}
    for accepted, waited in zip(*waits, strict=True):
        if waited > bound_s:
            after = bisect_right([one.begun_ns for one in incidents], accepted) - 1
            longer.setdefault(after, []).append(waited)
    for place, some in longer.items():
        what = f"{incidents[place].kind} (incident {place})" if place >= 0 else "the start"
        yield (
            f"{pair[0]} delivered {len(some)} messages to {pair[1]} later than {bound_s:.3g} s "
            f"after their acknowledgement, up to {max(some):.2f} s, after {what}."
        )


def _unsettled(
    pair: Pair,
    incident: FaultTime,
    before: Sequence[float],
    settled: Sequence[float],
    starved_share: float,
) -> Iterator[str]:
    """Say whether the waits are longer for good."""
    if min(len(before), len(settled)) < MESSAGES_MIN:
        return
    limits = ((0.5, P50_MORE_S, STARVED_P50_S), (0.99, P99_MORE_S, STARVED_P99_S))
    for share, more, starved_s in limits:
        was, now = quantile(before, share) or 0.0, quantile(settled, share) or 0.0
        if now > was + more + starved_s * starved_share:
            yield (
                f"{SETTLE_S:g} s after {incident.kind} p{share * 100:g} of the wait of messages to "
                f"{pair[1]} at {pair[0]} is {now:.3f} s; before it was {was:.3f} s."
            )


def _figures(waits: Sequence[float]) -> dict[str, float | None]:
    p50_s, p99_s = quantile(waits, 0.5), quantile(waits, 0.99)
    worst_s = max(waits, default=None)
    return {"messages": len(waits), "p50_s": p50_s, "p99_s": p99_s, "worst_s": worst_s}
