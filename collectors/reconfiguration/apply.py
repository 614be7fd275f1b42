"""`amcast topology apply`: makes a plan the next epoch.

It first refuses a plan that does not fit, and a cluster with settings that would break a guarantee.
Then it creates the topics and appends the plan to the control topic; of several operators' plans
for one epoch only the first is accepted, because each names the digest of the plan before. Finally
it ends the epoch before (`drain.py`). All steps can be repeated, so an interrupted `apply` is run
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from collectors.doctor.checks import of_brokers, of_changed_topics, of_held_logs, of_topics
from collectors.doctor.consumer_groups import group_prefix, request_of
from collectors.doctor.finding import Check, Finding, Weight, refuse
from collectors.doctor.inspection import (
    held_logs,
    inspect_brokers,
    of_settings,
    overtaken_groups,
    topic_ids_of,
)
from collectors.doctor.streams import now_ms
from collectors.engine.ended_processes import EndedProcesses, place_of
from collectors.engine.skips import ignore
from collectors.reconfiguration.appends import append_one
from collectors.reconfiguration.committed import cursors_of
from collectors.reconfiguration.drain import drain, with_stream_starts
from collectors.reconfiguration.lost_order import refuse_lost_orders
from collectors.reconfiguration.survey import refuse_damaged
from collectors.reconfiguration.topics import (
    STORED_AS_SENT,
    bring_settings,
    make_topics,
    refuse_partitions,
    topics_ahead,
    topics_of,
)
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import (
    ControlReader,
    ControlState,
    StatusPage,
    collectors_partition,
    control_partition,
    log_partition,
    plan_record,
    sentinel_topic,
    stream_partition,
)
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AccessDenied, AmcastError, Conflict, UncoveredInterest, UsageError
from topology.carry_over import retained
from topology.changes import refuse_moved_logs
from topology.check import PlanRejected, check
from topology.tree import Plan

# How long to wait, after the new epoch has begun, until instances have opened its new collectors.
# 200 collectors open in about 1.3 s (docs/operating.md).
_OPENING_S = 10.0
_POLL_S = 0.05  # of the control topic; well below the 0.2 s that a human notices
_FOR_EVER = "-1"
# A sentinel record is not replicated, and never removed.
_SENTINEL_SETTINGS = {
    **STORED_AS_SENT,
    "cleanup.policy": "delete",
    "retention.ms": _FOR_EVER,
    "retention.bytes": _FOR_EVER,
    "min.insync.replicas": "1",
}


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of `apply`: the plan as applied (see `_fill_in`), and the topics it created.

    `not_running` names the plan's collectors that no instance has opened; in the first epoch that
    is normal.
    """

    plan: Plan
    topics_made: tuple[str, ...]
    changed: bool
    not_running: tuple[str, ...]

    @property
    def waits(self) -> bool:
        """Whether messages with tickets wait, too, for a collector that does not run."""
        missing = map(self.plan.collector, self.not_running)  # without a parent it relays nothing
        return any(node.parent is not None or not self.plan.tickets for node in missing)


