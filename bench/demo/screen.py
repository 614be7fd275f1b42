"""What the demo says at its end: latency in each phase, the order as a picture, what to try next.

    steady     of a message: not of the first `WARM_UP_S` seconds, and not caught in the failover
    affected   of a team: its collector was killed, or orders below the killed one
    failover   at an affected team: from the kill to the first delivery of a message that was
               multicast after the kill; what was multicast before that delivery and delivered after
               the kill is caught in it
    plain      plain Kafka beside it (`plain.py`), without the same first seconds
    replay     one team's deliveries once more, from the start

Times are nanoseconds of one monotonic clock. The functions are pure but for `show`.
"""

from __future__ import annotations

import heapq
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from bench.measured_work import MeasuredWork
from multicast.verification.report import Report
from topology.tree import Plan

WARM_UP_S = 2.0  # connections, first fetches and JIT compilers of the broker settle in one second
_ROWS = 8  # of the picture: with the lines around it, the last screen fits on 40 lines
_NAME_COLUMNS = 27  # of a message in the picture: with five teams, 80 columns
_NS = 1e9


@dataclass(frozen=True, slots=True)
class Delivered:
    """One delivery: which message, multicast when, delivered when."""

    message: str
    sent_ns: int
    delivered_ns: int

    @property
    def ms(self) -> float:
        """The latency in milliseconds."""
        return (self.delivered_ns - self.sent_ns) / 1e6


@dataclass(frozen=True, slots=True)
class Phases:
    """Latencies in milliseconds, sorted, by phase; seconds of the failover, None without a kill."""

    warm_up: Sequence[float]
    steady: Sequence[float]
    caught: Sequence[float]
    plain: Sequence[float]
    failover_s: float | None
    affected: Sequence[str]


def affected_teams(plan: Plan, killed: str | None) -> list[str]:
    """Name the consumers whose order passes a collector: it is theirs, or above theirs."""
    below: set[str] = set()
    waiting = [] if killed is None else [killed]
    while waiting:
        name = waiting.pop()
        below.add(name)
        waiting += [node.name for node in plan.collectors if node.parent == name]
    return [entry.name for entry in plan.consumers if entry.collector in below]


def phases(
    teams: Mapping[str, Sequence[Delivered]],
    affected: Iterable[str],
    began_ns: int,
    killed_ns: int | None,
    plain: Iterable[Delivered] = (),
) -> Phases:
    """Divide the deliveries of all teams, each in its order, among the phases."""
    affected = list(affected)
    steady_ns = began_ns + WARM_UP_S * _NS
    warm_up: list[float] = []
    steady: list[float] = []
    caught: list[float] = []
    failovers: list[int] = []
    for team, deliveries in teams.items():
        moved_ns = None
        if killed_ns is not None and team in affected:
            after = [d.delivered_ns for d in deliveries if d.sent_ns > killed_ns]
            moved_ns = min(after, default=None)
            if moved_ns is not None:
                failovers.append(moved_ns - killed_ns)
        for one in deliveries:
            if moved_ns is not None and killed_ns is not None:
                is_caught = one.delivered_ns >= killed_ns and one.sent_ns <= moved_ns
            else:
                is_caught = False
            if is_caught:
                caught.append(one.ms)
            elif one.sent_ns < steady_ns:
                warm_up.append(one.ms)
            else:
                steady.append(one.ms)
    failover_s = max(failovers) / _NS if failovers else None
    beside = sorted(one.ms for one in plain if one.sent_ns >= steady_ns)
    return Phases(sorted(warm_up), sorted(steady), sorted(caught), beside, failover_s, affected)


def quantiles(sorted_ms: Sequence[float]) -> dict[str, float]:
    """Give count, p50, p99 and the greatest; the count alone if there are none."""
    figures: dict[str, float] = {"count": len(sorted_ms)}
    if sorted_ms:
        for q in (50, 99):
            place = min(len(sorted_ms) - 1, int(len(sorted_ms) * q / 100))
            figures[f"p{q}"] = round(sorted_ms[place], 3)
        figures["max"] = round(sorted_ms[-1], 3)
    return figures


