"""What is wrong with a deployment: facts go in, findings come out.

`apply`, `verify`, the start of collectors and `amcast doctor` judge by these functions alone.
No I/O, no clock; `inspection.py` asks Kafka for the facts.

    REFUSE   a guarantee is broken, or may be at any moment: nobody starts on this
    WARN     a promise may be broken soon, or somebody does not do its work
    NOTE     worth knowing; nothing is wrong

Invariant: a finding says in one sentence what is so, and in another what to do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collectors.doctor.facts import (
    FOR_EVER,
    BrokerFacts,
    CollectorFacts,
    Facts,
    GroupFacts,
    GroupPosition,
    HeldLog,
    Role,
    Stamp,
    TopicFacts,
    length,
)
from collectors.mending import Damage, Harm
from multicast.errors import TopicChanged, UnsafeCluster
from topology.tree import Plan

CLOCKS_MS = 5_000  # what synchronised machines never differ by, and no retention notices


class Weight(enum.StrEnum):
    """How bad a finding is."""

    REFUSE = "refuse"
    WARN = "warn"
    NOTE = "note"


class Check(enum.StrEnum):
    """What was looked at."""

    UNCLEAN = "unclean election"
    IN_SYNC = "min in-sync replicas"
    REPLICATION = "replication"
    COMPACTION = "compaction"
    RETENTION = "retention"
    TOPIC_CHANGED = "topic made again"
    BROKER = "broker"
    PARTITION = "partition"
    EPOCH = "epoch"
    COLLECTOR = "collector"
    DAMAGE = "damage"
    FOREIGN = "foreign records"
    CONSUMER = "consumer"
    TRANSACTION = "open transaction"
    CLOCK = "clocks"
    UNSEEN = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is so, and what to do about it."""

    weight: Weight
    check: Check
    about: str
    says: str
    do: str

    def __str__(self) -> str:
        """Give both sentences as one."""
        return f"{self.says}; {self.do}"


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `TopicChanged` or `UnsafeCluster` where one of these weighs so; say how many more."""
    worst = [one for one in findings if one.weight is Weight.REFUSE]
    if not worst:
        return
    more = f" (and {len(worst) - 1} more: see 'amcast doctor')" if len(worst) > 1 else ""
    error = TopicChanged if worst[0].check is Check.TOPIC_CHANGED else UnsafeCluster
    raise error(f"{worst[0]}{more}")


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Judge everything, what is worst first."""
    found = [
        *of_brokers(facts.brokers),
        *(of_changed_topics(facts.plan, facts.topic_ids) if facts.plan else ()),
        *of_topics(facts.topics),
        *of_partitions(facts.topics),
        *(of_unordered(facts.plan, facts.topics) if facts.plan else ()),
        *of_epoch(facts),
        *of_control(facts),
        *of_damage(facts.damages),
        *of_held_logs(facts.held, now_ms=facts.now_ms),
        *of_collectors(facts.collectors, now_ms=facts.now_ms),
        *of_groups(facts.groups, facts.topics, topic=facts.topic, now_ms=facts.now_ms),
        *of_cursors_kept(facts.brokers, facts.topics),
        *of_stamps(facts.stamps),
        *of_unseen(facts.unseen),
    ]
    order = list(Weight)
    return tuple(sorted(found, key=lambda one: order.index(one.weight)))


def of_brokers(brokers: Iterable[BrokerFacts]) -> list[Finding]:
    """Judge the brokers' own settings, and that all are there."""
    found = []
    for one in brokers:
        name = f"broker {one.broker}"
        if one.away:
            found.append(
                Finding(
                    Weight.WARN,
                    Check.BROKER,
                    name,
                    f"{name} is registered and away",
                    "start it, or unregister it where it has gone for good",
                )
            )
        if one.settings.get("unclean.leader.election.enable") == "true":
            found.append(_unclean(name))
    return found


def of_changed_topics(plan: Plan, found: Mapping[str, str]) -> list[Finding]:
    """Hold the ids of the topics that exist to those that the plan records."""
    return [
        Finding(
            Weight.REFUSE,
            Check.TOPIC_CHANGED,
            f"topic {name}",
            f"topic {name} is not the one that epoch {plan.epoch} was applied to "
            f"(it was deleted{' and made again' if name in found else ''})",
            "its messages are gone: begin with another topic name",
        )
        for name, planned in plan.topic_ids.items()
        if found.get(name) != planned
    ]


