"""Plans for tests: the poster's tree, and small ones made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from multicast.control import genesis, plan_record
from multicast.order.runs import anchor, digest_of
from multicast.order.stream import OrderStream, StreamCheckpoint
from topology.check import figures
from topology.interests import from_document
from topology.planner.solver import plan as solve
from topology.tree import CollectorSpec, Log, Objective, Plan, Subscription
from topology.work import collector_work

Placed = Mapping[str, tuple[Sequence[str], str | None]]


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


def by_hand(
    logs: Sequence[str], collectors: Placed, consumers: Placed, *, epoch: int = 1, topic: str = "A"
) -> Plan:
    """Make a plan of {collector: (bag, parent)} and {consumer: (interest, collector)}.

    Partitions, wider logs and streams have their Kafka partitions in the order given.
    """
    alone = [name for name in logs if "+" not in name]
    numbers = {name: number for number, name in enumerate(alone)}
    numbers |= {name: number for number, name in enumerate(n for n in logs if "+" in n)}
    return Plan(
        topic=topic,
        epoch=epoch,
        base_epoch=epoch - 1,
        cluster_id="",
        input_hash="",
        partitions=tuple(alone),
        logs=tuple(
            Log(name, f"{topic}.groups" if "+" in name else topic, numbers[name]) for name in logs
        ),
        collectors=tuple(
            CollectorSpec(name, tuple(bag), parent, stream)
            for stream, (name, (bag, parent)) in enumerate(collectors.items())
        ),
        consumers=tuple(
            Subscription(name, tuple(interest), collector)
            for name, (interest, collector) in consumers.items()
        ),
        objective=Objective(0.0, 0.0, 0.0, 0.0),
    )


def chain(*, epoch=1, topic="A") -> Plan:
    """Two collectors: K1 decides P1 and P2, K2 takes P2 from it and adds P3; P4 is read alone."""
    return by_hand(
        ("P1", "P2", "P3", "P4"),
        {"K1": (("P1", "P2"), None), "K2": (("P2", "P3"), "K1")},
        {"C1": (("P1", "P2"), "K1"), "C2": (("P2", "P3"), "K2"), "C4": (("P4",), None)},
        epoch=epoch,
        topic=topic,
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
    return priced(
        by_hand(
            ("P1", "P2", "P3", "P4", "P5", "P6"),
            {
                "K0": (("P1", "P2", "P3"), None),
                "K1": (("P1", "P2", "P4"), "K0"),
                "K2": (("P2", "P3"), "K0"),
                "K3": (("P4", "P5"), "K1"),
            },
            {
                "C1": (("P1", "P2"), "K1"),
                "C2": (("P2", "P3"), "K2"),
                "C3": (("P1", "P4"), "K1"),
                "C4": (("P4", "P5"), "K3"),
                "C5": (("P6",), None),
            },
            epoch=epoch,
            topic=topic,
        )
    )


def predicted(plan: Plan, sent: dict[str, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Give by collector, kind and log what a plan has it count of the entries that were sent."""
    made = {}
    for node in plan.collectors:
        work = collector_work(plan, node)
        kinds = {
            "appended": work.appends,
            "passed_on": work.passes_on,
            "read": work.reads,
            "dropped": work.drops,
        }
        made[node.name] = {
            kind: {log: sent[log] for log in sorted(logs)} for kind, logs in kinds.items()
        }
    return made


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
    partitions = [f"P{number}" for number in range(1, count + 2)]
    near = {number: sorted((f"P{number // 2}", f"P{number}")) for number in numbers}
    pair = {number: "+".join(names) for number, names in near.items()}

    def bag(number: int) -> list[str]:
        ends = {number // 2, number}
        meets = [pair[other] for other in numbers if other in ends or other // 2 in ends]
        return sorted({*meets, *near[number]})

    parents = {number: f"K{max(number // 2, 2)}" if number > 2 else None for number in numbers}
    return priced(
        by_hand(
            [*partitions, *pair.values()],
            {f"K{number}": (bag(number), parents[number]) for number in numbers},
            {f"C{number}": (near[number], f"K{number}") for number in numbers},
            topic=topic,
        )
    )