def document(divided: Phases) -> dict[str, Any]:
    """Give the phases as the JSON document of the demo shows them, in ms and seconds."""
    steady, plain = quantiles(divided.steady), quantiles(divided.plain)
    both = steady["count"] and plain["count"]
    return {
        "warm_up_ms": quantiles(divided.warm_up),
        "steady_ms": steady,
        "caught_in_failover_ms": quantiles(divided.caught),
        "plain_kafka_ms": plain,
        "steady_p50_by_plain": round(steady["p50"] / plain["p50"], 2) if both else None,
        "failover_s": None if divided.failover_s is None else round(divided.failover_s, 3),
        "affected_teams": list(divided.affected),
    }


def common_order(teams: Mapping[str, Sequence[Delivered]]) -> list[str]:
    """List all messages in one order that contains every team's; [] if there is none.

    Of the messages that no team orders, the one that was delivered first comes first.
    """
    followers: dict[str, list[str]] = {}
    waits: dict[str, int] = {}
    first_ns: dict[str, int] = {}
    for deliveries in teams.values():
        for index, one in enumerate(deliveries):
            waits.setdefault(one.message, 0)
            first_ns[one.message] = min(
                one.delivered_ns, first_ns.get(one.message, one.delivered_ns)
            )
            if index:
                followers.setdefault(deliveries[index - 1].message, []).append(one.message)
                waits[one.message] += 1
    free = [(first_ns[message], message) for message, count in waits.items() if not count]
    heapq.heapify(free)
    order: list[str] = []
    while free:
        _, message = heapq.heappop(free)
        order.append(message)
        for follower in followers.get(message, ()):
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(free, (first_ns[follower], follower))
    return order if len(order) == len(waits) else []


def picture(teams: Mapping[str, Sequence[Delivered]]) -> Iterator[str]:
    """Yield the lines of a table: some messages in their common order, a column for each team.

    A number is the team's own count of its deliveries. The rows are those that most teams share.
    """
    order = common_order(teams)
    if not order:
        return
    places = {
        team: {one.message: number for number, one in enumerate(deliveries, start=1)}
        for team, deliveries in teams.items()
    }
    shared = [sum(message in places[team] for team in teams) for message in order]
    starts = range(max(1, len(order) - _ROWS + 1))
    first = max(starts, key=lambda start: sum(shared[start : start + _ROWS]))
    columns = {team: max(7, len(team)) for team in teams}
    yield f"{'message':<{_NAME_COLUMNS}}" + "".join(f" {t:>{w}}" for t, w in columns.items())
    for message in order[first : first + _ROWS]:
        cells = (f" {places[team].get(message, '·'):>{w}}" for team, w in columns.items())
        yield f"{_short(message):<{_NAME_COLUMNS}}" + "".join(cells)


def _short(message: str) -> str:
    """Shorten the log's name, not the offset."""
    name, _, offset = message.rpartition(":")
    room = _NAME_COLUMNS - len(offset) - 1
    return f"{name if len(name) <= room else name[: room - 1] + '…'}:{offset}"


def _is_demo_alone() -> bool:
    """Whether `make demo` made this environment, in which other commands lack packages."""
    return Path(sys.prefix).name == ".venv-demo"


def program() -> str:
    """Give the command that runs `amcast` here, as one types it."""
    called = Path(sys.argv[0])
    if _is_demo_alone():
        return ".venv/bin/amcast"
    if called.name == "amcast":
        if shutil.which("amcast") == str(called.absolute()):
            return "amcast"
        return shlex.quote(str(called))
    return f"{shlex.quote(sys.executable)} -m multicast"


def show(
    result: Mapping[str, Any],
    report: Report,
    work: MeasuredWork,
    teams: Mapping[str, Sequence[Delivered]],
) -> None:
    """Print the last screen: for people; `-o json` prints `result` for programs."""
    for line in _lines(result, report, work, teams):
        typer.echo(line)


