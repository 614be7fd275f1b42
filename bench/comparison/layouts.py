"""Lays out a workload for an arm: its partitions, its consumers, and the plan that orders them.

`lay_out` takes a `Workload` and an arm, and returns a `Layout`, with a plan if the arm has one. No
Kafka is used here. Every destination set is a single partition, so the number of a partition is
that of its Kafka partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.comparison.workload import ORDERING, Workload
from topology.check import figures
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription

_SHARED = 0


@dataclass(frozen=True, slots=True)
class RunningConsumer:
    """One running consumer: its name in the plan, and the numbers of its partitions."""

    name: str
    interest: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """An arm's partitions, consumers and plan; messages go to the partitions in `targets`."""

    partitions: tuple[str, ...]
    targets: tuple[int, ...]
    consumers: tuple[RunningConsumer, ...]
    plan: Plan | None

    def expected(self, destinations: Sequence[int], reading: RunningConsumer) -> int:
        """Count the messages that are addressed to a consumer."""
        return sum(to in reading.interest for to in destinations)


def lay_out(workload: Workload, arm: str, topic: str) -> Layout:
    """Make an arm's layout on a topic."""
    size = workload.size
    if workload.kind == "one":
        names = tuple(f"P{number}" for number in range(1, size + 1))
        every = tuple(range(size))
        readings = (RunningConsumer("C1", every),)
        tree = _tree(topic, names, readings, single=True)
        return Layout(names, every, readings, tree if arm in ORDERING else None)
    names = ("S", *(f"P{number}" for number in range(1, size + 1)))
    planned = tuple(
        RunningConsumer(f"C{number}", (_SHARED, number)) for number in range(1, size + 1)
    )
    chain = workload.kind == "tree"
    run = planned[-1:] if chain else planned
    own = tuple(reading.interest[1] for reading in run)
    return Layout(
        names,
        (_SHARED,) if workload.to == "shared" else own,
        run,
        _tree(topic, names, planned, single=arm == "single-root", chain=chain)
        if arm in ORDERING
        else None,
    )


def _tree(
    topic: str,
    names: tuple[str, ...],
    readings: Sequence[RunningConsumer],
    *,
    single: bool,
    chain: bool = False,
) -> Plan:
    """Make a plan: one collector for all, or one a consumer, in a chain or below the first."""
    collectors: tuple[CollectorSpec, ...]
    if single:
        collectors = (CollectorSpec("K1", tuple(sorted(names)), None, 0),)
    else:
        collectors = tuple(
            CollectorSpec(
                f"K{index + 1}",
                tuple(sorted(names[number] for number in reading.interest)),
                None if index == 0 else f"K{index if chain else 1}",
                index,
            )
            for index, reading in enumerate(readings)
        )
    plan = Plan(
        topic=topic,
        epoch=1,
        base_epoch=0,
        cluster_id="",
        input_hash="",
        partitions=names,
        logs=tuple(Log(name, topic, number) for number, name in enumerate(names)),
        collectors=collectors,
        consumers=tuple(
            Subscription(
                reading.name,
                tuple(sorted(names[number] for number in reading.interest)),
                "K1" if single else collectors[index].name,
            )
            for index, reading in enumerate(readings)
        ),
        objective=Objective(0.0, 0.0, 0.0, 0.0),
    )
    promised = figures(plan)
    return replace(plan, objective=Objective(promised.hops, promised.foreign, promised.cost, 0.0))