def apply(
    driver: Driver,
    admin: Admin,
    plan: Plan,
    *,
    timeout_s: float = 30.0,
    uncovered: bool = False,
    add_partitions: bool = False,
    say: Callable[[str], None] = lambda _: None,
    before_change: Callable[[], None] = lambda: None,
) -> Applied:
    """Make `plan` the next epoch; return once it has begun.

    To apply the running plan again changes nothing, or finishes an interrupted `apply`. Without
    `uncovered`, a plan is refused that lacks a consumer of the running plan, or does not cover the
    interest of a group with a commit. A plan with fewer partitions than its topic is refused, and
    without `add_partitions` one with more. `say` is called with a sentence for each step. All
    checks come before the first change, so a refused plan creates and grows no topic;
    `before_change` is called between them, unless the plan runs already. Blocks; `timeout_s` bounds
    each wait for the brokers' acknowledgements and the drain.

    Raises `TimedOut` if the running epoch did not end in time; `UsageError` for a plan that the
    checker rejects; `Conflict` for a plan for another cluster or epoch, or if another operator was
    quicker; `UnsafeCluster` for a setting that would break a guarantee; `TopicChanged` if a topic
    of the plan was deleted or recreated.
    """
    cluster = _check_for_cluster(admin, plan)
    refuse(of_brokers(inspect_brokers(admin, [])))
    state = control_state(driver, plan.topic)
    running = state.plan() if state.epoch else None
    made: list[str] = []
    again = running is not None and same_layout(running, plan)
    if running is not None and again:
        refuse(of_changed_topics(running, topic_ids_of(admin, running)))
    else:
        groups = partial(_groups_of, driver, admin, state, say)
        refuse_unfit(state, plan, uncovered=uncovered, groups=groups)
        if running is not None:
            refuse(of_changed_topics(running, topic_ids_of(admin, running)))
            refuse_damaged(driver, state)
            _refuse_held(driver, admin, running, plan)
        refuse_partitions(driver, admin, plan, running, add_partitions=add_partitions)
        refuse(of_changed_topics(plan, topic_ids_of(admin, plan)))
        refuse(of_topics(topics_ahead(admin, plan)))
        before_change()
        made = make_topics(admin, plan)
    bring_settings(admin, plan, say)
    with closing(ControlReader(driver, plan.topic)) as control:
        state = control.refresh()
        if running is not None and again:
            refuse_lost_orders(driver, state, timeout_s)
            append_sentinels(driver, admin, plan.topic, timeout_s)
            drained = _drain(driver, control, timeout_s, say)
            return Applied(
                running, tuple(made), changed=drained, not_running=not_opened(control.state)
            )
        results = of_settings(admin, plan)
        refuse(results)
        _report(results + overtaken_groups(driver, admin, state), say)
        append_sentinels(driver, admin, plan.topic, timeout_s)
        forget_checkpoints(driver, state, timeout_s)
        filled = _fill_in(driver, admin, plan, cluster)
        filled = propose(driver, control, filled, timeout_s)
        say(f"the plan of epoch {plan.epoch} is in the control topic")
        _drain(driver, control, timeout_s, say)
        return Applied(filled, tuple(made), changed=True, not_running=not_opened(control.refresh()))


def _check_for_cluster(admin: Admin, plan: Plan) -> str:
    """Check the plan by itself, and that it is for this cluster; give the cluster's ID."""
    try:
        check(plan)
    except PlanRejected as error:
        raise UsageError(f"the plan is rejected: {error}") from error
    cluster = admin.cluster_id()
    if plan.cluster_id not in ("", cluster):
        raise Conflict(
            f"the plan was made for cluster {plan.cluster_id}, and this is cluster {cluster}; "
            f"plan again for this one"
        )
    return cluster


def control_state(driver: Driver, topic: str) -> ControlState:
    """Read the control topics; give an empty state if there is no plan."""
    if not driver.partition_counts([control_partition(topic).topic]):  # a reader would wait for it
        return ControlState(topic)
    try:
        control = ControlReader(driver, topic)
    except UncoveredInterest:
        return ControlState(topic)
    with closing(control):
        return control.refresh()


def refuse_unfit(
    state: ControlState,
    plan: Plan,
    *,
    uncovered: bool,
    groups: Callable[[], Mapping[str, SubscriptionRequest]] = dict,
) -> None:
    """Raise if the plan cannot follow the newest epoch of the control topic.

    Without `uncovered` also if it would end a consumer: one that the running plan names, or one of
    these groups.
    """
    if plan.base_epoch != state.epoch or plan.epoch != state.epoch + 1:
        how = "with" if state.epoch else "without"
        raise Conflict(
            f"the plan is a change from epoch {plan.base_epoch} to {plan.epoch}, and epoch "
            f"{state.epoch or 'none'} runs; plan again {how} --from-cluster"
        )
    if not state.epoch:
        return
    if state.starts(state.epoch) is None:
        raise Conflict(
            f"epoch {state.epoch} has not begun yet: its 'amcast topology apply' was interrupted; "
            f"run that again first"
        )
    try:
        refuse_moved_logs(state.plan(), plan)
    except PlanRejected as error:
        raise UsageError(f"the plan is rejected: {error}") from error
    if not uncovered:
        _refuse_lost(state.plan(), plan, groups())


