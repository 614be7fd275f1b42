"""Collects the facts about a deployment: asks the brokers, reads streams and cursors.

`of_settings` and `overtaken_groups` are the quick checks of `apply`, `verify` and a start.
`inspect` is the full inspection of `amcast doctor`; it gives collectors up to `patience_s` to order
the messages that were in their logs when it began. Nothing is written. What this user may not see
is listed as unseen; only a cluster that does not answer, a user or a certificate that is refused
raises an error.

Clocks of other machines that can be seen without writing: the active controller's (its answer has
its time), and that of the broker that stamped a collector's newest record. A clock that is behind
shows only in a record that is written during the inspection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

from collectors.core.mending import Damage, Harm
from collectors.doctor.checks import (
    of_brokers,
    of_changed_topics,
    of_partitions,
    of_stamps,
    of_topics,
    of_unordered,
    of_unseen,
)
from collectors.doctor.consumer_checks import of_groups
from collectors.doctor.consumer_groups import group_prefix, inspect_groups, never_committed
from collectors.doctor.facts import (
    FOR_EVER,
    BrokerFacts,
    CollectorFacts,
    Facts,
    GroupFacts,
    HeldLog,
    PartitionFacts,
    Role,
    Stamp,
    TopicFacts,
)
from collectors.doctor.finding import Finding
from collectors.doctor.record_times import names_older, older_logs
from collectors.doctor.streams import (
    InspectionStart,
    KnownStream,
    inspect_collector,
    now_ms,
    read_control,
)
from collectors.reconfiguration.status_pages import read_pages, unchecked
from collectors.reconfiguration.survey import find_damage
from multicast.consuming.group_positions import OF_COLLECTORS
from multicast.control import (
    ControlState,
    collectors_partition,
    control_partition,
    log_partition,
    order_topic,
    stream_partition,
)
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import (
    AmcastError,
    AuthenticationFailed,
    ClusterUnreachable,
    TlsFailed,
    TopicMissing,
    Trimmed,
)
from topology.tree import Log, Plan

_T = TypeVar("_T")
_PAGE_S = 1.0  # a page takes milliseconds, and most are served to their own machine only


# -- the quick checks -----------------------------------------------------------------------


def of_settings(admin: Admin, plan: Plan) -> list[Finding]:
    """Check brokers, topics and the controller's clock; what may not be seen is a note."""
    unseen: list[str] = []
    topics, brokers = inspect_topics(admin, plan, unseen), inspect_brokers(admin, unseen)
    return [
        # Topics that may not be seen are in `unseen` already.
        *of_changed_topics(plan, topic_ids_of(admin, plan, [])),
        *of_brokers(brokers, topics),
        *of_topics(topics),
        *of_partitions(topics, frozenset(broker.broker for broker in brokers if broker.away)),
        *of_unordered(plan, topics),
        *of_stamps(_controller(admin, unseen)),
        *of_unseen(unseen),
    ]


def overtaken_groups(driver: Driver, admin: Admin, state: ControlState) -> list[Finding]:
    """Check whether retention overtakes a consumer group with a committed cursor."""
    if not state.epoch:
        return []
    unseen: list[str] = []
    topics = inspect_topics(admin, state.plan(), [])
    groups, _ = _groups(driver, admin, state, topics, unseen, streams={})
    return [*of_groups(groups, topics, topic=state.topic, now_ms=now_ms()), *of_unseen(unseen)]


# -- the parts ------------------------------------------------------------------------------


def inspect_brokers(admin: Admin, unseen: list[str]) -> tuple[BrokerFacts, ...]:
    """Ask for the registered brokers and their settings."""
    settings = _seen(admin.broker_settings, "the settings of brokers", unseen)
    here = admin.members()[1] if settings is None else settings
    return tuple(
        BrokerFacts(broker, away=broker not in here, settings=(settings or {}).get(broker, {}))
        for broker in admin.broker_ids()
    )


def inspect_topics(admin: Admin, plan: Plan, unseen: list[str]) -> tuple[TopicFacts, ...]:
    """Ask for those topics of a plan that exist, and whose settings this user may see."""
    roles = dict.fromkeys((plan.topic, *(log.topic for log in plan.logs)), Role.DATA)
    roles[order_topic(plan.topic)] = Role.ORDER
    roles[control_partition(plan.topic).topic] = Role.CONTROL
    roles[collectors_partition(plan.topic).topic] = Role.COLLECTORS
    topics = []
    for name, role in roles.items():
        what = f"topic {name} and its settings"
        facts = _seen(partial(_inspect_topic, admin, name, role), what, unseen)
        if facts is not None:
            topics += facts
    return tuple(topics)


