"""Model checker: explores every interleaving of the real collector cores in small worlds.

It searches version 1 of the order records first, then the scopes of version 2, which
`bench.tickets.exhaustive` describes. Version 1's world has two collectors (a root that orders P2
and P3, a child that adds P1), two instances of one of them or of both, up to four messages, one
crash and one lost append. The search is breadth first: it takes every possible step from each
state, and visits equal states once. Nothing is drawn at random, so no behaviour of this size is
missed.

    state       the lengths of the logs, the records of the streams, the knowledge of every
                instance, the appends in flight, and the remaining messages and faults
    step        a message arrives; an instance reads all records and writes; its first append in
                flight is stored or lost; it crashes and restarts
    at rest     of a state: only messages and faults can still change it

Checked in every state: each log is ordered without gaps and repetitions, and the child's order,
restricted to the root's logs, is a prefix of the root's. Checked at rest: both have ordered every
message.

    python -m bench.exhaustive [--roots 1] [--children 2] [--messages 2] [--rule digest|possible]

`--rule possible` ignores the digest: every record that the positions allow is accepted. This rule
must fail; the shortest path to a violation is printed.

    python -m bench.exhaustive --order-version 2 [--scope NAME] [--larger]

The exit code is 3 for a violation.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.tickets.exhaustive import ScopeExplorer, ScopeResult
from bench.tickets.scopes import LARGER, SCOPES, Scope
from collectors.collector import Append, Collector, CollectorLimits
from multicast.order import OrderRecord, OrderStream, Void
from topology.tree import DIGEST_BYTES, CollectorSpec, Log, Objective, Plan

LOGS = ("P1", "P2", "P3")
ROOT, CHILD = 0, 1
NAMES = ("root", "child")
ARRIVALS = (1, 2, 0, 1, 2, 0)  # the log of each message in turn; the search decides when it arrives
LIMITS = CollectorLimits(run_length_max=1, runs_max=1, pending_max=2)

PLAN = Plan(
    topic="A",
    epoch=1,
    base_epoch=0,
    cluster_id="",
    input_hash="",
    partitions=LOGS,
    logs=tuple(Log(name, "A", place) for place, name in enumerate(LOGS)),
    collectors=(
        CollectorSpec("root", ("P2", "P3"), None, ROOT),
        CollectorSpec("child", ("P1", "P2", "P3"), "root", CHILD),
    ),
    consumers=(),
    objective=Objective(0.0, 0.0, 0.0, 0.0),
)
STARTS = dict.fromkeys(LOGS, 0)
OWN_LOGS = ((1, 2), (0,))


class PossibleStream(OrderStream):
    """The broken rule: a record is accepted if the positions allow it, whatever it extends."""

    def read(self, offset: int, raw: bytes | None) -> OrderRecord | Void | None:
        """Read a record as if it extended the last accepted one."""
        raw = raw or b""
        return super().read(offset, raw[:3] + self.state.digest + raw[3 + DIGEST_BYTES :])


RULES: dict[str, type[OrderStream]] = {"digest": OrderStream, "possible": PossibleStream}


@dataclass(frozen=True, slots=True)
class ExploredInstance:
    """One instance of a collector: its core (never changed in place), and its appends in flight."""

    node: int
    core: Collector
    in_flight: tuple[bytes, ...]
    knows: tuple[Any, ...]  # all that the core's next steps depend on


@dataclass(frozen=True, slots=True)
class WorldState:
    """One state of the world."""

    ends: tuple[int, ...]
    streams: tuple[tuple[bytes, ...], ...]
    instances: tuple[ExploredInstance, ...]
    messages_left: int
    crashes_left: int
    losses_left: int

    @property
    def key(self) -> tuple[Any, ...]:
        """The value by which two states are equal."""
        return (
            self.ends,
            self.streams,
            # Instances of one collector are interchangeable.
            tuple(
                sorted(
                    [
                        (instance.node, instance.in_flight, instance.knows)
                        for instance in self.instances
                    ]
                )
            ),
            self.messages_left,
            self.crashes_left,
            self.losses_left,
        )


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result: counts, and a violation with the steps to it; "" if there is none."""

    states: int
    steps: int
    at_rest: int
    violation: str
    path: tuple[str, ...]


