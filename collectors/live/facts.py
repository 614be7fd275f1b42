"""The live picture of one topic: what is known of each collector, and what follows. No I/O.

    rate      offsets a second: of a log, ordered by its top; of a collector, in its stream
    relayed   the part of a collector's rate that comes from its parent
    lag       of a log: stored, and not yet in the order of all collectors that have the log. Of a
              collector: stored in its own logs and not ordered yet, and what its parent has ordered
              and it has not relayed yet
    state     one of `State`; `judged` decides it, for the page and for commands

Times are milliseconds since 1970, as the machine that looks counts them.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from topology.tree import Plan

TICKS_SHOWN = 120  # of a sparkline: a minute, at two a second
_RATE_TICKS = 4  # a rate is the mean of so many ticks, 2 s: steady enough to read
# More than a second of work, for so many ticks in a row, is "behind": messages in flight are not.
_BEHIND_TICKS = 4
_EVENTS_MAX = 50  # what one reads of the past; the process's log has more


class State(enum.StrEnum):
    """How a collector is, the worst first."""

    DOWN = "down"  # its process has ended or failed, or messages wait and nothing is ordered
    BEHIND = "behind"  # more than a second of work waits
    HELD = "held"  # one of its logs is held up by an open transaction, or has lost its end
    SILENT = "silent"  # nothing is wrong with the order, but its status page cannot be read
    STARTING = "starting"
    UP = "up"


@dataclass(frozen=True, slots=True)
class Reported:
    """What a process says of a collector that it runs.

    `why`, if not empty, says why nothing was heard of it: then the rest is empty, but for `known`,
    whether its page could be read before.
    """

    state: str = ""
    error: str = ""
    held: tuple[str, ...] = ()
    lost: Mapping[str, int] = field(default_factory=dict)  # by log, the first lost offset
    restarts: int = 0
    process: str = ""
    why: str = ""
    known: bool = False


@dataclass(slots=True)
class CollectorView:
    """One collector, from tick to tick."""

    rates: deque[float] = field(default_factory=lambda: deque(maxlen=TICKS_SHOWN))
    relays: deque[float] = field(default_factory=lambda: deque(maxlen=_RATE_TICKS))
    lag: int = 0
    late_ticks: int = 0
    state: State = State.STARTING
    sentence: str = ""
    restarts: int = 0
    process: str = ""
    changed_ms: int = 0

    @property
    def rate(self) -> float:
        """Offsets a second, the mean of the last ticks."""
        return mean(list(self.rates)[-_RATE_TICKS:])


def mean(values: Iterable[float]) -> float:
    """Give the mean; 0.0 for nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def judged(view: CollectorView, reported: Reported) -> tuple[State, str]:
    """Decide a collector's state, and say why in a sentence ("" if all is well)."""
    stuck = view.lag > 0 and view.late_ticks >= _BEHIND_TICKS and view.rate == 0
    waiting = f"{view.lag:,} messages wait for it"
    if reported.why:
        if reported.known or stuck:
            gone = "its process does not answer" if reported.known else "nobody orders its logs"
            late = f"; {waiting}" if view.lag else ""
            return State.DOWN, f"{gone}{late}; run 'amcast collectors run' ({reported.why})"
        return State.SILENT, reported.why
    if reported.state == "failed":
        return State.DOWN, reported.error or "it has failed"
    if reported.lost:
        logs = ", ".join(f"{log} from offset {first} on" for log, first in reported.lost.items())
        return State.HELD, f"lost: {logs}: run 'amcast topology recover --accept-loss'"
    if reported.held:
        logs = ", ".join(reported.held)
        return State.HELD, f"an open transaction holds up {logs}: see 'amcast explain'"
    if view.late_ticks >= _BEHIND_TICKS:
        return State.BEHIND, waiting
    if reported.state != "running":
        return State.STARTING, "it starts"
    return State.UP, ""


