"""Which collectors and logs a new plan retains: it does not interrupt them.

`retained` takes the plans of two successive epochs. A retained collector does not freeze, and a
retained log is neither marked nor filled. Their streams continue under the plan that they began
with, and their consumers do not notice the change. No I/O.

    part   a tree of collectors with all logs in their bags; or one log in no collector's bag.
           (The collectors that hold one log are connected, so a log is in one tree only.)

A part is retained if and only if both plans have it unchanged: the same collectors with the same
bags, parents and streams; the same logs in the same Kafka partitions; the same consumers; and the
partitions of its logs are in the same logs. (A log of a new destination set would be missing from
the order that these consumers read, because they read this part only.)

This is a rule of the protocol, like the acceptance of order records: all readers of the two plans
must get the same result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topology.tree import CollectorSpec, Plan


@dataclass(frozen=True, slots=True)
class Retained:
    """The names of the collectors and logs that continue from one epoch into the next."""

    collectors: frozenset[str]
    logs: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Part:
    collectors: frozenset[tuple[str, frozenset[str], str | None, int]]
    logs: frozenset[tuple[str, str, int, int]]
    consumers: frozenset[tuple[str, tuple[str, ...], str | None]]
    met: frozenset[str]  # the logs on the partitions of its logs


def retained(before: Plan, after: Plan) -> Retained:
    """Give what `after`, the plan of the next epoch, leaves unchanged from `before`."""
    if before.order_version != after.order_version:  # other programs read what follows
        return Retained(frozenset(), frozenset())
    same = set(_parts(before)) & set(_parts(after))
    return Retained(
        frozenset(node[0] for part in same for node in part.collectors),
        frozenset(log[0] for part in same for log in part.logs),
    )


def _parts(plan: Plan) -> Iterator[_Part]:
    trees: dict[str, list[CollectorSpec]] = {}
    for node in plan.collectors:
        trees.setdefault(plan.path(node.name)[-1].name, []).append(node)
    collected = {name for node in plan.collectors for name in node.bag}
    for tree in trees.values():
        yield _part(plan, tree, {name for node in tree for name in node.bag})
    for log in plan.logs:
        if log.name not in collected:
            yield _part(plan, (), {log.name})


def _part(plan: Plan, tree: Sequence[CollectorSpec], names: set[str]) -> _Part:
    logs = [plan.log(name) for name in names]
    return _Part(
        frozenset((node.name, frozenset(node.bag), node.parent, node.stream) for node in tree),
        frozenset((log.name, log.topic, log.partition, log.life) for log in logs),
        frozenset(
            (entry.name, entry.interest, entry.collector)
            for entry in plan.consumers
            if any(log.name in names for log in plan.logs_of(entry.interest))
        ),
        frozenset(log.name for log in plan.logs_of({name for log in logs for name in log.to})),
    )