class Explorer:
    """Explores all reachable states, up to the first that is wrong."""

    def __init__(
        self,
        *,
        rule: str = "digest",
        roots: int = 1,
        children: int = 2,
        messages: int = 2,
        crashes: int = 1,
        losses: int = 1,
    ) -> None:
        self._stream = RULES[rule]
        instances = [self._begin(node) for node in (ROOT,) * roots + (CHILD,) * children]
        self._first = WorldState((0, 0, 0), ((), ()), tuple(instances), messages, crashes, losses)

    def explore(self) -> Exploration:
        """Visit every state once."""
        came_from: dict[tuple[Any, ...], tuple[tuple[Any, ...] | None, str]] = {
            self._first.key: (None, "")
        }
        waiting = deque([self._first])
        steps = at_rest = 0
        judged: set[tuple[Any, ...]] = set()
        while waiting:
            state = waiting.popleft()
            key = state.key
            resting = True
            for step, other in self._steps(state):
                steps += 1
                other_key = other.key
                if other_key == key:
                    continue
                resting &= step.startswith(("a message", "lost", "crashes"))
                if other_key not in came_from:
                    came_from[other_key] = (key, step)
                    waiting.append(other)
            wrong = ""
            if state.streams not in judged:
                judged.add(state.streams)
                wrong = self._wrong(state)
            if resting:
                at_rest += 1
                wrong = wrong or self._unfinished(state)
            if wrong:
                return Exploration(len(came_from), steps, at_rest, wrong, _path(came_from, key))
        return Exploration(len(came_from), steps, at_rest, "", ())

    # -- steps ------------------------------------------------------------------------------

    def _begin(self, node: int, own_end: int = 0) -> ExploredInstance:
        own = self._stream(PLAN, NAMES[node], STARTS)
        parent = self._stream(PLAN, NAMES[ROOT], STARTS) if node == CHILD else None
        core = Collector(own, parent, writer=0, limits=LIMITS)
        core.own_end(own_end)
        return ExploredInstance(node, core, (), _knowledge(core))

    def _steps(self, state: WorldState) -> Iterator[tuple[str, WorldState]]:
        if state.messages_left:
            coming = ARRIVALS[sum(state.ends)]
            ends = tuple([end + (log == coming) for log, end in enumerate(state.ends)])
            fewer = state.messages_left - 1
            step = f"a message comes to {LOGS[coming]}"
            yield step, replace(state, ends=ends, messages_left=fewer)
        for place, instance in enumerate(state.instances):
            who = f"{NAMES[instance.node]} {place}"
            yield f"{who} reads and writes", _with(state, place, _turn(state, instance))
            if instance.in_flight:
                left = replace(instance, in_flight=instance.in_flight[1:])
                yield f"{who}'s append lands", _landed(_with(state, place, left), instance)
                if state.losses_left:
                    lost = _with(state, place, _lose(left))
                    yield f"lost: {who}'s append", replace(lost, losses_left=state.losses_left - 1)
            if state.crashes_left:
                # The appends in flight are gone; on other paths they were stored before the crash.
                begun = self._begin(instance.node, len(state.streams[instance.node]))
                anew = _with(state, place, begun)
                yield f"crashes: {who}", replace(anew, crashes_left=state.crashes_left - 1)

    # -- what must hold -----------------------------------------------------------------------

    def _order(self, state: WorldState, node: int) -> list[tuple[int, int]]:
        """Return the message IDs (log, offset) that a stream orders, in order."""
        stream = self._stream(PLAN, NAMES[node], STARTS)
        order: list[tuple[int, int]] = []
        for offset, raw in enumerate(state.streams[node]):
            judged = stream.read(offset, raw)
            if isinstance(judged, OrderRecord):
                order += [
                    (log, offset) for log, first, end in judged.runs for offset in range(first, end)
                ]
        return order

    def _wrong(self, state: WorldState) -> str:
        root, child = self._order(state, ROOT), self._order(state, CHILD)
        for name, order in (("root", root), ("child", child)):
            for log in range(len(LOGS)):
                offsets = [offset for number, offset in order if number == log]
                if offsets != list(range(len(offsets))):
                    return f"the {name} orders {LOGS[log]} as {offsets}"
        shared = [entry for entry in child if entry[0] in OWN_LOGS[ROOT]]
        if shared != root[: len(shared)]:
            return f"the child orders {_order_text(shared)}, the root {_order_text(root)}"
        return ""

    def _unfinished(self, state: WorldState) -> str:
        for node, logs in ((ROOT, (1, 2)), (CHILD, (0, 1, 2))):
            ordered = len(self._order(state, node))
            if ordered != sum(state.ends[log] for log in logs):
                return f"all is at rest, and the {NAMES[node]} has ordered {ordered} messages only"
        return ""


# -- one instance -------------------------------------------------------------------------------


def _fork(core: Collector) -> Collector:
    """Copy a core; the copies share the plan, which never changes."""
    return copy.deepcopy(core, {id(PLAN): PLAN})


