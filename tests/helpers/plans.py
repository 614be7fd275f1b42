"""Plans for tests: the poster's tree, and small ones made by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from multicast.control import genesis, plan_record
from multicast.order.runs import anchor, digest_of
from multicast.order.stream import OrderStream, StreamCheckpoint
from topology.check import figures
from topology.interests import from_document
from topology.planner.solver import plan as solve
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription

NOTHING = Objective(0.0, 0.0, 0.0, 0.0)


def poster(*, topic="A", destinations=(("P1", "P3"), ("P2", "P3", "P4"))) -> Plan:
    """The poster's toy example, with two wider destination sets."""
    return solve(
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


def began(plan: Plan) -> bytes:
    """Give the digest of the statement with which a topic's first plan begins its epoch."""
    return digest_of(plan_record(genesis(plan.topic), plan, attempt="1")[1])


def tag_in(plan: Plan, collector: str) -> bytes:
    """Give the tag of a collector's stream in a topic's first plan."""
    return anchor(plan.epoch, collector, began(plan))


def first_stream(
    plan: Plan, collector: str, checkpoint: StreamCheckpoint | None = None, **options: int
) -> OrderStream:
    """Open a collector's stream in a topic's first plan, whose logs begin at 0."""
    return OrderStream(plan, collector, from_start(plan), checkpoint, began=began(plan), **options)


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


def tree_plan(count: int, topic: str) -> Plan:
    """Lay out a binary tree: consumer i reads its own partition and its parent's.

    Each collector is the top of the log of its partition and of the log of the pair; the first is
    also the top of the log of the root's partition.
    """
    numbers = range(2, count + 2)
    partitions = tuple(f"P{number}" for number in range(1, count + 2))
    pair = {number: "+".join(sorted((f"P{number // 2}", f"P{number}"))) for number in numbers}
    logs = [Log(name, topic, number) for number, name in enumerate(partitions)]
    logs += [Log(pair[number], f"{topic}.groups", number - 2) for number in numbers]

    def bag(number: int) -> tuple[str, ...]:
        near = {number // 2, number}
        meets = [pair[other] for other in numbers if other in near or other // 2 in near]
        return tuple(sorted({*meets, f"P{number // 2}", f"P{number}"}))

    def parent(number: int) -> str | None:
        if number == numbers[0]:
            return None
        return f"K{max(number // 2, numbers[0])}"

    return priced(
        Plan(
            topic=topic,
            epoch=1,
            base_epoch=0,
            cluster_id="",
            input_hash="",
            partitions=partitions,
            logs=tuple(logs),
            collectors=tuple(
                CollectorSpec(f"K{number}", bag(number), parent(number), number - 2)
                for number in numbers
            ),
            consumers=tuple(
                Subscription(
                    f"C{number}", tuple(sorted((f"P{number // 2}", f"P{number}"))), f"K{number}"
                )
                for number in numbers
            ),
            objective=NOTHING,
        )
    )


def renamed(plan: Plan, *, name: Callable[[str], str] = "N{}".format) -> Plan:
    """Lay out the next epoch with new collectors for the same logs: none is retained."""
    place = 1 + max(node.stream for node in plan.collectors)
    return replace(
        plan,
        epoch=plan.epoch + 1,
        base_epoch=plan.epoch,
        collectors=tuple(
            replace(
                node,
                name=name(node.name),
                parent=None if node.parent is None else name(node.parent),
                stream=node.stream + place,
                stream_first=0,
            )
            for node in plan.collectors
        ),
        consumers=tuple(
            replace(subscription, collector=name(subscription.collector or ""))
            for subscription in plan.consumers
        ),
    )