def _report(findings: Iterable[Finding], say: Callable[[str], None]) -> None:
    """Report warnings, and what this user may not see."""
    for finding in findings:
        if finding.check is Check.UNSEEN:
            say(f"not checked: {finding.says}")
        elif finding.weight is Weight.WARN:
            say(f"warning: {finding}")


def _drain(
    driver: Driver, control: ControlReader, timeout_s: float, say: Callable[[str], None]
) -> bool:
    """End the epoch before the newest one; False if there is none or it had ended already.

    Afterwards wait until instances have opened all new collectors. If the drain had to help, the
    others may be late or may have ended: the wait is left out only where all are known to have.
    """
    newest = control.state.epoch
    if newest == 1 or newest - 1 in control.state.ends:
        return False
    # An instance with which the drain helps replaces a page by none.
    pages = _pages_of(control.state, newest - 1)
    froze_alone = drain(driver, control, newest - 1, timeout_s=timeout_s, say=say)
    new = {node.name for node in control.state.plan().collectors}
    new -= control.state.retained(newest - 1).collectors
    nobody = not froze_alone and not _may_run(pages)
    until = time.monotonic() + _OPENING_S
    while time.monotonic() < until and (waiting := new.intersection(not_opened(control.state))):
        if nobody and waiting == new:
            break
        control.follow(_POLL_S)
    return True


def _pages_of(state: ControlState, epoch: int) -> set[StatusPage | None]:
    """Give the pages of the processes that have opened an epoch's collectors; None: without one."""
    names = {node.name for node in state.plan(epoch).collectors}
    return {state.advertised.pages.get(name) for name in names & state.advertised.running.keys()}


def _may_run(pages: Iterable[StatusPage | None]) -> bool:
    """Whether a process with one of these pages may still run.

    How late it is says nothing: on a busy machine it may be stalled for seconds. Only a kernel that
    refuses connections to its page says that it has ended.
    """
    processes = EndedProcesses()
    places = [None if page is None else place_of(page) for page in pages]
    return any(place is None or not processes.has_ended(place) for place in places)


def not_opened(state: ControlState) -> tuple[str, ...]:
    """Name the newest plan's collectors that no instance has opened in their epoch."""
    plan = state.plan()
    first = {node.name: state.first_epoch(plan.epoch, node.name) for node in plan.collectors}
    opened = {epoch: state.advertised.collectors_open(epoch) for epoch in set(first.values())}
    return tuple(name for name, epoch in first.items() if name not in opened[epoch])


def _groups_of(
    driver: Driver, admin: Admin, state: ControlState, say: Callable[[str], None]
) -> dict[str, SubscriptionRequest]:
    """Give what the groups with a commit read, by their names, as far as that is known."""
    try:
        groups = partial(admin.groups, group_prefix(state.topic))
        known = {
            name: request_of(state, name, cursor)
            for name, cursor in cursors_of(driver, state, groups)
        }
    except AccessDenied as error:
        say(f"not checked: whether the plan leaves out a consumer group: {error}")
        return {}
    return {name: request for name, request in known.items() if request is not None}


def _refuse_lost(running: Plan, plan: Plan, groups: Mapping[str, SubscriptionRequest]) -> None:
    """Raise `UsageError` if a consumer that the running plan serves would end with the plan."""
    readers = {entry.name: SubscriptionRequest(entry.name, None) for entry in running.consumers}
    lost = []
    for name, request in {**groups, **readers}.items():
        try:
            interest, _ = request.resolve(running)
        except (UncoveredInterest, UsageError):
            continue  # it has ended before
        try:
            request.resolve(plan)
        except (UncoveredInterest, UsageError):
            kind = "group" if request.name is None else "consumer"
            lost.append(f"{kind} {name}, which reads {'+'.join(interest)}")
    if lost:
        raise UsageError(
            f"the new plan would end {'; '.join(lost)}: add to the interest file what it lacks, or "
            f"give --uncovered if they are gone"
        )