@dataclass(slots=True)
class LivePicture:
    """The plan in force, and all that is known of it; `tick` adds what was read.

    `epoch_ms` is when the page first saw the plan; `ordered` has each log's position at its top.
    """

    plan: Plan
    epoch_ms: int
    collectors: dict[str, CollectorView]
    ends: dict[str, int] = field(default_factory=dict)
    ordered: dict[str, int] = field(default_factory=dict)
    log_rates: dict[str, deque[float]] = field(default_factory=dict)
    events: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_EVENTS_MAX))
    check: Mapping[str, Any] = field(default_factory=lambda: {"state": "off"})
    unchecked: str = ""  # what of the cluster's settings a process could not check
    cluster: Mapping[str, Any] = field(default_factory=dict)  # as `ClusterWatch.look` gives it
    now_ms: int = 0
    _positions: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def tick(
        self,
        now_ms: int,
        ends: Mapping[str, int],
        positions: Mapping[str, Mapping[str, int]],
        reported: Mapping[str, Reported],
    ) -> None:
        """Take the ends of logs, each collector's positions by log, and what processes say."""
        # The first tick has nothing to compare with; 1 ms is the shortest that a clock can show.
        elapsed_s = max(1, now_ms - self.now_ms) / 1000 if self._positions else None
        for name, view in self.collectors.items():
            self._count(name, view, ends, positions, elapsed_s)
            self._judge(name, view, reported.get(name, Reported(why="nobody runs it")), now_ms)
        self.ends = dict(ends)
        for log in self.plan.logs:
            top = self.plan.top(log.name)
            before = self.ordered.get(log.name)
            place = ends[log.name] if top is None else positions[top.name][log.name]
            self.ordered[log.name] = place
            rates = self.log_rates.setdefault(log.name, deque(maxlen=_RATE_TICKS))
            if before is not None and elapsed_s is not None:
                rates.append(max(0, place - before) / elapsed_s)
        self._positions = {name: dict(each) for name, each in positions.items()}
        self.now_ms = now_ms

    def take_cluster(self, now_ms: int, seen: Mapping[str, Any]) -> None:
        """Take what was seen of the cluster; a broker that goes or comes is a change."""
        before, away = self.cluster.get("away", []), seen.get("away", [])
        for broker in [*away, *before] if "away" in seen else []:
            if (broker in away) != (broker in before):
                state, word = (State.DOWN, "away") if broker in away else (State.UP, "back")
                self.event(now_ms, f"broker {broker} is {word}", state)
        self.cluster = seen

    def _count(
        self,
        name: str,
        view: CollectorView,
        ends: Mapping[str, int],
        positions: Mapping[str, Mapping[str, int]],
        elapsed_s: float | None,
    ) -> None:
        own, here = set(self.plan.own_logs(name)), positions[name]
        parent = self.plan.collector(name).parent
        above = positions[parent] if parent is not None else {}
        due = {log: ends[log] if log in own else above.get(log, place)
               for log, place in here.items()}  # fmt: skip
        view.lag = sum(max(0, due[log] - place) for log, place in here.items())
        if elapsed_s is not None:
            before = self._positions[name]
            moved = {log: max(0, place - before[log]) for log, place in here.items()}
            view.rates.append(sum(moved.values()) / elapsed_s)
            view.relays.append(
                sum(count for log, count in moved.items() if log not in own) / elapsed_s
            )
        late = view.lag > view.rate  # more than it orders in a second
        view.late_ticks = view.late_ticks + 1 if late else 0

    def _judge(self, name: str, view: CollectorView, reported: Reported, now_ms: int) -> None:
        state, sentence = judged(view, reported)
        if reported.process and reported.process != view.process:
            if view.process:
                self.event(now_ms, f"{name} is run by another process now", view.state)
            view.process, view.changed_ms = reported.process, now_ms
        if state is not view.state:
            if not {state, view.state} <= {State.STARTING, State.UP}:
                text = f"{name} is {state}" + (f": {sentence}" if sentence else "")
                self.event(now_ms, text, state)
            view.state, view.changed_ms = state, now_ms
        view.sentence, view.restarts = sentence, reported.restarts

    def event(self, now_ms: int, text: str, state: State = State.UP) -> None:
        """Remember that something has changed."""
        self.events.append({"at": now_ms, "text": text, "state": state.value})

    @property
    def lags(self) -> dict[str, int]:
        """Each log's lag, by name."""
        reached = dict(self.ends)
        for positions in self._positions.values():
            for name, place in positions.items():
                reached[name] = min(reached[name], place)
        return {name: end - reached[name] for name, end in self.ends.items()}

    @property
    def unhealthy(self) -> dict[str, str]:
        """Say of each collector that is not up what it is, and why; {} if all are."""
        return {
            name: f"{view.state}" + (f": {view.sentence}" if view.sentence else "")
            for name, view in self.collectors.items()
            if view.state is not State.UP
        }


