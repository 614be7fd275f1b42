"""The work that a plan gives to each collector, log by log, as sets of logs.

For a message, the plan calls for work by the collectors that serve a consumer that the message
addresses, and by these consumers. All other work is foreign. This module says which logs are which;
rates, counts and prices are the caller's. The planner and the checker of plans do not use it: they
compute the same independently.

    collector   appends   its bag: it orders an entry itself, or takes it over from its parent
                wanted    the logs that a consumer which reads this collector wants
                passes_on appended and not wanted: foreign
                reads     the parent's bag: a collector reads its parent's whole stream
                drops     read and not in its own bag: foreign
"""

from __future__ import annotations

from dataclasses import dataclass

from topology.tree import CollectorSpec, Plan


@dataclass(frozen=True, slots=True)
class CollectorWork:
    """The logs whose entries a collector appends, passes on, reads above, and drops."""

    appends: frozenset[str]
    passes_on: frozenset[str]
    reads: frozenset[str]
    drops: frozenset[str]


def collector_work(plan: Plan, node: CollectorSpec) -> CollectorWork:
    """Give the work of one collector of the plan."""
    appends = frozenset(node.bag)
    wanted = {
        log.name
        for entry in plan.consumers
        if entry.collector == node.name
        for log in plan.logs_of(entry.interest)
    }
    reads = frozenset() if node.parent is None else frozenset(plan.collector(node.parent).bag)
    return CollectorWork(appends, appends - wanted, reads, reads - appends)
