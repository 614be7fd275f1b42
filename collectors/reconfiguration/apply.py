"""`topology apply`: a plan becomes an epoch.

Refuses a plan that does not fit, and a cluster whose settings would break a guarantee; only then
makes the topics, and appends the plan to the control topic, where the digest chain lets one of
several operators win. Then the epoch before is drained (`drain.py`). Every step may be done
twice, so an interrupted `apply` is simply run again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from uuid import uuid4

from collectors.doctor.checks import (
    Check,
    Finding,
    Weight,
    of_brokers,
    of_changed_topics,
    of_topics,
    of_unordered,
    refuse,
)
from collectors.doctor.inspection import (
    inspect_brokers,
    inspect_topics,
    of_settings,
    overtaken_groups,
    topic_ids_of,
)
from collectors.reconfiguration.drain import drain
from collectors.reconfiguration.recovery import refuse_damaged
from collectors.reconfiguration.topics import (
    make_topics,
    refuse_partitions,
    topics_ahead,
    topics_of,
)
from multicast.control import (
    ControlReader,
    ControlState,
    control_partition,
    log_partition,
    plan_record,
    sentinel_topic,
    stream_partition,
)
from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, Driver, TopicPartition
from multicast.errors import (
    AmcastError,
    AppendUnknown,
    Conflict,
    UncoveredInterest,
    UsageError,
)
from multicast.subscription import SubscriptionRequest
from topology.changes import refuse_moved_logs
from topology.check import PlanRejected, check
from topology.tree import Plan

_OPENING_S = 10.0
_POLL_S = 0.05
_FOR_EVER = "-1"
# A bell is not replicated, and never removed.
_BELL_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": _FOR_EVER,
    "retention.bytes": _FOR_EVER,
    "min.insync.replicas": "1",
}


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did: the plan as it counts, and the topics it made.

    `not_running` names the plan's collectors that no instance has opened; of a first epoch that is
    normal.
    """

    plan: Plan
    topics_made: tuple[str, ...]
    changed: bool
    not_running: tuple[str, ...]


