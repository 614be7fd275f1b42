"""Assembles the plan from the trees of all components: names, bags, streams and figures.

Collectors are named from the roots down, so the same trees give the same plan, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from fractions import Fraction
from typing import Any

from topology.interests import InterestFile
from topology.planner.cost import NOWHERE, Measure, TreeNode, bits
from topology.planner.hypergraph import declared_logs
from topology.tree import CollectorSpec, Objective, Plan, Subscription


def assembled(
    interests: InterestFile,
    trees: Sequence[tuple[Measure, TreeNode]],
    *,
    phi: float,
    gap: float | None,
    cluster_id: str,
    base_epoch: int,
) -> Plan:
    """Make the plan; collectors are named breadth first, and K1 is the first component's root."""
    collectors: list[CollectorSpec] = []
    reading: dict[str, str] = {}
    hops = foreign = excess = Fraction()
    pending: list[tuple[Measure, TreeNode, str | None, int]] = [
        (measure, node, None, NOWHERE) for measure, node in trees
    ]
    while pending:
        measure, node, parent, above = pending.pop(0)
        name = f"K{len(collectors) + 1}"
        component = measure.component
        below = [child.below for child in node.children]
        bag = bits(measure.bag(node.below, below))
        names = tuple(sorted(log for number in bag for log in component.classes[number].logs))
        host = None if node.host == NOWHERE or not interests.hosts else interests.hosts.names
        collectors.append(
            CollectorSpec(
                name=name,
                bag=names,
                parent=parent,
                stream=len(collectors),
                host=None if host is None else host[node.host],
            )
        )
        for demand in bits(node.served):
            reading.update(dict.fromkeys(component.demands[demand].consumers, name))
        near, far, over = measure.terms(node.below, below, host=node.host, parent=above)
        hops, foreign, excess = hops + near, foreign + far, excess + over
        children = sorted(node.children, key=lambda child: child.below & -child.below)
        pending.extend((measure, child, name, node.host) for child in children)
    limits, given = asdict(interests.limits), interests.hosts
    hosts: Mapping[str, Any] = {}
    if given is not None:
        latency = [list(row) for row in given.latency]
        hosts = {"names": list(given.names), "latency": latency, "leaders": dict(given.leaders)}
    cost = hops + Fraction(repr(float(phi))) * (foreign + excess)
    return Plan(
        topic=interests.topic,
        epoch=base_epoch + 1,
        base_epoch=base_epoch,
        cluster_id=cluster_id,
        input_hash=interests.input_hash,
        partitions=interests.partitions,
        logs=declared_logs(interests),
        collectors=tuple(collectors),
        consumers=tuple(
            Subscription(entry.name, entry.interest, reading.get(entry.name), entry.weight)
            for entry in interests.consumers
        ),
        objective=Objective(float(hops), float(foreign), float(cost), gap, float(excess)),
        phi=float(phi),
        rates=dict(interests.rates),
        limits={name: float(limit) for name, limit in limits.items() if limit is not None},
        hosts=hosts,
    )