def _inspect_topic(admin: Admin, name: str, role: Role) -> list[TopicFacts]:
    holders = admin.holders([name])
    if name not in holders:
        return []
    settings = admin.topic_settings([name])[name]
    partitions = tuple(PartitionFacts(*holder) for holder in holders[name])
    return [TopicFacts(name, role, settings, partitions)]


def topic_ids_of(admin: Admin, plan: Plan, unseen: list[str] | None = None) -> dict[str, str]:
    """Ask for the current IDs of a plan's topics; topics that do not exist are left out.

    With `unseen`, a topic that may not be seen is added to it, and keeps the planned ID.
    """
    if unseen is None:
        current = admin.topic_ids(list(plan.topic_ids))
        return {name: str(topic_id) for name, topic_id in current.items()}
    ids = {}
    for name, planned in plan.topic_ids.items():
        answer = _seen(partial(admin.topic_ids, [name]), f"the id of topic {name}", unseen)
        if answer is None:
            ids[name] = planned
        elif name in answer:
            ids[name] = str(answer[name])
    return ids


def _controller(admin: Admin, unseen: list[str]) -> list[Stamp]:
    after = now_ms()
    # Kafka also hides groups from a user who may not describe the cluster, without an error.
    what = "the controller's clock, and groups that this user may not describe,"
    answer = _seen(admin.controller_time_ms, what, unseen)
    if answer is None:
        return []
    broker, stamp = answer
    return [Stamp(f"the controller (broker {broker})", stamp, now_ms(), after)]


def _groups(
    driver: Driver,
    admin: Admin,
    state: ControlState,
    topics: tuple[TopicFacts, ...],
    unseen: list[str],
    *,
    streams: Mapping[str, KnownStream],
) -> tuple[tuple[GroupFacts, ...], int | None]:
    """Ask for the consumers' groups, and whether processes are in that of collectors."""
    prefix = group_prefix(state.topic)
    states = _seen(lambda: admin.groups(prefix), "consumer groups", unseen)
    names = list(states or ())
    data = [topic for topic in topics if topic.role is Role.DATA]
    limited = [topic.name for topic in data if topic.kept_bytes != FOR_EVER]
    sizes: dict[TopicPartition, int] = {}
    if limited and names:
        sizes = _seen(lambda: admin.sizes(limited), "the sizes of logs", unseen) or {}
    groups: list[GroupFacts] = []
    for name in names:
        what = f"the cursor of group {name}"
        ask = partial(inspect_groups, driver, state, [name], sizes, streams)
        groups += _seen(ask, what, unseen) or ()
    # Kafka forgets an empty group within minutes, and pinned processes are in none.
    ours = (states or {}).get(prefix + OF_COLLECTORS)
    return tuple(groups), None if ours is None else int(ours not in ("Empty", "Dead"))


def _seen(ask: Callable[[], _T], what: str, unseen: list[str]) -> _T | None:
    """Call `ask`; if this user may not see `what`, add the reason to `unseen` and give None."""
    try:
        return ask()
    except (AuthenticationFailed, ClusterUnreachable, TlsFailed):
        raise
    except AmcastError as error:
        unseen.append(f"{what} cannot be seen: {error}")
        return None


# -- the full inspection --------------------------------------------------------------------


def inspect(driver: Driver, admin: Admin, topic: str, *, patience_s: float = 2.0) -> Facts:
    """Collect all facts about a deployment.

    Blocks until the brokers have answered, and up to `patience_s` seconds more for each collector
    that is behind. Raises `ClusterUnreachable` if no broker answers.
    """
    unseen: list[str] = []
    facts = Facts(topic, now_ms(), brokers=inspect_brokers(admin, unseen))
    stamps = _controller(admin, unseen)
    try:
        control = read_control(driver, topic)
    except TopicMissing:
        if admin.partitions([control_partition(topic).topic]):
            raise
    else:
        facts.control_foreign = tuple(control.foreign)
        facts.collectors_foreign = control.collectors_foreign
        facts.plans_lost = control.lost
        if control.state.epoch:
            where = driver, admin, control.state
            stamps += _inspect_epoch(*where, facts, unseen, patience_s=patience_s)
    facts.stamps, facts.unseen, facts.now_ms = tuple(stamps), tuple(unseen), now_ms()
    return facts


