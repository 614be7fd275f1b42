"""Finds out the facts about a deployment: asks the brokers, reads streams and cursors.

`of_settings` and `overtaken_groups` are what a start looks at, within a few requests; `look` is
what `amcast doctor` shows, and waits up to `patience_s` for collectors to order what stood in their
logs when it began. Nothing is written. What may not be seen is listed as unseen; only a cluster
that does not answer raises (`ClusterUnreachable`).

What of other machines' clocks can be seen without writing: the leading controller's (it answers
with its time), a collector's in its newest record, a producer's in a log's newest message. That a
clock is behind shows only in what is written while we look.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from collectors.doctor.checks import (
    Finding,
    of_brokers,
    of_changed_topics,
    of_groups,
    of_partitions,
    of_stamps,
    of_topics,
    of_unordered,
    of_unseen,
)
from collectors.doctor.consumer_groups import group_prefix, look_at_groups
from collectors.doctor.facts import (
    FOR_EVER,
    BrokerFacts,
    Facts,
    GroupFacts,
    HeldLog,
    PartitionFacts,
    Role,
    Stamp,
    TopicFacts,
)
from collectors.doctor.streams import Began, look_at_collector, now_ms, read_control
from collectors.mending import Damage, Harm
from collectors.reconfiguration.recovery import look_for_damage
from multicast.control import (
    ControlState,
    control_partition,
    log_partition,
    order_topic,
    stream_partition,
)
from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import (
    AmcastError,
    AuthenticationFailed,
    ClusterUnreachable,
    TlsFailed,
    TopicMissing,
)
from topology.tree import Plan

_NEWEST_S = 2.0
_T = TypeVar("_T")


# -- what every start looks at --------------------------------------------------------------


def of_settings(admin: Admin, plan: Plan) -> list[Finding]:
    """Judge brokers, topics and the controller's clock; what may not be seen is a note."""
    unseen: list[str] = []
    topics = look_at_topics(admin, plan, unseen)
    return [
        *of_changed_topics(plan, topic_ids_of(admin, plan, [])),  # `topics` has noted them
        *of_brokers(look_at_brokers(admin, unseen)),
        *of_topics(topics),
        *of_partitions(topics),
        *of_unordered(plan, topics),
        *of_stamps(_controller(admin, unseen)),
        *of_unseen(unseen),
    ]


def overtaken_groups(driver: Driver, admin: Admin, state: ControlState) -> list[Finding]:
    """Judge whether retention overtakes a known consumer of the newest epoch's topics."""
    if not state.epoch:
        return []
    unseen: list[str] = []
    topics = look_at_topics(admin, state.plan(), [])
    groups = _groups(driver, admin, state, topics, unseen)
    return [
        *of_groups(groups, topics, topic=state.topic, now_ms=now_ms()),
        *of_unseen(unseen),
    ]


# -- the parts ------------------------------------------------------------------------------


def look_at_brokers(admin: Admin, unseen: list[str]) -> tuple[BrokerFacts, ...]:
    """Ask for the brokers and their settings."""
    settings = _seen(admin.broker_settings, "the settings of brokers", unseen)
    here = admin.members()[1] if settings is None else settings
    return tuple(
        BrokerFacts(one, away=one not in here, settings=(settings or {}).get(one, {}))
        for one in admin.broker_ids()
    )


def look_at_topics(admin: Admin, plan: Plan, unseen: list[str]) -> tuple[TopicFacts, ...]:
    """Ask for those topics of a plan that exist; one whose settings are hidden is left out."""
    roles = dict.fromkeys((plan.topic, *(log.topic for log in plan.logs)), Role.DATA)
    roles[order_topic(plan.topic)] = Role.ORDER
    roles[control_partition(plan.topic).topic] = Role.CONTROL
    found = []
    for name, role in roles.items():
        what = f"topic {name} and its settings"
        facts = _seen(partial(_look_at_topic, admin, name, role), what, unseen)
        if facts is not None:
            found += facts
    return tuple(found)


def _look_at_topic(admin: Admin, name: str, role: Role) -> list[TopicFacts]:
    holders = admin.holders([name])
    if name not in holders:
        return []
    settings = admin.topic_settings([name])[name]
    partitions = tuple(PartitionFacts(*one) for one in holders[name])
    return [TopicFacts(name, role, settings, partitions)]


def topic_ids_of(admin: Admin, plan: Plan, unseen: list[str] | None = None) -> dict[str, str]:
    """Ask for the ids that a plan's topics have now.

    With `unseen`, a topic that may not be seen counts as the planned one, and is noted.
    """
    if unseen is None:
        return {name: str(found) for name, found in admin.topic_ids(list(plan.topic_ids)).items()}
    ids = {}
    for name, planned in plan.topic_ids.items():
        found = _seen(partial(admin.topic_ids, [name]), f"the id of topic {name}", unseen)
        if found is None:
            ids[name] = planned
        elif name in found:
            ids[name] = str(found[name])
    return ids


def _controller(admin: Admin, unseen: list[str]) -> list[Stamp]:
    after = now_ms()
    # Who may not describe the cluster is not shown others' groups, either, without a word.
    what = "the controller's clock, and groups that this user may not describe,"
    told = _seen(admin.controller_time_ms, what, unseen)
    if told is None:
        return []
    broker, stamp = told
    return [Stamp(f"the controller (broker {broker})", stamp, now_ms(), after)]


