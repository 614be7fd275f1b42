"""The topics of a plan: those that exist, those that `apply` would create, and what prevents it.

Only `make_topics` creates topics. Before it runs, the brokers are asked how they would create them
(a dry run), and that is checked. So a refused `apply` creates nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from collectors.doctor.facts import FOR_EVER, PartitionFacts, Role, TopicFacts
from collectors.doctor.inspection import inspect_topics
from multicast.control import collectors_partition, control_partition, order_topic, plan_record
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import Conflict, UsageError
from topology.check import RECORD_BYTES_MAX, checkpoint_bytes
from topology.tree import Plan

# Whoever reads our own topics must need no codec, whatever the brokers' compression.type is.
STORED_AS_SENT = {"compression.type": "producer"}
_DAY_MS = 24 * 3600 * 1000  # of 24 hours
_LONGEST = 2**63 - 1  # an offset
_AROUND_BYTES = 1024  # a key with a collector's name, offsets and times, and Kafka's own fields
_CHECKED_SETTINGS = ("cleanup.policy", "min.insync.replicas", "retention.ms", "retention.bytes")
# A message must fit, and is kept, in the topic of the wider sets as in the plan's topic.
_OF_MESSAGES = ("max.message.bytes", "retention.ms", "retention.bytes")


def topics_of(plan: Plan) -> dict[str, int]:
    """Give the plan's topics, without the control topics, and their least partition counts."""
    counts: dict[str, int] = {plan.topic: len(plan.partitions)}
    for log in plan.logs:
        counts[log.topic] = max(counts.get(log.topic, 1), log.partition + 1)
    streams = [node.stream + 1 for node in plan.collectors]
    counts[order_topic(plan.topic)] = max(streams, default=1)
    return counts


def topics_ahead(admin: Admin, plan: Plan) -> tuple[TopicFacts, ...]:
    """Give the facts of the plan's topics: existing ones, and others as they would be created.

    Raises `AmcastError` if the brokers would refuse to create one, or to take the plan or a
    collector's checkpoint. Topics whose settings this user may not see are left out.
    """
    existing = {topic.name: topic for topic in inspect_topics(admin, plan, [])}
    topics: list[TopicFacts] = []
    for name, spec in _data_specs(admin, plan, existing).items():
        topics += _ahead(admin, existing, name, Role.DATA, spec)
    for name, (role, spec) in _own_specs(plan, [topic.kept_ms for topic in topics]).items():
        like = _like(admin, plan, existing, name, spec)
        topics += _ahead(admin, existing, name, role, like)
    _refuse_large(plan, topics)
    return tuple(topics)


def _refuse_large(plan: Plan, topics: Iterable[TopicFacts]) -> None:
    """Raise `UsageError` for a record that a topic does not take: refused later, it would be late.

    `apply` fills offsets in: here they have as many digits as they may ever have.
    """
    filled = replace(
        plan,
        topic_ids=dict.fromkeys(topics_of(plan), "0" * 36),
        logs=tuple(replace(log, first=_LONGEST) for log in plan.logs),
        collectors=tuple(replace(node, stream_first=_LONGEST) for node in plan.collectors),
    )
    checkpoint = 0
    for node in plan.collectors:
        own = len(plan.own_logs(node.name))
        checkpoint = max(checkpoint, checkpoint_bytes(own, len(node.bag) - own))
    stated = len(plan_record(b"", filled, attempt="")[1])
    sizes = {Role.CONTROL: stated, Role.COLLECTORS: 2 * checkpoint, Role.ORDER: checkpoint}
    for topic in topics:
        most = int(topic.settings.get("max.message.bytes", RECORD_BYTES_MAX))
        needed = sizes.get(topic.role, 0) + _AROUND_BYTES
        if needed > most:
            raise UsageError(
                f"topic {topic.name} takes records of at most {most} bytes, and this plan needs "
                f"{needed}: raise max.message.bytes of the topic (message.max.bytes of the brokers "
                f"if it does not exist yet), or plan fewer partitions and destination sets"
            )