def _knowledge(core: Collector) -> tuple[Any, ...]:
    """List all on which a core's future depends. Only this function reads its private fields."""
    speculated, parent = core._speculated, core.parent  # noqa: SLF001
    return (
        core.own.offset_next,
        core.own.state.digest,
        speculated.digest,
        tuple(core._pending),  # noqa: SLF001
        tuple([(relayed.after, relayed.runs) for relayed in core._relay]),  # noqa: SLF001
        tuple(sorted(core._ends.items())),  # noqa: SLF001
        core._own_end or 0,  # noqa: SLF001
        core._turn,  # noqa: SLF001
        (0, b"") if parent is None else (parent.offset_next, parent.state.digest),
    )


def _with(state: WorldState, place: int, instance: ExploredInstance) -> WorldState:
    others = state.instances
    return replace(state, instances=(*others[:place], instance, *others[place + 1 :]))


def _turn(state: WorldState, instance: ExploredInstance) -> ExploredInstance:
    """Let an instance read all records, and start the appends that its core wants."""
    core, own = _fork(instance.core), state.streams[instance.node]
    for offset in range(core.own.offset_next, len(own)):
        core.own_read(offset, own[offset])
    for log in OWN_LOGS[instance.node]:
        core.log_end(log, state.ends[log])
    if core.parent is not None:
        above = state.streams[ROOT]
        for offset in range(core.parent.offset_next, len(above)):
            core.parent_read(offset, above[offset])
    raws = tuple([action.raw for action in core.step(0) if isinstance(action, Append)])
    return ExploredInstance(instance.node, core, instance.in_flight + raws, _knowledge(core))


def _lose(instance: ExploredInstance) -> ExploredInstance:
    core = _fork(instance.core)
    core.append_failed()
    return ExploredInstance(instance.node, core, instance.in_flight, _knowledge(core))


def _landed(state: WorldState, instance: ExploredInstance) -> WorldState:
    streams = list(state.streams)
    streams[instance.node] = (*streams[instance.node], instance.in_flight[0])
    return replace(state, streams=tuple(streams))


def _order_text(order: Sequence[tuple[int, int]]) -> str:
    return " ".join(f"{LOGS[log]}:{offset}" for log, offset in order) or "nothing"


def _path(
    came_from: dict[tuple[Any, ...], tuple[tuple[Any, ...] | None, str]], key: tuple[Any, ...]
) -> tuple[str, ...]:
    path: list[str] = []
    state_key: tuple[Any, ...] | None = key
    while state_key is not None:
        state_key, step = came_from[state_key]
        path.append(step)
    return tuple(reversed(path[:-1]))


def _search_version_1(options: argparse.Namespace) -> bool:
    """Search and report; return whether nothing is violated."""
    began = time.monotonic()
    exploration = Explorer(
        rule=options.rule,
        roots=options.roots,
        children=options.children,
        messages=options.messages,
        crashes=options.crashes,
        losses=options.losses,
    ).explore()
    return _report(exploration, time.monotonic() - began)


def _search_version_2(scopes: dict[str, Scope]) -> bool:
    """Search and report up to the first violation; return whether there is none."""
    for name, scope in scopes.items():
        sys.stdout.write(f"version 2, {name}: ")
        sys.stdout.flush()
        began = time.monotonic()
        if not _report(ScopeExplorer(scope).explore(), time.monotonic() - began):
            return False
    return True


def _report(exploration: Exploration | ScopeResult, seconds: float) -> bool:
    lines = [
        (
            f"states {exploration.states:,}  steps {exploration.steps:,}  "
            f"at rest {exploration.at_rest:,}  seconds {seconds:.1f}"
        ),
        *([f"violated: {exploration.violation}"] if exploration.violation else []),
        *(f"  {number}. {step}" for number, step in enumerate(exploration.path, 1)),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return not exploration.violation


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code, 3 for a violation."""
    parser = argparse.ArgumentParser(prog="python -m bench.exhaustive", description=__doc__)
    parser.add_argument("--order-version", type=int, choices=(1, 2), help="without it, both")
    parser.add_argument("--roots", type=int, default=1)
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--messages", type=int, default=2)
    parser.add_argument("--crashes", type=int, default=1)
    parser.add_argument("--losses", type=int, default=1)
    parser.add_argument("--rule", choices=sorted(RULES), default="digest")
    parser.add_argument("--scope", choices=[*SCOPES, *LARGER], help="one scope of version 2")
    parser.add_argument("--larger", action="store_true", help="the larger scopes of version 2, too")
    options = parser.parse_args(arguments)
    every = SCOPES | LARGER
    scopes = every if options.larger else SCOPES
    if options.scope:
        scopes = {options.scope: every[options.scope]}
    clean = options.order_version == 2 or _search_version_1(options)
    clean = clean and (options.order_version == 1 or _search_version_2(scopes))
    if clean:
        sys.stdout.write("nothing is violated\n")
    return 0 if clean else 3


if __name__ == "__main__":
    sys.exit(main())