def begun(plan: Plan, now_ms: int, before: LivePicture | None) -> LivePicture:
    """Begin the picture of a plan; what was known of a collector of the same name is kept."""
    known = {} if before is None else before.collectors
    names = [node.name for node in plan.collectors]
    views = {name: known.get(name, CollectorView(changed_ms=now_ms)) for name in names}
    picture = LivePicture(plan, now_ms, views)
    if before is not None:
        picture.events, picture.check = before.events, before.check
        picture.cluster = before.cluster
        picture.event(now_ms, f"epoch {plan.epoch} is in force, after epoch {before.plan.epoch}")
    return picture


def layout(picture: LivePicture) -> dict[str, Any]:
    """Describe what changes with a plan only: collectors, logs, consumers, and the last minute."""
    plan = picture.plan
    logs = {log.name: number for number, log in enumerate(plan.logs)}
    place = {node.name: number for number, node in enumerate(plan.collectors)}
    # From the root down: sorted, each comes after its parent.
    ways = sorted([place[node.name] for node in reversed(plan.path(name))] for name in place)
    return {
        "topic": plan.topic,
        "epoch": plan.epoch,
        "since": picture.epoch_ms,
        "collectors": [
            {
                "name": spec.name,
                "parent": spec.parent,
                "depth": len(way) - 1,
                "own": [logs[name] for name in plan.own_logs(spec.name)],
                "inherited": len(spec.bag) - len(plan.own_logs(spec.name)),
                "rates": [round(rate, 1) for rate in picture.collectors[spec.name].rates],
            }
            for way in ways
            for spec in [plan.collectors[way[-1]]]
        ],
        "logs": [
            {"name": log.name, "top": top.name if (top := plan.top(log.name)) else None}
            for log in plan.logs
        ],
        "consumers": [
            {"name": entry.name, "interest": list(entry.interest)} for entry in plan.consumers
        ],
    }


def moment(picture: LivePicture) -> dict[str, Any]:
    """Describe what changes from tick to tick; collectors by name, logs in the plan's order."""
    views, lags = picture.collectors.values(), picture.lags
    states = [view.state for view in views]
    return {
        "at": picture.now_ms,
        "epoch": picture.plan.epoch,
        "totals": {
            "rate": round(sum(mean(rates) for rates in picture.log_rates.values()), 1),
            "lag": sum(lags.values()),
            "collectors": len(states),
            "up": states.count(State.UP),
            "logs": len(picture.plan.logs),
            "late_logs": sum(lag > 0 for lag in lags.values()),
            "changed": max([picture.epoch_ms, *(view.changed_ms for view in views)]),
        },
        "collectors": {
            name: [
                view.state.value,
                round(view.rate, 1),
                round(mean(view.relays), 1),
                view.lag,
                view.restarts,
                view.changed_ms,
                view.sentence,
                round(view.rates[-1], 1) if view.rates else 0,
            ]
            for name, view in picture.collectors.items()
        },
        "logs": [_log(picture, log.name, lags) for log in picture.plan.logs],
        "check": dict(picture.check),
        "cluster": dict(picture.cluster),
        "unchecked": picture.unchecked,
        "events": list(picture.events),
    }


def _log(picture: LivePicture, name: str, lags: Mapping[str, int]) -> Sequence[float]:
    rate = mean(picture.log_rates.get(name, ()))
    return [picture.ends.get(name, 0), picture.ordered.get(name, 0), lags.get(name, 0),
            round(rate, 1)]  # fmt: skip


def worst_check(checks: Iterable[Any]) -> dict[str, Any]:
    """Choose among the running checks' verdicts the worst; {"state": "off"} if there is none."""
    rank = {"violated": 3, "starting": 2, "ok": 1}
    named = [check for check in checks if isinstance(check, Mapping)]
    known = [dict(check) for check in named if check.get("state") in rank]
    return max(known, key=lambda check: rank[check["state"]], default={"state": "off"})