def apply(
    driver: Driver,
    admin: Admin,
    plan: Plan,
    *,
    timeout_s: float = 30.0,
    uncovered: bool = False,
    add_partitions: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Applied:
    """Make `plan` the next epoch; return once it has begun.

    Applying the running plan again changes nothing, or finishes what was interrupted. A consumer
    of the running plan whose interest the new one does not cover is refused, unless `uncovered`;
    so is a plan with more partitions than its topic has, unless `add_partitions`, and one with
    fewer. `say` hears of each step. What is refused leaves nothing behind: no topic is made and
    none is grown before all is checked.

    Raises `TimedOut` where the running epoch did not end in time, `UsageError` for a plan that the
    checker rejects, whoever wrote it, `Conflict` for a plan that was made for another cluster or
    epoch, or where another operator was quicker; `UnsafeCluster` where a setting would break a
    guarantee; `TopicChanged` where a topic of the plan was made anew.
    """
    try:
        check(plan)
    except PlanRejected as error:
        raise UsageError(f"the plan is rejected: {error}") from error
    cluster = admin.cluster_id()
    if plan.cluster_id not in ("", cluster):
        raise Conflict(f"the plan was made for cluster {plan.cluster_id}; this is {cluster}")
    refuse(of_brokers(inspect_brokers(admin, [])))
    state = _control_state(driver, admin, plan.topic)
    running = state.plan() if state.epoch else None
    made: list[str] = []
    again = running is not None and same_layout(running, plan)
    if running is not None and again:
        refuse(of_changed_topics(running, topic_ids_of(admin, running)))
    else:
        _refuse_unfit(state, plan, uncovered=uncovered)
        if running is not None:
            refuse(of_changed_topics(running, topic_ids_of(admin, running)))
            refuse_damaged(driver, state)
        refuse_partitions(driver, admin, plan, running, add_partitions=add_partitions)
        refuse(of_changed_topics(plan, topic_ids_of(admin, plan)))
        refuse(of_topics(topics_ahead(admin, plan)))
        made = make_topics(admin, plan)
    control = ControlReader(driver, plan.topic)
    try:
        state = control.refresh()
        if running is not None and again:
            append_sentinels(driver, admin, plan.topic, timeout_s)
            drained = _drain(driver, control, timeout_s, say)
            return Applied(
                running, tuple(made), changed=drained, not_running=not_opened(control.state)
            )
        found = of_settings(admin, plan)
        refuse(found)
        found += overtaken_groups(driver, admin, state)
        _tell(found, say)
        append_sentinels(driver, admin, plan.topic, timeout_s)
        filled = _fill_in(driver, admin, plan, cluster)
        _propose(driver, filled, state.previous, timeout_s)
        if control.refresh().plan(plan.epoch).digest != filled.digest:
            raise Conflict(f"another operator applied a plan for epoch {plan.epoch} first")
        say(f"epoch {plan.epoch} stands in the control topic")
        _drain(driver, control, timeout_s, say)
        return Applied(filled, tuple(made), changed=True, not_running=not_opened(control.refresh()))
    finally:
        control.close()


def _control_state(driver: Driver, admin: Admin, topic: str) -> ControlState:
    """Read what the control topic says; nothing where there is none."""
    if not admin.partitions([control_partition(topic).topic]):
        return ControlState(topic)
    control = ControlReader(driver, topic)
    try:
        return control.refresh()
    finally:
        control.close()


def _refuse_unfit(state: ControlState, plan: Plan, *, uncovered: bool) -> None:
    """Raise where the plan cannot follow on what the control topic says."""
    if plan.base_epoch != state.epoch or plan.epoch != state.epoch + 1:
        raise Conflict(
            f"the plan goes from epoch {plan.base_epoch} to {plan.epoch}, and epoch "
            f"{state.epoch} runs; plan again"
        )
    if not state.epoch:
        return
    if state.starts(state.epoch) is None:
        raise Conflict(
            f"epoch {state.epoch} has not begun yet: its apply was interrupted; run that "
            f"one again first"
        )
    _refuse_lost(state.plan(), plan, uncovered=uncovered)


def _tell(findings: Iterable[Finding], say: Callable[[str], None]) -> None:
    """Say what is wrong, and what this user may not see."""
    for one in findings:
        if one.check is Check.UNSEEN:
            say(f"not checked: {one.says}")
        elif one.weight is Weight.WARN:
            say(f"warning: {one}")


def _drain(
    driver: Driver, control: ControlReader, timeout_s: float, say: Callable[[str], None]
) -> bool:
    """End the epoch before the newest where it has not ended; say whether it had to be.

    Where collectors run at all, the newest epoch's may take a moment to open all theirs.
    """
    newest = control.state.epoch
    if newest == 1 or newest - 1 in control.state.ends:
        return False
    unhelped = drain(driver, control, newest - 1, timeout_s=timeout_s, say=say)
    new = {node.name for node in control.state.plan().collectors}
    new -= control.state.retained(newest - 1).collectors
    until = time.monotonic() + _OPENING_S
    while time.monotonic() < until and (waiting := new.intersection(not_opened(control.state))):
        if not unhelped and waiting == new:
            break  # nobody runs any
        control.follow(_POLL_S)
    return True


def not_opened(state: ControlState) -> tuple[str, ...]:
    """Name the newest plan's collectors that no instance has opened since their epoch stands."""
    plan = state.plan()
    first = {node.name: state.first_epoch(plan.epoch, node.name) for node in plan.collectors}
    opened = {epoch: state.collectors_open(epoch) for epoch in set(first.values())}
    return tuple(name for name, epoch in first.items() if name not in opened[epoch])


def _refuse_lost(running: Plan, plan: Plan, *, uncovered: bool) -> None:
    """Raise `UsageError` where a log would be lost, or a consumer's interest."""
    try:
        refuse_moved_logs(running, plan)
    except PlanRejected as error:
        raise UsageError(f"the plan is rejected: {error}") from error
    for entry in running.consumers:
        if uncovered or plan.subscription(entry.name) is not None:
            continue
        try:
            SubscriptionRequest(None, entry.interest).resolve(plan)
        except (UncoveredInterest, UsageError) as error:
            raise UsageError(
                f"consumer {entry.name} reads {'+'.join(entry.interest)}, which the new plan does "
                f"not cover: add it to the interest file, or say --uncovered where it has gone"
            ) from error


def refuse_unsound(admin: Admin, plan: Plan) -> list[str]:
    """Raise where a topic of a running plan was made anew, or a setting breaks a guarantee.

    Give what this user may not see, which was therefore not checked.
    """
    found = of_settings(admin, plan)
    refuse(found)
    return [one.says for one in found if one.check is Check.UNSEEN]


def unordered(admin: Admin, plan: Plan) -> list[str]:
    """Say which partitions of its topic a running plan does not order."""
    return [str(one) for one in of_unordered(plan, inspect_topics(admin, plan, []))]


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


def append_sentinels(driver: Driver, admin: Admin, topic: str, timeout_s: float = 30.0) -> bool:
    """Give each broker a bell: one small record that watchers are sent instead of messages.

    Nothing depends on them but how many bytes a watcher reads, so a cluster that will not have
    them is no error: False.
    """
    bells = sentinel_topic(topic)
    try:
        placed = admin.place_on_brokers(bells, _BELL_SETTINGS)
        at = [TopicPartition(bells, partition) for partition in placed.values()]
        silent = [one for one, offset in driver.high_watermarks(at).items() if offset == 0]
        for one in silent:
            _append(driver, one, None, b"bell", timeout_s)
    except AmcastError:
        return False
    return True


def _fill_in(driver: Driver, admin: Admin, plan: Plan, cluster: str) -> Plan:
    """Write into the plan what only the cluster knows."""
    begins = driver.log_start_offsets([log_partition(log) for log in plan.logs])
    streams = {node.name: stream_partition(plan, node.name) for node in plan.collectors}
    ends = driver.last_stable_offsets(list(streams.values()))
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


def _append(
    driver: Driver, partition: TopicPartition, key: bytes | None, value: bytes, timeout_s: float
) -> int:
    """Append one record and wait until it is stored; give its offset."""
    outcomes: list[AppendOutcome] = []
    appender = driver.appender()
    try:
        appender.append(partition, value, key=key, done=outcomes.append)
        if not appender.flush(timeout_s) or not outcomes:
            raise AppendUnknown(
                f"{partition.topic} did not acknowledge a record within {timeout_s:g} s"
            )
    finally:
        appender.close()
    (outcome,) = outcomes
    if isinstance(outcome, AppendFailed):
        raise outcome.error
    assert isinstance(outcome, Appended)
    return outcome.offset