def _ahead(
    admin: Admin, existing: Mapping[str, TopicFacts], name: str, role: Role, spec: TopicSpec
) -> list[TopicFacts]:
    if name in existing:
        return [existing[name]]
    answer = admin.would_make(name, spec)
    if answer is None or any(key not in answer[1] for key in _CHECKED_SETTINGS):
        return []
    replication, settings = answer
    replicas = tuple(range(replication))
    partitions = tuple(PartitionFacts(n, 0, replicas, replicas) for n in range(spec.partitions))
    return [TopicFacts(name, role, settings, partitions)]


# A collector's clock may be wrong, and a producer's even more: when order records were stored, the
# brokers say. Retention and the time of the next checkpoint depend on that.
_OF_ORDER = {**STORED_AS_SENT, "message.timestamp.type": "LogAppendTime"}
# Everybody reads the control topics as a whole. Kafka compacts no segment that is still written to,
# and by default begins another one after 1 GiB or seven days; then it waits until half is waste.
_OF_CONTROL = {
    **STORED_AS_SENT,
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
    "max.compaction.lag.ms": str(60 * 60 * 1000),
}
_CONTROL = TopicSpec(1, settings={"cleanup.policy": "compact", **_OF_CONTROL})


def _data_specs(
    admin: Admin, plan: Plan, existing: Mapping[str, TopicFacts]
) -> dict[str, TopicSpec]:
    counts = topics_of(plan)
    del counts[order_topic(plan.topic)]
    return {
        name: _like(admin, plan, existing, name, TopicSpec(count), same=_OF_MESSAGES)
        for name, count in counts.items()
    }


def _like(
    admin: Admin,
    plan: Plan,
    existing: Mapping[str, TopicFacts],
    name: str,
    spec: TopicSpec,
    *,
    same: Iterable[str] = (),
) -> TopicSpec:
    """Make a new topic as safe as the plan's topic, if that was there before the plan."""
    model = existing.get(plan.topic)
    if model is None or name in existing:
        return spec
    default = admin.would_make(name, spec)
    return spec if default is None else spec_like(spec, *default, model, same)


def spec_like(
    spec: TopicSpec,
    replication: int,
    settings: Mapping[str, str],
    model: TopicFacts,
    same: Iterable[str] = (),
) -> TopicSpec:
    """Give `spec` at least the replicas of `model`, and its values of the settings in `same`.

    `replication` and `settings` are what the brokers would give a topic of this spec; what is right
    already is not set, so that later changes of the brokers' defaults reach the topic.
    """
    changed = {key: model.settings[key] for key in same if model.settings[key] != settings.get(key)}
    if model.in_sync_min > int(settings.get("min.insync.replicas", 1)):
        changed["min.insync.replicas"] = str(model.in_sync_min)
    copies = model.replication if model.replication > replication else spec.replication
    return replace(spec, replication=copies, settings={**changed, **spec.settings})


def _order_spec(plan: Plan, kept_ms: Iterable[int]) -> TopicSpec:
    # A message's order record is written within seconds of the message, or early. A day of margin
    # covers a collector that was down for that long, and a quarter the distance between the oldest
    # checkpoints (docs/protocol.md, "Checkpoints"); much more only costs disk space.
    kept = list(kept_ms)
    longest = FOR_EVER if FOR_EVER in kept or not kept else max(kept) * 5 // 4 + _DAY_MS
    settings = {
        "cleanup.policy": "delete",
        **_OF_ORDER,
        "retention.ms": str(longest),
        "retention.bytes": str(FOR_EVER),
    }
    return TopicSpec(topics_of(plan)[order_topic(plan.topic)], settings=settings)


