"""What of a topic a new plan leaves as it is: whole trees, and logs that nobody collects.

Goes in: the plans of two epochs in a row. Comes out: the collectors and logs that are carried over.
They take no part in the change: nothing of theirs freezes, is marked or filled, their streams go on
under the plan that they began with, and their consumers see nothing of it. Pure.

    part   a tree of collectors with all logs in their bags; or one log that no collector has.
           (The bags of one log hang together, so it is in one tree.)

A part is carried over iff both plans have it alike: the same collectors with the same bags, parents
and streams; the same logs in the same places; the same consumers; and on the partitions of its logs
no other log in one plan than in the other. (A log of a new destination set would be missing from
what those consumers deliver, whose order the part alone decides.)

This is a rule of the protocol, as the acceptance of order records is: whoever reads two plans must
come to the same answer, for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topology.tree import CollectorSpec, Plan


@dataclass(frozen=True, slots=True)
class Retained:
    """The names of what goes on from one epoch into the next without a break."""

    collectors: frozenset[str]
    logs: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Part:
    collectors: frozenset[tuple[str, frozenset[str], str | None, int]]
    logs: frozenset[tuple[str, str, int]]
    consumers: frozenset[tuple[str, tuple[str, ...], str | None]]
    met: frozenset[str]  # the logs on the partitions of its logs


def retained(before: Plan, after: Plan) -> Retained:
    """Say what the plan of the next epoch leaves as it is."""
    same = set(_parts(before)) & set(_parts(after))
    return Retained(
        frozenset(node[0] for part in same for node in part.collectors),
        frozenset(log[0] for part in same for log in part.logs),
    )


def _parts(plan: Plan) -> Iterator[_Part]:
    trees: dict[str, list[CollectorSpec]] = {}
    for node in plan.collectors:
        trees.setdefault(_root(plan, node), []).append(node)
    collected = {name for node in plan.collectors for name in node.bag}
    for tree in trees.values():
        yield _part(plan, tree, {name for node in tree for name in node.bag})
    for log in plan.logs:
        if log.name not in collected:
            yield _part(plan, (), {log.name})


def _root(plan: Plan, node: CollectorSpec) -> str:
    while node.parent is not None:
        node = plan.collector(node.parent)
    return node.name


def _part(plan: Plan, tree: Sequence[CollectorSpec], names: set[str]) -> _Part:
    logs = [plan.log(name) for name in names]
    return _Part(
        frozenset((node.name, frozenset(node.bag), node.parent, node.stream) for node in tree),
        frozenset((log.name, log.topic, log.partition) for log in logs),
        frozenset(
            (entry.name, entry.interest, entry.collector)
            for entry in plan.consumers
            if any(log.name in names for log in plan.logs_of(entry.interest))
        ),
        frozenset(log.name for log in plan.logs_of({name for log in logs for name in log.to})),
    )