def _lines(
    result: Mapping[str, Any],
    report: Report,
    work: MeasuredWork,
    teams: Mapping[str, Sequence[Delivered]],
) -> Iterator[str]:
    yield ""
    yield (
        f"{result['messages']:,} messages to {len(teams)} teams: {result['deliveries']:,} "
        f"deliveries in {result['seconds']:g} s, broker and plan included"
    )
    yield ""
    yield from _latency(result)
    yield ""
    lines = list(picture(teams))
    if lines:
        yield "Part of the order. A column is a team: 7 is its seventh message, · is not for it."
        yield "In every column the numbers grow downwards, so all teams agree on the order:"
        yield ""
        yield from (f"  {line}" for line in lines)
        yield ""
    violated = len(report.violations)
    yield f"Guarantees, checked over all deliveries: {violated or 'no'} violation" + (
        "" if violated == 1 else "s"
    )
    for verdict in report.verdicts:
        note = verdict.reason or verdict.note
        yield f"  {verdict.guarantee}: {verdict.verdict}" + (f" ({note})" if note else "")
    yield ""
    yield from _foreign_work(work)
    yield ""
    amcast = program()
    yield f"Try next{', after make .venv/ready' if _is_demo_alone() else ''}:"
    yield f"  {amcast} demo --force --history run.jsonl && {amcast} verify run.jsonl"
    yield f"  {amcast} osn demo         money between four blockchains while everything is killed"
    yield f"  {amcast} local up         a broker for your own topic: README.md, Quick start"
    yield f"  {amcast} adopt TOPIC      order a topic that you have: docs/adopt.md"


def _latency(result: Mapping[str, Any]) -> Iterator[str]:
    phases_found = result["phases"]
    yield f"Latency, from multicast to delivery, at {result['rate_per_s']:.0f} messages/s"
    yield f"  {'':<26}{'deliveries':>10}{'p50':>12}{'p99':>12}{'greatest':>12}"
    for name, key in (
        (f"first {WARM_UP_S:g} s", "warm_up_ms"),
        ("steady", "steady_ms"),
        ("caught in the failover", "caught_in_failover_ms"),
        ("plain Kafka beside it", "plain_kafka_ms"),
    ):
        found = phases_found[key]
        if not found["count"]:
            continue
        times = "".join(f"{found[q]:>9,.1f} ms" for q in ("p50", "p99", "max"))
        yield f"  {name:<26}{found['count']:>10,}{times}"
    if phases_found["steady_p50_by_plain"] is not None:
        yield (
            f"Steady p50: {phases_found['steady_p50_by_plain']:.1f} times that of plain Kafka, to "
            f"which the same client sent each fourth message, too"
        )
    if phases_found["failover_s"] is not None:
        yield (
            f"Failover: collector {result['killed']} was killed (kill -9); its teams "
            f"({', '.join(phases_found['affected_teams'])}) got new messages again after "
            f"{phases_found['failover_s']:.2f} s, from its standby"
        )
    again = result["replay"]
    if again["deliveries"]:
        same = "the same sequence" if again["same"] else "ANOTHER SEQUENCE"
        yield (
            f"Replay: {again['team']} read its {again['deliveries']:,} messages once more, from "
            f"the start, in {1000 * again['seconds']:,.0f} ms: {same}"
        )


def _foreign_work(work: MeasuredWork) -> Iterator[str]:
    total = work.total
    names = [row.name for row in work.collectors if row.passed_on_measured is not None]
    counted = [row for row in work.consumers if row.dropped_measured is not None]
    yield "Work on messages of others, counted and (as the plan predicts):"
    yield (
        f"  collectors {' '.join(names) or 'none'}: {total.passed_on_measured} "
        f"({total.passed_on_predicted}) entries passed on, {total.dropped_measured} "
        f"({total.dropped_predicted}) dropped"
    )
    yield (
        f"  teams: {sum(row.dropped_measured or 0 for row in counted)} "
        f"({sum(row.dropped_predicted for row in counted)}) entries dropped"
    )
    yield from (f"  {sentence}" for sentence in work.missing)