def _own_specs(plan: Plan, kept_ms: Iterable[int]) -> dict[str, tuple[Role, TopicSpec]]:
    """Give the topics beside those of messages; the last one tells that all of them exist."""
    return {
        order_topic(plan.topic): (Role.ORDER, _order_spec(plan, kept_ms)),
        collectors_partition(plan.topic).topic: (Role.COLLECTORS, _CONTROL),
        control_partition(plan.topic).topic: (Role.CONTROL, _CONTROL),
    }


def make_topics(admin: Admin, plan: Plan) -> list[str]:
    """Create missing topics, that of plans last; give the names of those that it created.

    They get the cluster's default replication. If the plan's topic exists, they get at least its
    replication, and messages to wider sets are kept as long as its messages.
    """
    existing = {topic.name: topic for topic in inspect_topics(admin, plan, [])}
    data = _data_specs(admin, plan, existing)
    made = admin.create_topics(data)
    settings = admin.topic_settings(list(data)).values()
    kept = [int(setting["retention.ms"]) for setting in settings]
    for name, (_, spec) in _own_specs(plan, kept).items():
        made += admin.create_topics({name: _like(admin, plan, existing, name, spec)})
    return made


def bring_settings(admin: Admin, plan: Plan, say: Callable[[str], None]) -> None:
    """Give topics that exist already what `make_topics` gives others; say what is refused.

    Without it nothing is wrong, only slower or larger: the control topics grow, and a wrong clock
    of a producer decides when a checkpoint is written.
    """
    wanted = {Role.ORDER: _OF_ORDER, Role.CONTROL: _OF_CONTROL, Role.COLLECTORS: _OF_CONTROL}
    for topic in inspect_topics(admin, plan, []):
        settings = wanted.get(topic.role, {})
        if any(topic.settings.get(name) != value for name, value in settings.items()):
            listed = ", ".join(f"{name}={value}" for name, value in settings.items())
            if why := admin.change_settings(topic.name, settings):
                say(f"warning: topic {topic.name} should have {listed}, but: {why}")


def refuse_partitions(
    driver: Driver, admin: Admin, plan: Plan, running: Plan | None, *, add_partitions: bool
) -> None:
    """Raise if the plan does not fit the partition counts of its topics.

    Other programs may use the data topic, too: `UsageError` if the plan does not order all its
    partitions, or would have to grow it without `add_partitions`. The other topics belong to this
    project: `Conflict` if one of them holds records although no plan created it.
    """
    # Without a plan, what collectors state is of a topic that was deleted.
    stated = [collectors_partition(plan.topic).topic] if running is None else []
    counts = admin.partitions([*topics_of(plan), *stated])
    refuse_fewer(plan.topic, plan.partitions, counts.get(plan.topic))
    wanted, partition_count = topics_of(plan)[plan.topic], counts.get(plan.topic, 0)
    if 0 < partition_count < wanted and not add_partitions:
        raise UsageError(
            f"topic {plan.topic} has {partition_count} partitions and the plan needs {wanted}: "
            f"{GROWTH}; if that is acceptable, give --add-partitions"
        )
    ours = {plan.topic, *(() if running is None else running.topic_ids)}
    for name in sorted(counts.keys() - ours):
        places = [TopicPartition(name, number) for number in range(counts[name])]
        held = sum(driver.high_watermarks(places).values())
        if held:
            raise Conflict(
                f"topic {name} holds {held} records, and no plan of topic {plan.topic} created it, "
                f"but amcast needs that name; delete topic {name}, or use another topic name"
            )


GROWTH = (
    "after partitions are added, producers that choose the partition by the key send some keys to "
    "other partitions, so messages of one key are in two partitions, and their order is lost"
)


def refuse_fewer(topic: str, partitions: Iterable[str], partition_count: int | None) -> None:
    """Raise `UsageError` if a topic has more partitions than are named."""
    named = len(list(partitions))
    if partition_count is not None and partition_count > named:
        raise UsageError(
            f"topic {topic} has {partition_count} partitions and 'partitions' names {named}: no "
            f"consumer would get the messages in the others; name all {partition_count} in the "
            f"interest file and plan again"
        )
