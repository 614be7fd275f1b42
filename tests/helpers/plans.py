"""Plans for tests: the poster's tree, and small ones made by hand."""

from __future__ import annotations

from dataclasses import replace

from topology.carry_over import with_order_version
from topology.check import figures
from topology.interests import from_document
from topology.planner.solver import plan as solve
from topology.tree import ORDER_VERSION_FIRST, CollectorSpec, Log, Objective, Plan, Subscription

NOTHING = Objective(0.0, 0.0, 0.0, 0.0)


def poster(*, topic="A", destinations=(("P1", "P3"), ("P2", "P3", "P4"))) -> Plan:
    """The poster's toy example, with two wider destination sets, in version 1.

    So the plans of this module, which tests of the rules use, are of one version.
    """
    made = solve(
        from_document(
            {
                "topic": topic,
                "partitions": ["P1", "P2", "P3", "P4", "P5"],
                "destinations": [list(to) for to in destinations],
                "consumer": [
                    {"name": "C1", "interest": ["P1", "P2", "P3"]},
                    {"name": "C2", "interest": ["P2", "P3", "P4"]},
                    {"name": "C3", "interest": ["P3", "P4", "P5"]},
                ],
            }
        )
    )
    return with_order_version(made, ORDER_VERSION_FIRST)


def chain(*, epoch=1, topic="A") -> Plan:
    """Two collectors: K1 decides P1 and P2, K2 takes P2 from it and adds P3; P4 is read alone."""
    partitions = ("P1", "P2", "P3", "P4")
    return Plan(
        topic=topic,
        epoch=epoch,
        base_epoch=epoch - 1,
        cluster_id="",
        input_hash="",
        partitions=partitions,
        logs=tuple(Log(name, topic, number) for number, name in enumerate(partitions)),
        collectors=(
            CollectorSpec("K1", ("P1", "P2"), None, 0),
            CollectorSpec("K2", ("P2", "P3"), "K1", 1),
        ),
        consumers=(
            Subscription("C1", ("P1", "P2"), "K1"),
            Subscription("C2", ("P2", "P3"), "K2"),
            Subscription("C4", ("P4",), None),
        ),
        objective=NOTHING,
    )


def from_start(plan: Plan) -> dict[str, int]:
    """Starts for an epoch in which every log begins at 0."""
    return {log.name: 0 for log in plan.logs}


def with_foreign_work(*, epoch=1, topic="A") -> Plan:
    """Four collectors with each kind of foreign work.

    K0 serves nobody and passes on for K1 and K2. K1 drops P3 of K0's stream, K2 drops P1, and K3
    drops P1 and P2 of K1's. C1 drops P4, C3 drops P2; C5 reads one log alone.
    """
    partitions = ("P1", "P2", "P3", "P4", "P5", "P6")
    return priced(
        Plan(
            topic=topic,
            epoch=epoch,
            base_epoch=epoch - 1,
            cluster_id="",
            input_hash="",
            partitions=partitions,
            logs=tuple(Log(name, topic, number) for number, name in enumerate(partitions)),
            collectors=(
                CollectorSpec("K0", ("P1", "P2", "P3"), None, 0),
                CollectorSpec("K1", ("P1", "P2", "P4"), "K0", 1),
                CollectorSpec("K2", ("P2", "P3"), "K0", 2),
                CollectorSpec("K3", ("P4", "P5"), "K1", 3),
            ),
            consumers=(
                Subscription("C1", ("P1", "P2"), "K1"),
                Subscription("C2", ("P2", "P3"), "K2"),
                Subscription("C3", ("P1", "P4"), "K1"),
                Subscription("C4", ("P4", "P5"), "K3"),
                Subscription("C5", ("P6",), None),
            ),
            objective=NOTHING,
        )
    )


def priced(plan: Plan) -> Plan:
    """Give a plan made by hand the objective that the checker computes."""
    computed = figures(plan)
    promised = Objective(computed.hops, computed.foreign, computed.cost, 1.0, computed.excess)
    return replace(plan, objective=promised)
