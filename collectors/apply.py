"""`topology apply`: a plan becomes an epoch.

Makes the topics, refuses a cluster whose settings would break a guarantee, and appends the plan to
the control topic, where the digest chain lets one of several operators win. Every step may be done
twice, so an interrupted `apply` is simply run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from uuid import uuid4

from multicast.control import (
    ControlReader,
    control_partition,
    log_partition,
    order_topic,
    plan_record,
    stream_partition,
)
from multicast.errors import AppendUnknown, Conflict, TopicChanged, UnsafeCluster, UsageError
from multicast.kafka_python import Admin, TopicSpec
from multicast.log import Appended, AppendFailed, AppendOutcome, Driver, TopicPartition
from topology.check import PlanRejected, check
from topology.tree import Plan

_FOR_EVER = "-1"
_DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did: the plan as it counts, and the topics it made."""

    plan: Plan
    topics_made: tuple[str, ...]
    changed: bool


def apply(driver: Driver, admin: Admin, plan: Plan, *, timeout_s: float = 30.0) -> Applied:
    """Make `plan` the next epoch; return once it counts.

    Applying the running plan again changes nothing. Raises `UsageError` for a plan that the checker
    rejects, whoever wrote it, `Conflict` for a plan that was made for
    another cluster or epoch, or where another operator was quicker; `UnsafeCluster` where a setting
    would break a guarantee; `TopicChanged` where a topic of the plan was made anew.
    """
    try:
        check(plan)
    except PlanRejected as error:
        raise UsageError(f"the plan is rejected: {error}") from error
    cluster = admin.cluster_id()
    if plan.cluster_id not in ("", cluster):
        raise Conflict(f"the plan was made for cluster {plan.cluster_id}; this is {cluster}")
    _refuse_unsafe_brokers(admin)
    made = admin.create_topics({control_partition(plan.topic).topic: _control_spec()})
    control = ControlReader(driver, plan.topic)
    try:
        state = control.refresh()
        running = state.plan() if state.epoch else None
        if running is not None and same_layout(running, plan):
            _refuse_changed_topics(admin, running)
            return Applied(running, tuple(made), changed=False)
        if plan.base_epoch != state.epoch or plan.epoch != state.epoch + 1:
            raise Conflict(
                f"the plan goes from epoch {plan.base_epoch} to {plan.epoch}, and epoch "
                f"{state.epoch} runs; plan again"
            )
        if running is not None:
            raise UsageError(
                "this version applies the first epoch only; changing the tree of a running topic "
                "comes with a later one"
            )
        made += _make_topics(admin, plan)
        _refuse_unsafe_topics(admin, plan)
        filled = _fill_in(driver, admin, plan, cluster)
        _propose(driver, filled, state.previous, timeout_s)
        if control.refresh().plan(plan.epoch).digest != filled.digest:
            raise Conflict(f"another operator applied a plan for epoch {plan.epoch} first")
    finally:
        control.close()
    return Applied(filled, tuple(made), changed=True)


def same_layout(one: Plan, other: Plan) -> bool:
    """Whether two plans lay out the same epoch, whatever `apply` filled in."""

    def bare(plan: Plan) -> Plan:
        return replace(
            plan,
            cluster_id="",
            topic_ids={},
            logs=tuple(replace(log, first=0) for log in plan.logs),
            collectors=tuple(replace(node, stream_first=0) for node in plan.collectors),
        )

    return bare(one) == bare(other)


def topics_of(plan: Plan) -> dict[str, int]:
    """Name a plan's topics and how many Kafka partitions each needs at least."""
    counts: dict[str, int] = {plan.topic: len(plan.partitions)}
    for log in plan.logs:
        counts[log.topic] = max(counts.get(log.topic, 1), log.partition + 1)
    streams = [node.stream + 1 for node in plan.collectors]
    counts[order_topic(plan.topic)] = max(streams, default=1)
    return counts


def _control_spec() -> TopicSpec:
    return TopicSpec(1, settings={"cleanup.policy": "compact"})


def _make_topics(admin: Admin, plan: Plan) -> list[str]:
    """Make what is missing with the cluster's own replication."""
    counts = topics_of(plan)
    orders = order_topic(plan.topic)
    data = {name: TopicSpec(count) for name, count in counts.items() if name != orders}
    made = admin.create_topics(data)
    kept = [_retention_ms(one) for one in admin.topic_settings(list(data)).values()]
    # The order of a message is written about when the message is; a day more is ample.
    longest = _FOR_EVER if -1 in kept else str(max(kept) + _DAY_MS)
    settings = {
        "cleanup.policy": "delete",
        "retention.ms": longest,
        "retention.bytes": _FOR_EVER,
    }
    return made + admin.create_topics({orders: TopicSpec(counts[orders], settings=settings)})