def of_topics(topics: Sequence[TopicFacts]) -> list[Finding]:
    """Judge the settings of topics that a plan uses."""
    found: list[Finding] = []
    for one in topics:
        found += _of_safety(one)
        found += _of_cleanup(one)
    found += _of_order_kept(topics)
    few = [one for one in topics if 0 < one.replication < 3]
    if few:
        least = min(one.replication for one in few)
        what = "one broker" if least == 1 else "two brokers at once"
        found.append(
            Finding(
                Weight.NOTE,
                Check.REPLICATION,
                "topics",
                f"topics have replication {least}, so the loss of {what} may lose messages",
                "where messages matter, let Kafka hold 3 replicas and min.insync.replicas be 2",
            )
        )
    return found


def _unclean(name: str) -> Finding:
    return Finding(
        Weight.REFUSE,
        Check.UNCLEAN,
        name,
        f"{name} has unclean.leader.election.enable=true, so acknowledged messages may be lost",
        "set it to false",
    )


def _of_safety(topic: TopicFacts) -> list[Finding]:
    found = []
    name = f"topic {topic.name}"
    if topic.settings.get("unclean.leader.election.enable") == "true":
        found.append(_unclean(name))
    said = f"{name} has replication {topic.replication} and min.insync.replicas {topic.in_sync_min}"
    if topic.replication >= 3 and topic.in_sync_min < 2:
        found.append(
            Finding(
                Weight.REFUSE,
                Check.IN_SYNC,
                name,
                f"{said}, so one crash may lose acknowledged messages",
                "set it to 2",
            )
        )
    if 0 < topic.replication < topic.in_sync_min:
        found.append(
            Finding(
                Weight.WARN,
                Check.IN_SYNC,
                name,
                f"{said}, so nothing can be appended",
                f"set it to {max(1, topic.replication - 1)}",
            )
        )
    return found


def _of_cleanup(topic: TopicFacts) -> list[Finding]:
    policies = topic.settings["cleanup.policy"].split(",")
    name = f"topic {topic.name}"
    said = f"{name} has cleanup.policy={topic.settings['cleanup.policy']}"
    if topic.role is not Role.CONTROL and "compact" in policies:
        says, do = f"{said}, so messages or their order may vanish", "set it to delete"
    elif topic.role is Role.CONTROL and policies != ["compact"]:
        says, do = f"{said}, so plans may vanish", "set it to compact"
    else:
        return []
    return [Finding(Weight.REFUSE, Check.COMPACTION, name, says, do)]


def _of_order_kept(topics: Sequence[TopicFacts]) -> list[Finding]:
    found = []
    for order in [one for one in topics if one.role is Role.ORDER]:
        name = f"topic {order.name}"
        if order.kept_bytes != FOR_EVER:
            found.append(
                Finding(
                    Weight.REFUSE,
                    Check.RETENTION,
                    name,
                    f"{name} has retention.bytes={order.kept_bytes}, so messages may outlive "
                    f"their order",
                    "set it to -1",
                )
            )
        for one in topics:
            longer = one.kept_ms == FOR_EVER or one.kept_ms > order.kept_ms
            if one.role is Role.DATA and order.kept_ms != FOR_EVER and longer:
                found.append(
                    Finding(
                        Weight.REFUSE,
                        Check.RETENTION,
                        name,
                        f"{name} keeps records for {order.kept_ms} ms and {one.name} for "
                        f"{one.kept_ms} ms, so messages may outlive their order",
                        f"raise retention.ms of {order.name}",
                    )
                )
    return found


def of_partitions(topics: Iterable[TopicFacts]) -> list[Finding]:
    """Judge who holds the Kafka partitions now."""
    found = []
    for topic in topics:
        for one in topic.partitions:
            away = [str(broker) for broker in one.replicas if broker not in one.in_sync]
            if one.leader < 0:
                says = "has no leader, so nothing can be read or appended there"
            elif len(one.in_sync) < topic.in_sync_min <= len(one.replicas):
                says = (
                    f"has {len(one.in_sync)} in-sync replicas of {topic.in_sync_min} needed, so "
                    f"nothing can be appended there"
                )
            elif away:
                says = f"has {len(one.in_sync)} of {len(one.replicas)} replicas in sync"
            else:
                continue
            name = f"{topic.name}/{one.partition}"
            which = f" {', '.join(away)}" if away else "s that hold it"
            do = f"see to broker{which}"
            found.append(Finding(Weight.WARN, Check.PARTITION, name, f"{name} {says}", do))
    return found