def _inspect_epoch(
    driver: Driver,
    admin: Admin,
    state: ControlState,
    facts: Facts,
    unseen: list[str],
    *,
    patience_s: float,
) -> list[Stamp]:
    """Add the facts of the newest epoch, and of what reads it; give stamps of other clocks."""
    plan = facts.plan = state.plan()
    facts.begun_epoch = state.begun_epoch
    facts.topics = inspect_topics(admin, plan, unseen)
    facts.topic_ids = topic_ids_of(admin, plan, [])
    streams: dict[str, KnownStream] = {}
    work = partial(_work, driver, state, patience_s, streams)
    read = _seen(work, "what collectors do", unseen) or []
    facts.collectors = tuple(collector for collector, _ in read)
    facts.held = held_logs(driver, admin, state.plan(state.begun_epoch).logs, unseen)
    agreement = partial(_damages, driver, state, streams)
    facts.damages = _seen(agreement, "the streams' agreement", unseen) or ()
    older = partial(_older, driver, plan, facts.topics)
    facts.older = _seen(older, "the times of records", unseen) or ()
    groups, facts.members = _groups(driver, admin, state, facts.topics, unseen, streams=streams)
    facts.groups = groups if unseen else groups + never_committed(plan, groups)
    pages = dict.fromkeys(page for page in state.advertised.pages.values() if page)
    told = unchecked(read_pages(pages, _PAGE_S))
    facts.unchecked = {f"{page.host}:{page.port}": says for page, says in told.items()}
    return [stamp for _, seen in read for stamp in seen]


def _work(
    driver: Driver, state: ControlState, patience_s: float, streams: dict[str, KnownStream]
) -> list[tuple[CollectorFacts, list[Stamp]]]:
    """Inspect each collector, those below before those above; add what was read to `streams`."""
    plan = state.plan(state.begun_epoch)
    logs = {log_partition(log): log.name for log in plan.logs}
    places = [stream_partition(plan, node.name) for node in plan.collectors]
    began_ms, deadline = now_ms(), time.monotonic() + patience_s
    try:
        ends = driver.last_stable_offsets([*logs, *places])
    except TopicMissing:  # `of_changed_topics` reports it
        return []
    start = InspectionStart(began_ms, ends, deadline, streams)
    names = [node.name for node in plan.collectors]
    read: dict[str, tuple[CollectorFacts, list[Stamp]]] = {}
    for name in sorted(names, key=lambda name: len(plan.path(name)), reverse=True):
        read[name] = inspect_collector(driver, state, plan, name, start)
    return [read[name] for name in names]


def _older(
    driver: Driver, plan: Plan, topics: tuple[TopicFacts, ...]
) -> tuple[tuple[str, str, str], ...]:
    """Say which logs hold only messages that are older than the retention."""
    older = []
    for topic in topics:
        places = {log.name: log_partition(log) for log in plan.logs if log.topic == topic.name}
        if logs := older_logs(driver, places, topic.kept_ms, now_ms()):
            older.append(names_older(topic.name, topic.kept_ms, logs))
    return tuple(older)


def _damages(
    driver: Driver, state: ControlState, streams: Mapping[str, KnownStream]
) -> tuple[Damage, ...]:
    """Look for damage.

    The markers that explain a freeze may have been written after we read the control topic, so a
    freeze without markers is checked again.
    """
    try:
        damages = find_damage(driver, state, streams)
        if any(damage.harm is Harm.FROZEN for damage in damages):
            damages = find_damage(driver, read_control(driver, state.topic).state)
    except TopicMissing:
        return ()  # `of_changed_topics` reports it
    except Trimmed:
        return ()  # the collector whose stream it is reports it
    return damages


def held_logs(
    driver: Driver, admin: Admin, of: Iterable[Log], unseen: list[str]
) -> tuple[HeldLog, ...]:
    """Find logs whose last stable offset is held back, and ask for the open transactions."""
    logs = {log_partition(log): log.name for log in of}
    try:
        highs, ends = driver.high_watermarks(list(logs)), driver.last_stable_offsets(list(logs))
    except TopicMissing:  # `of_changed_topics` reports it
        return ()
    held = [partition for partition in logs if ends[partition] < highs[partition]]
    if not held:
        return ()
    opened = _seen(lambda: admin.open_transactions(held), "open transactions", unseen) or {}
    return tuple(
        HeldLog(
            logs[partition],
            partition.topic,
            partition.partition,
            ends[partition],
            highs[partition],
            tuple(opened.get(partition, ())),
        )
        for partition in held
    )