def _refuse_held(driver: Driver, admin: Admin, running: Plan, plan: Plan) -> None:
    """Raise `Conflict` if a log that has to end has a transaction open: until then it could not."""
    goes_on = retained(running, plan).logs
    ends = [log for log in running.logs if log.name not in goes_on]
    held = [log for log in held_logs(driver, admin, ends, []) if log.opened]
    for found in of_held_logs(held, now_ms=now_ms()):
        raise Conflict(f"the running epoch could not end: {found.says}; {found.do}; apply again")


def unapplied(plan: Plan) -> Plan:
    """Give a plan without what `apply` fills in."""
    return replace(
        plan,
        cluster_id="",
        topic_ids={},
        logs=tuple(replace(log, first=0) for log in plan.logs),
        collectors=tuple(replace(node, stream_first=0) for node in plan.collectors),
    )


def same_layout(first: Plan, second: Plan) -> bool:
    """Whether two plans are the same apart from what `apply` fills in."""
    return unapplied(first) == unapplied(second)


def append_sentinels(driver: Driver, admin: Admin, topic: str, timeout_s: float = 30.0) -> bool:
    """Append a sentinel record on each broker: a watcher's long poll fetches it, and no messages.

    It only saves bytes, so if the cluster refuses one, the result is False, and not an error.
    """
    name = sentinel_topic(topic)
    try:
        placed = admin.place_on_brokers(name, _SENTINEL_SETTINGS)
        partitions = [TopicPartition(name, number) for number in placed.values()]
        highs = driver.high_watermarks(partitions)
        for partition in [partition for partition, high in highs.items() if high == 0]:
            append_one(driver, partition, None, b"bell", timeout_s)
    except AmcastError:
        return False
    return True


def _fill_in(driver: Driver, admin: Admin, plan: Plan, cluster: str) -> Plan:
    """Fill in the cluster's ID, the topics' IDs, and first offsets of logs and streams."""
    starts = driver.log_start_offsets([log_partition(log) for log in plan.logs])
    ids = admin.topic_ids(list(topics_of(plan)))
    return replace(
        with_stream_starts(driver, plan),
        cluster_id=cluster,
        topic_ids={name: str(topic_id) for name, topic_id in sorted(ids.items())},
        logs=tuple(replace(log, first=starts[log_partition(log)]) for log in plan.logs),
    )


def forget_checkpoints(driver: Driver, state: ControlState, timeout_s: float) -> None:
    """Delete from the control topics the checkpoints that begin where records are gone.

    Nobody can begin there. Those of collectors that run are replaced in time; others would stay.
    """
    points = state.checkpoint_keys
    places = {
        key: stream_partition(state.plan(point.epoch), point.collector)
        for key, point in points.items()
    }
    begins = driver.log_start_offsets(list(dict.fromkeys(places.values()))) if places else {}
    partition = collectors_partition(state.topic)
    with closing(driver.appender()) as appender:
        for key, place in places.items():
            if points[key].read_from < begins[place]:
                appender.append(partition, None, key=key, done=ignore)
        appender.flush(timeout_s)


def propose(driver: Driver, control: ControlReader, plan: Plan, timeout_s: float) -> Plan:
    """Append the plan of the next epoch to the control topic; give the one that counts.

    Raises `Conflict` if another operator's came first.
    """
    key, value = plan_record(control.state.previous, plan, attempt=uuid4().hex)
    append_one(driver, control_partition(plan.topic), key, value, timeout_s)
    counts = control.refresh().plan(plan.epoch)
    if not same_layout(counts, plan):
        raise Conflict(f"another operator applied a plan for epoch {plan.epoch} first")
    return counts