def of_unordered(plan: Plan, topics: Iterable[TopicFacts]) -> list[Finding]:
    """Judge whether the topic has partitions that the plan does not order."""
    ordered = {log.partition for log in plan.logs if log.topic == plan.topic}
    found = []
    for topic in [one for one in topics if one.name == plan.topic]:
        rest = [str(one.partition) for one in topic.partitions if one.partition not in ordered]
        if rest:
            what = f"partition {rest[0]}" if len(rest) == 1 else f"partitions {', '.join(rest)}"
            found.append(
                Finding(
                    Weight.WARN,
                    Check.PARTITION,
                    f"topic {topic.name}",
                    f"topic {topic.name} has {len(topic.partitions)} partitions and the plan of "
                    f"epoch {plan.epoch} orders {len(ordered)}: no consumer is sent what stands "
                    f"in {what}",
                    f"name all {len(topic.partitions)} in the interest file, then run 'amcast "
                    f"topology plan --from-cluster' and 'amcast topology apply'",
                )
            )
    return found


def of_epoch(facts: Facts) -> list[Finding]:
    """Judge whether a plan is there, and whether its epoch has begun."""
    if facts.plan is None:
        says = f"no plan was applied to topic {facts.topic}"
        do = "make one with 'amcast topology plan' and apply it with 'amcast topology apply'"
    elif facts.shown < facts.plan.epoch:
        says = f"epoch {facts.plan.epoch} has not begun: its apply still runs or was interrupted"
        do = "where no 'amcast topology apply' runs, run it again with that plan"
    else:
        return []
    return [Finding(Weight.WARN, Check.EPOCH, f"topic {facts.topic}", says, do)]


def of_control(facts: Facts) -> list[Finding]:
    """Judge what stands in the control topic that nobody of ours wrote."""
    return _of_foreign(f"the control topic {facts.topic}.topology", facts.control_foreign)


def _of_foreign(where: str, offsets: Sequence[int]) -> list[Finding]:
    if not offsets:
        return []
    some = "a foreign record" if len(offsets) == 1 else f"{len(offsets)} foreign records"
    says = f"{where} holds {some}, the last at offset {offsets[-1]}; everybody skips them"
    do = "find out who writes there, and let only collectors and operators write to that topic"
    return [Finding(Weight.WARN, Check.FOREIGN, where, says, do)]


def of_collectors(collectors: Sequence[CollectorFacts], *, now_ms: int) -> list[Finding]:
    """Judge whether every collector does its work; one below a late one is not blamed for it."""
    by_name = {one.name: one for one in collectors}
    found: list[Finding] = []
    for one in collectors:
        name = f"collector {one.name}"
        found += _of_foreign(f"the stream of {name}", one.foreign)
        above = by_name[one.parent].behind if one.parent in by_name else {}
        behind = {log: count for log, count in one.behind.items() if log not in above}
        if one.problem is not None:
            do = "see its log; a stream that cannot be read stops its consumers"
            found.append(Finding(Weight.WARN, Check.COLLECTOR, name, one.problem, do))
        elif behind:
            ago = "it never ordered anything in this epoch"
            if one.last_ms is not None:
                ago = f"its last record is {length(now_ms - one.last_ms)} old"
            found.append(
                Finding(
                    Weight.WARN,
                    Check.COLLECTOR,
                    name,
                    f"{name} left {sum(behind.values())} offsets of {', '.join(sorted(behind))} "
                    f"without an order for {one.waited_s:.1f} s; {ago}",
                    f"see whether it runs and what it logs; 'amcast collectors run --node "
                    f"{one.name}' starts one more",
                )
            )
        elif not one.advertised_address and not one.records:
            found.append(
                Finding(
                    Weight.NOTE,
                    Check.COLLECTOR,
                    name,
                    f"{name} has not been seen in this epoch",
                    f"'amcast collectors run --node {one.name}' starts it",
                )
            )
    return found


def of_damage(damages: Iterable[Damage]) -> list[Finding]:
    """Judge what wrong order records have done."""
    do = "run 'amcast topology recover', and find out what wrote that record"
    newer = "upgrade this program where a newer one wrote it; else "
    return [
        Finding(
            Weight.WARN,
            Check.DAMAGE,
            f"collector {one.collector}",
            one.says,
            newer + do if one.harm is Harm.UNREADABLE else do,
        )
        for one in damages
    ]


