"""The topics of a plan: those that stand, those that `apply` would make, and what speaks against.

Nothing is made here before `make_topics`; what it would make is judged first, as the brokers say
that they would make it. So an `apply` that is refused leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from collectors.doctor.facts import FOR_EVER, PartitionFacts, Role, TopicFacts
from collectors.doctor.inspection import inspect_topics
from multicast.control import control_partition, order_topic
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import Conflict, UsageError
from topology.tree import Plan

_DAY_MS = 24 * 3600 * 1000
_SEEN = ("cleanup.policy", "min.insync.replicas", "retention.ms", "retention.bytes")


def topics_of(plan: Plan) -> dict[str, int]:
    """Name a plan's topics and how many Kafka partitions each needs at least."""
    counts: dict[str, int] = {plan.topic: len(plan.partitions)}
    for log in plan.logs:
        counts[log.topic] = max(counts.get(log.topic, 1), log.partition + 1)
    streams = [node.stream + 1 for node in plan.collectors]
    counts[order_topic(plan.topic)] = max(streams, default=1)
    return counts


def topics_ahead(admin: Admin, plan: Plan) -> tuple[TopicFacts, ...]:
    """Give the plan's topics as they will be: what exists as it is, the rest as it would be made.

    Raises `AmcastError` where the brokers would not make one. What cannot be seen is left out.
    """
    control = control_partition(plan.topic).topic
    existing = {one.name: one for one in inspect_topics(admin, plan, [])}
    orders = order_topic(plan.topic)
    found: list[TopicFacts] = []
    for name, count in topics_of(plan).items():
        if name != orders:
            found += _ahead(admin, existing, name, Role.DATA, TopicSpec(count))
    spec = _order_spec(plan, [one.kept_ms for one in found])
    found += _ahead(admin, existing, orders, Role.ORDER, spec)
    found += _ahead(admin, existing, control, Role.CONTROL, _CONTROL)
    return tuple(found)


def _ahead(
    admin: Admin, existing: Mapping[str, TopicFacts], name: str, role: Role, spec: TopicSpec
) -> list[TopicFacts]:
    if name in existing:
        return [existing[name]]
    told = admin.would_make(name, spec)
    if told is None or any(key not in told[1] for key in _SEEN):
        return []
    replication, settings = told
    replicas = tuple(range(replication))
    partitions = tuple(PartitionFacts(n, 0, replicas, replicas) for n in range(spec.partitions))
    return [TopicFacts(name, role, settings, partitions)]


_CONTROL = TopicSpec(1, settings={"cleanup.policy": "compact"})


def _order_spec(plan: Plan, kept_ms: Iterable[int]) -> TopicSpec:
    # The order of a message is written about when the message is; a day more is ample.
    kept = list(kept_ms)
    longest = FOR_EVER if FOR_EVER in kept or not kept else max(kept) + _DAY_MS
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": str(longest),
        "retention.bytes": str(FOR_EVER),
    }
    return TopicSpec(topics_of(plan)[order_topic(plan.topic)], settings=settings)


def make_topics(admin: Admin, plan: Plan) -> list[str]:
    """Make what is missing with the cluster's own replication, the control topic last."""
    counts = topics_of(plan)
    orders = order_topic(plan.topic)
    data = {name: TopicSpec(count) for name, count in counts.items() if name != orders}
    made = admin.create_topics(data)
    kept = [int(one["retention.ms"]) for one in admin.topic_settings(list(data)).values()]
    made += admin.create_topics({orders: _order_spec(plan, kept)})
    return made + admin.create_topics({control_partition(plan.topic).topic: _CONTROL})


def refuse_partitions(
    driver: Driver, admin: Admin, plan: Plan, running: Plan | None, *, add_partitions: bool
) -> None:
    """Raise where the plan does not fit the number of partitions that its topics have.

    The topic that is multicast on may be others', too: all its partitions must be ordered, and it
    is grown only where that is asked for. Those beside it are ours alone: `Conflict` where one that
    no plan knows holds something already.
    """
    counts = admin.partitions(list(topics_of(plan)))
    refuse_fewer(plan.topic, plan.partitions, counts.get(plan.topic))
    wanted, has = topics_of(plan)[plan.topic], counts.get(plan.topic, 0)
    if 0 < has < wanted and not add_partitions:
        raise UsageError(
            f"topic {plan.topic} has {has} partitions and the plan {wanted}: {GROWTH}; say "
            f"--add-partitions where that is meant"
        )
    ours = {plan.topic, *(() if running is None else running.topic_ids)}
    for name in sorted(counts.keys() - ours):
        places = [TopicPartition(name, number) for number in range(counts[name])]
        held = sum(driver.high_watermarks(places).values())
        if held:
            raise Conflict(
                f"topic {name} holds {held} records, and no plan of topic {plan.topic} made it: "
                f"amcast needs that name for itself; delete that topic, or multicast on another"
            )


GROWTH = (
    "adding partitions sends the keys of every producer that picks the partition by its key to "
    "other partitions, so messages of one key stand in two, and lose their order there"
)


def refuse_fewer(topic: str, partitions: Iterable[str], has: int | None) -> None:
    """Raise `UsageError` where a topic has more partitions than a plan or its interests name."""
    named = len(list(partitions))
    if has is not None and has > named:
        raise UsageError(
            f"topic {topic} has {has} partitions and 'partitions' names {named}: no consumer would "
            f"be sent what stands in the others; name all {has} in the interest file and plan again"
        )