def _groups(
    driver: Driver,
    admin: Admin,
    state: ControlState,
    topics: tuple[TopicFacts, ...],
    unseen: list[str],
) -> tuple[GroupFacts, ...]:
    prefix = group_prefix(state.topic)
    names = _seen(lambda: admin.groups(prefix), "consumer groups", unseen) or []
    limited = [one.name for one in topics if one.role is Role.DATA and one.kept_bytes != FOR_EVER]
    sizes: dict[TopicPartition, int] = {}
    if limited and names:
        sizes = _seen(lambda: admin.sizes(limited), "the sizes of logs", unseen) or {}
    found: list[GroupFacts] = []
    for name in names:
        what = f"the cursor of group {name}"
        ask = partial(look_at_groups, driver, state, [name], topics, sizes)
        found += _seen(ask, what, unseen) or ()
    return tuple(found)


def _seen(ask: Callable[[], _T], what: str, unseen: list[str]) -> _T | None:
    """Ask; note what may not be seen."""
    try:
        return ask()
    except (AuthenticationFailed, ClusterUnreachable, TlsFailed):
        raise
    except AmcastError as error:
        unseen.append(f"{what} cannot be seen: {error}")
        return None


# -- the whole ------------------------------------------------------------------------------


def look(driver: Driver, admin: Admin, topic: str, *, patience_s: float = 2.0) -> Facts:
    """Find out everything; raises `ClusterUnreachable` where no broker answers."""
    unseen: list[str] = []
    facts = Facts(topic, now_ms(), brokers=look_at_brokers(admin, unseen))
    stamps = _controller(admin, unseen)
    try:
        control = read_control(driver, topic)
    except TopicMissing:
        return replace(facts, stamps=tuple(stamps), unseen=tuple(unseen), now_ms=now_ms())
    state = control.state
    facts = replace(
        facts, control_foreign=tuple(control.foreign), plans_lost=control.lost, unseen=()
    )
    if state.epoch:
        plan = state.plan()
        shown = state.begun_epoch
        facts = replace(
            facts,
            plan=plan,
            shown=shown,
            topics=look_at_topics(admin, plan, unseen),
            topic_ids=topic_ids_of(admin, plan, []),
        )
        work = partial(_work, driver, state, facts, patience_s, unseen)
        facts, seen = _seen(work, "what collectors do", unseen) or (facts, [])
        stamps += seen
        facts = replace(facts, held=_held(driver, admin, state.plan(shown), unseen))
        damages = _seen(lambda: _damages(driver, state), "the streams' agreement", unseen)
        facts = replace(facts, damages=damages or ())
        facts = replace(facts, groups=_groups(driver, admin, state, facts.topics, unseen))
    return replace(facts, stamps=tuple(stamps), unseen=tuple(unseen), now_ms=now_ms())


def _work(
    driver: Driver, state: ControlState, facts: Facts, patience_s: float, unseen: list[str]
) -> tuple[Facts, list[Stamp]]:
    """Look at every collector, and at the newest message of every log."""
    plan = state.plan(facts.shown)
    logs = {log_partition(log): log.name for log in plan.logs}
    streams = [stream_partition(plan, node.name) for node in plan.collectors]
    at_ms, deadline = now_ms(), time.monotonic() + patience_s
    try:
        began = Began(at_ms, driver.last_stable_offsets([*logs, *streams]), deadline)
    except TopicMissing:  # the findings of changed topics tell which
        return facts, []
    found, stamps = [], []
    for node in plan.collectors:
        seen, told = look_at_collector(driver, state, plan, node.name, began)
        found.append(seen)
        stamps += told
    newest = partial(_newest, driver, logs, began)
    stamps += _seen(newest, "the newest messages of logs", unseen) or []
    return replace(facts, collectors=tuple(found)), stamps


def _damages(driver: Driver, state: ControlState) -> tuple[Damage, ...]:
    """Look for damage; what asks for a freeze may have been written after we read it."""
    try:
        found = look_for_damage(driver, state)
        if any(one.harm is Harm.FROZEN for one in found):
            found = look_for_damage(driver, read_control(driver, state.topic).state)
    except TopicMissing:
        return ()  # which is a finding of its own
    return found


def _held(driver: Driver, admin: Admin, plan: Plan, unseen: list[str]) -> tuple[HeldLog, ...]:
    """Look for logs whose end is held back, and ask who does it."""
    logs = {log_partition(log): log.name for log in plan.logs}
    try:
        highs, ends = driver.high_watermarks(list(logs)), driver.last_stable_offsets(list(logs))
    except TopicMissing:  # the findings of changed topics tell which
        return ()
    held = [at for at in logs if ends[at] < highs[at]]
    if not held:
        return ()
    told = _seen(lambda: admin.open_transactions(held), "open transactions", unseen) or {}
    return tuple(
        HeldLog(logs[at], at.topic, at.partition, ends[at], highs[at], tuple(told.get(at, ())))
        for at in held
    )


def _newest(driver: Driver, logs: dict[TopicPartition, str], began: Began) -> list[Stamp]:
    """Read the stamp of the newest message of each log; a log that ends in markers shows none."""
    begins, ends = driver.log_start_offsets(list(logs)), driver.last_stable_offsets(list(logs))
    starts = {at: ends[at] - 1 for at in logs if ends[at] > begins[at]}
    found: dict[TopicPartition, Stamp] = {}
    waiting = dict(starts)
    reader = driver.reader(starts)
    deadline = time.monotonic() + _NEWEST_S
    try:
        while waiting and time.monotonic() < deadline:
            for fetched in reader.poll(deadline - time.monotonic()):
                for record in fetched.records:
                    after = began.at_ms if record.offset >= began.ends[fetched.partition] else None
                    whose = f"the producer of log {logs[fetched.partition]}'s newest message"
                    found[fetched.partition] = Stamp(whose, record.timestamp_ms, now_ms(), after)
                waiting.pop(fetched.partition, None)
    finally:
        reader.close()
    return list(found.values())