def _retention_ms(settings: Mapping[str, str]) -> int:
    return int(settings["retention.ms"])


def _refuse_unsafe_brokers(admin: Admin) -> None:
    for broker, settings in sorted(admin.broker_settings().items()):
        if settings.get("unclean.leader.election.enable") == "true":
            raise UnsafeCluster(
                f"broker {broker} has unclean.leader.election.enable=true, so acknowledged "
                f"messages may be lost; set it to false"
            )


def _refuse_unsafe_topics(admin: Admin, plan: Plan) -> None:
    names = [*topics_of(plan), control_partition(plan.topic).topic]
    found = admin.topic_settings(names)
    replication = admin.replications(names)
    orders = order_topic(plan.topic)
    for name in names:
        settings = found[name]
        if settings.get("unclean.leader.election.enable") == "true":
            raise UnsafeCluster(
                f"topic {name} has unclean.leader.election.enable=true, so acknowledged messages "
                f"may be lost; set it to false"
            )
        if replication[name] >= 3 and int(settings["min.insync.replicas"]) < 2:
            raise UnsafeCluster(
                f"topic {name} has replication {replication[name]} and min.insync.replicas "
                f"{settings['min.insync.replicas']}, so one crash may lose acknowledged messages; "
                f"set it to 2"
            )
        compacted = "compact" in settings["cleanup.policy"]
        if compacted and name != control_partition(plan.topic).topic:
            raise UnsafeCluster(
                f"topic {name} has cleanup.policy={settings['cleanup.policy']}, so messages or "
                f"their order may vanish; set it to delete"
            )
        if not compacted and name == control_partition(plan.topic).topic:
            raise UnsafeCluster(f"topic {name} has no cleanup.policy=compact; set it")
    order_kept = _retention_ms(found[orders])
    for name in topics_of(plan):
        kept = _retention_ms(found[name])
        if order_kept != -1 and (kept == -1 or kept > order_kept):
            raise UnsafeCluster(
                f"topic {orders} keeps records for {order_kept} ms and {name} for {kept} ms, so "
                f"messages may outlive their order; raise retention.ms of {orders}"
            )


def _refuse_changed_topics(admin: Admin, plan: Plan) -> None:
    now = {name: str(found) for name, found in admin.topic_ids(list(plan.topic_ids)).items()}
    for name, planned in plan.topic_ids.items():
        if now.get(name) != planned:
            raise TopicChanged(
                f"topic {name} is not the one that epoch {plan.epoch} was applied to "
                f"(it was deleted{' and made again' if name in now else ''})"
            )


def _fill_in(driver: Driver, admin: Admin, plan: Plan, cluster: str) -> Plan:
    """Write into the plan what only the cluster knows."""
    begins = driver.begins([log_partition(log) for log in plan.logs])
    streams = {node.name: stream_partition(plan, node.name) for node in plan.collectors}
    ends = driver.ends(list(streams.values()))
    ids = admin.topic_ids(list(topics_of(plan)))
    return replace(
        plan,
        cluster_id=cluster,
        topic_ids={name: str(found) for name, found in sorted(ids.items())},
        logs=tuple(replace(log, first=begins[log_partition(log)]) for log in plan.logs),
        collectors=tuple(
            replace(node, stream_first=ends[streams[node.name]]) for node in plan.collectors
        ),
    )


def _propose(driver: Driver, plan: Plan, previous: bytes, timeout_s: float) -> None:
    key, value = plan_record(previous, plan, attempt=uuid4().hex)
    _append(driver, control_partition(plan.topic), key, value, timeout_s)


def _append(driver: Driver, at: TopicPartition, key: bytes, value: bytes, timeout_s: float) -> int:
    """Append one record and wait until it is stored; give its offset."""
    outcomes: list[AppendOutcome] = []
    appender = driver.appender()
    try:
        appender.append(at, value, key=key, done=outcomes.append)
        if not appender.flush(timeout_s) or not outcomes:
            raise AppendUnknown(f"{at.topic} did not acknowledge a record within {timeout_s:g} s")
    finally:
        appender.close()
    (outcome,) = outcomes
    if isinstance(outcome, AppendFailed):
        raise outcome.error
    assert isinstance(outcome, Appended)
    return outcome.offset