def of_held_logs(held: Iterable[HeldLog], *, now_ms: int) -> list[Finding]:
    """Judge logs that wait for an open transaction; a short one is no fault."""
    return [
        Finding(Weight.WARN, Check.TRANSACTION, f"log {one.log}", one.says(now_ms), one.do(now_ms))
        for one in held
        if not one.opened or one.oldest(now_ms) is not None
    ]


def of_groups(
    groups: Iterable[GroupFacts], topics: Iterable[TopicFacts], *, topic: str, now_ms: int
) -> list[Finding]:
    """Judge whether retention overtakes a consumer: whether it has, or may before it returns."""
    by_name = {one.name: one for one in topics}
    found = []
    for group in groups:
        name = f"consumer {group.group}"
        gone = f"where it has gone for good, delete the consumer group amcast.{topic}.{group.group}"
        if group.problem is not None:
            found.append(Finding(Weight.WARN, Check.CONSUMER, name, group.problem, gone))
        for place in group.places:
            kept = by_name.get(place.topic)
            says = _overtaken(place, kept, now_ms) if kept is not None else None
            if says is None:
                continue
            if place.position < place.begin:
                do = f"seek it to 'latest' (there is a gap), and restore what it missed; {gone}"
            else:
                do = f"start it, or raise retention of topic {place.topic}; {gone}"
            found.append(
                Finding(Weight.WARN, Check.RETENTION, name, f"{name} {says}", do),
            )
    return found


def _overtaken(place: GroupPosition, topic: TopicFacts, now_ms: int) -> str | None:
    if place.position < place.begin:
        return (
            f"reads on at offset {place.position} of {place.log}, which begins at {place.begin}: "
            f"retention went past it, and it will stop with a named error"
        )
    if place.lag == 0:
        return None
    if topic.kept_ms != FOR_EVER and place.oldest_ms is not None:
        age_ms = now_ms - place.oldest_ms
        if 2 * age_ms >= topic.kept_ms:
            left = topic.kept_ms - age_ms
            when = f"in {length(left)}" if left > 0 else "at any moment"
            return (
                f"has {place.lag} offsets of {place.log} to read, the first {length(age_ms)} old; "
                f"topic {topic.name} keeps them for {length(topic.kept_ms)}, so retention may "
                f"overtake it {when}"
            )
    left_bytes = place.bytes_left or 0
    if topic.kept_bytes != FOR_EVER and 2 * left_bytes >= topic.kept_bytes:
        return (
            f"has about {left_bytes} bytes of {place.log} to read; topic {topic.name} keeps "
            f"{topic.kept_bytes}, so retention may overtake it"
        )
    return None


def of_cursors_kept(brokers: Iterable[BrokerFacts], topics: Sequence[TopicFacts]) -> list[Finding]:
    """Judge whether brokers forget a sleeping consumer's cursor before its messages are gone."""
    data = [one.kept_ms for one in topics if one.role is Role.DATA]
    longest = FOR_EVER if FOR_EVER in data else max(data, default=0)
    minutes = [int(one.settings.get("offsets.retention.minutes", -1)) for one in brokers]
    kept = min((one * 60_000 for one in minutes if one > 0), default=None)
    if kept is None or 0 <= longest <= kept:
        return []
    return [
        Finding(
            Weight.NOTE,
            Check.RETENTION,
            "cursors",
            f"brokers forget the cursor of a consumer that is away for {length(kept)}, while "
            f"messages are kept longer; it then begins where its 'start' says",
            "raise offsets.retention.minutes of the brokers",
        )
    ]


def of_stamps(stamps: Iterable[Stamp]) -> list[Finding]:
    """Judge whose clock is far from ours. What nobody can see is not found."""
    found = []
    for one in stamps:
        if one.ahead_ms > CLOCKS_MS:
            far = f"{length(one.ahead_ms)} ahead of ours"
        elif one.late_ms is not None and one.late_ms > CLOCKS_MS:
            far = f"{length(one.late_ms)} behind ours"
        else:
            continue
        found.append(
            Finding(
                Weight.WARN,
                Check.CLOCK,
                one.whose,
                f"the clock of {one.whose} is at least {far}; retention and seeks by time go by "
                f"such stamps, the order does not",
                "synchronise the machines' clocks (ours may be the wrong one)",
            )
        )
    return found


def of_unseen(unseen: Iterable[str]) -> list[Finding]:
    """Say what was not checked, and why."""
    return [
        Finding(Weight.NOTE, Check.UNSEEN, "this look", one, "give this user the right to see it")
        for one in unseen
    ]
