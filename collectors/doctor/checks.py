"""The checks of a deployment: each function turns facts into findings.

`amcast topology apply`, `amcast topology verify`, the start of collectors and `amcast doctor` use
these functions and no others. No I/O, no clock; `inspection.py` asks Kafka for the facts.

    REFUSE   a guarantee is broken, or may be at any moment: neither plans nor collectors start
    WARN     messages may be lost or delayed soon, or a process does not do its work
    NOTE     worth knowing; nothing is wrong

Invariant: each finding has one sentence on the state and one on what to do.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from collectors.core.mending import Damage, Harm
from collectors.doctor.facts import (
    AHEAD_MS,
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
from multicast.errors import TopicChanged, UnsafeCluster
from topology.draw import shortened
from topology.tree import Plan

# Synchronised clocks never differ by so much, and no retention time is so short that it matters.
CLOCKS_MS = 5_000


class Weight(enum.StrEnum):
    """How bad a finding is."""

    REFUSE = "refuse"
    WARN = "warn"
    NOTE = "note"


class Check(enum.StrEnum):
    """What was checked."""

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
    AHEAD = "ordered ahead"
    TRANSACTION = "open transaction"
    CLOCK = "clocks"
    UNSEEN = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result: `says` states what is the case about `about`, `do` what to do."""

    weight: Weight
    check: Check
    about: str
    says: str
    do: str

    def __str__(self) -> str:
        """Join both sentences."""
        return f"{self.says}; {self.do}"


def refuse(findings: Iterable[Finding]) -> None:
    """Raise `TopicChanged` or `UnsafeCluster`, as the first is, with all findings to REFUSE."""
    worst = [finding for finding in findings if finding.weight is Weight.REFUSE]
    if worst:
        error = TopicChanged if worst[0].check is Check.TOPIC_CHANGED else UnsafeCluster
        raise error(". Besides, ".join(str(finding) for finding in worst))


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Run all checks, and give their findings, the worst first."""
    cut = {damage.collector for damage in facts.damages if damage.harm is Harm.CUT}
    readable = [each for each in facts.collectors if each.name not in cut]
    results = [
        *of_brokers(facts.brokers),
        *(of_changed_topics(facts.plan, facts.topic_ids) if facts.plan else ()),
        *of_topics(facts.topics),
        *of_partitions(facts.topics),
        *(of_unordered(facts.plan, facts.topics) if facts.plan else ()),
        *of_epoch(facts),
        *_of_foreign(f"the control topic {facts.topic}.topology", facts.control_foreign),
        *_of_foreign(f"the control topic {facts.topic}.collectors", facts.collectors_foreign),
        *of_damage(facts.damages),
        *of_ahead(facts.collectors, facts.damages),
        *of_held_logs(facts.held, now_ms=facts.now_ms),
        *(_note(Check.RETENTION, *older) for older in facts.older),
        *of_collectors(readable, now_ms=facts.now_ms),
        *of_groups(facts.groups, facts.topics, topic=facts.topic, now_ms=facts.now_ms),
        *of_cursors_kept(facts.brokers, facts.topics),
        *of_stamps(facts.stamps),
        *of_unseen(facts.unseen),
    ]
    order = list(Weight)
    return tuple(sorted(results, key=lambda finding: order.index(finding.weight)))


def of_brokers(brokers: Iterable[BrokerFacts]) -> list[Finding]:
    """Check that all registered brokers answer, and their own settings."""
    results = []
    for broker in brokers:
        name = f"broker {broker.broker}"
        if broker.away:
            says = f"{name} is registered, but it is fenced or does not answer"
            do = "start it; if it is gone for good, unregister it"
            results.append(Finding(Weight.WARN, Check.BROKER, name, says, do))
        if broker.settings.get("unclean.leader.election.enable") == "true":
            results.append(_unclean(name))
    return results


def of_changed_topics(plan: Plan, topic_ids: Mapping[str, str]) -> list[Finding]:
    """Compare `topic_ids`, the IDs of the topics that exist, with those that the plan records."""
    return [
        Finding(
            Weight.REFUSE,
            Check.TOPIC_CHANGED,
            f"topic {name}",
            f"topic {name} is not the one that epoch {plan.epoch} was applied to "
            f"(it was deleted{' and recreated' if name in topic_ids else ''})",
            "its messages are lost: use another topic name",
        )
        for name, planned in plan.topic_ids.items()
        if topic_ids.get(name) != planned
    ]


def of_topics(topics: Sequence[TopicFacts]) -> list[Finding]:
    """Check the settings of the topics that a plan uses."""
    results: list[Finding] = []
    for topic in topics:
        results += _of_safety(topic)
        results += _of_cleanup(topic)
    results += _of_order_kept(topics)
    few = [topic for topic in topics if 0 < topic.replication < 3]
    if few:
        least = min(topic.replication for topic in few)
        what = "one broker" if least == 1 else "two brokers at once"
        results.append(
            Finding(
                Weight.NOTE,
                Check.REPLICATION,
                "topics",
                f"topics have replication {least}, so the loss of {what} may lose messages",
                "if messages matter, give the topics 3 replicas and min.insync.replicas=2",
            )
        )
    return results


def _unclean(name: str) -> Finding:
    return Finding(
        Weight.REFUSE,
        Check.UNCLEAN,
        name,
        f"{name} has unclean.leader.election.enable=true, so acknowledged messages may be lost",
        "set it to false",
    )


def _of_safety(topic: TopicFacts) -> list[Finding]:
    results = []
    name = f"topic {topic.name}"
    if topic.settings.get("unclean.leader.election.enable") == "true":
        results.append(_unclean(name))
    state = (
        f"{name} has replication {topic.replication} and min.insync.replicas {topic.in_sync_min}"
    )
    if topic.replication >= 3 and topic.in_sync_min < 2:
        says = f"{state}, so one crash may lose acknowledged messages"
        do = "set min.insync.replicas to 2"
        results.append(Finding(Weight.REFUSE, Check.IN_SYNC, name, says, do))
    if 0 < topic.replication < topic.in_sync_min:
        says = f"{state}, so nothing can be appended"
        do = f"set min.insync.replicas to {max(1, topic.replication - 1)}"
        results.append(Finding(Weight.WARN, Check.IN_SYNC, name, says, do))
    return results


def _of_cleanup(topic: TopicFacts) -> list[Finding]:
    policies = topic.settings["cleanup.policy"].split(",")
    name = f"topic {topic.name}"
    state = f"{name} has cleanup.policy={topic.settings['cleanup.policy']}"
    stated = {Role.CONTROL: "plans", Role.COLLECTORS: "checkpoints"}.get(topic.role)
    if stated is None and "compact" in policies:
        says, do = f"{state}, so messages or their order may be deleted", "set it to delete"
    elif stated is not None and policies != ["compact"]:
        says, do = f"{state}, so {stated} may be deleted", "set it to compact"
    else:
        return []
    return [Finding(Weight.REFUSE, Check.COMPACTION, name, says, do)]


def _of_order_kept(topics: Sequence[TopicFacts]) -> list[Finding]:
    results = []
    for order in [topic for topic in topics if topic.role is Role.ORDER]:
        name = f"topic {order.name}"
        if order.kept_bytes != FOR_EVER:
            kept = f"retention.bytes={order.kept_bytes}"
            says = f"{name} has {kept}, so messages may outlive their order"
            do = "set retention.bytes to -1"
            results.append(Finding(Weight.REFUSE, Check.RETENTION, name, says, do))
        for data in [topic for topic in topics if topic.role is Role.DATA]:
            longer = data.kept_ms == FOR_EVER or data.kept_ms > order.kept_ms
            if order.kept_ms != FOR_EVER and longer:
                says = (
                    f"{name} keeps records for {order.kept_ms} ms and {data.name} for "
                    f"{data.kept_ms} ms, so messages may outlive their order"
                )
                do = f"raise retention.ms of {order.name}"
                results.append(Finding(Weight.REFUSE, Check.RETENTION, name, says, do))
    return results


def of_partitions(topics: Iterable[TopicFacts]) -> list[Finding]:
    """Check that each Kafka partition has a leader and all its replicas in sync."""
    results = []
    for topic in topics:
        for partition in topic.partitions:
            in_sync, replicas = partition.in_sync, partition.replicas
            away = [str(broker) for broker in replicas if broker not in in_sync]
            if partition.leader < 0:
                says = "has no leader, so it can be neither read nor appended to"
            elif len(in_sync) < topic.in_sync_min <= len(replicas):
                says = (
                    f"has {len(in_sync)} in-sync replicas of {topic.in_sync_min} needed, so "
                    f"nothing can be appended to it"
                )
            elif away:
                says = f"has {len(in_sync)} of {len(replicas)} replicas in sync"
            else:
                continue
            name = f"{topic.name}/{partition.partition}"
            do = f"check broker {', '.join(away)}" if away else "check the brokers that hold it"
            results.append(Finding(Weight.WARN, Check.PARTITION, name, f"{name} {says}", do))
    return results


def of_unordered(plan: Plan, topics: Iterable[TopicFacts]) -> list[Finding]:
    """Check that the plan orders all partitions of its topic."""
    ordered = {log.partition for log in plan.logs if log.topic == plan.topic}
    results = []
    for topic in [topic for topic in topics if topic.name == plan.topic]:
        numbers = [partition.partition for partition in topic.partitions]
        rest = [str(number) for number in numbers if number not in ordered]
        if rest:
            what = f"partition {rest[0]}" if len(rest) == 1 else f"partitions {', '.join(rest)}"
            results.append(
                Finding(
                    Weight.WARN,
                    Check.PARTITION,
                    f"topic {topic.name}",
                    f"topic {topic.name} has {len(topic.partitions)} partitions and the plan of "
                    f"epoch {plan.epoch} orders {len(ordered)}: no consumer gets the messages "
                    f"in {what}",
                    f"name all {len(topic.partitions)} in the interest file, then run 'amcast "
                    f"topology plan FILE --from-cluster' and 'amcast topology apply'",
                )
            )
    return results


def of_epoch(facts: Facts) -> list[Finding]:
    """Check that a plan was applied, and that its epoch has begun."""
    if facts.plan is None:
        says = f"no plan was applied to topic {facts.topic}"
        do = "make one with 'amcast topology plan' and apply it with 'amcast topology apply'"
    elif facts.begun_epoch < facts.plan.epoch:
        says = (
            f"epoch {facts.plan.epoch} has not begun: 'amcast topology apply' still runs or was "
            f"interrupted"
        )
        do = "if 'amcast topology apply' does not run, run it again with the same plan"
    else:
        return []
    return [Finding(Weight.WARN, Check.EPOCH, f"topic {facts.topic}", says, do)]


def _of_foreign(where: str, offsets: Sequence[int]) -> list[Finding]:
    if not offsets:
        return []
    some = "a foreign record" if len(offsets) == 1 else f"{len(offsets)} foreign records"
    says = f"{where} holds {some}, the last at offset {offsets[-1]}; all readers skip them"
    do = "find out what wrote them, and let only collectors and operators write to that topic"
    return [Finding(Weight.WARN, Check.FOREIGN, where, says, do)]


def of_collectors(collectors: Sequence[CollectorFacts], *, now_ms: int) -> list[Finding]:
    """Check that each collector keeps up with its logs.

    A collector is not blamed for logs in which its parent is behind, too.
    """
    by_name = {collector.name: collector for collector in collectors}
    results: list[Finding] = []
    ended: dict[str, list[str]] = {}
    missing: list[str] = []
    for collector in collectors:
        name = f"collector {collector.name}"
        results += _of_foreign(f"the stream of {name}", collector.foreign)
        above = by_name[collector.parent].behind if collector.parent in by_name else {}
        behind = {log: count for log, count in collector.behind.items() if log not in above}
        if collector.problem is not None:
            do = "read the collector's log output; consumers of that stream stand still"
            results.append(Finding(Weight.WARN, Check.COLLECTOR, name, collector.problem, do))
        elif behind:
            ago = "it has ordered nothing in this epoch"
            if collector.last_ms is not None:
                ago = f"its last record is {length(now_ms - collector.last_ms)} old"
            results.append(
                Finding(
                    Weight.WARN,
                    Check.COLLECTOR,
                    name,
                    f"{name} has not ordered {sum(behind.values())} offsets of "
                    f"{', '.join(sorted(behind))} for {collector.waited_s:.1f} s; {ago}",
                    f"check whether it runs and what it logs; 'amcast collectors run --node "
                    f"{collector.name}' starts another instance",
                )
            )
        elif collector.ended_at and not collector.frozen:
            ended.setdefault(collector.ended_at, []).append(collector.name)
        elif not collector.is_open:
            missing.append(collector.name)
    for address, names in ended.items():
        says = f"the process that last acted for {_named(names)} has ended: nobody listens at "
        says += f"{address} any more"
        do = "unless standbys run, start another: 'amcast collectors run'; meanwhile what has no "
        do += "ticket, and collectors below, wait"
        results.append(Finding(Weight.NOTE, Check.COLLECTOR, _named(names), says, do))
    if missing:
        says = f"nobody has started {_named(missing)} in this epoch"
        do = "'amcast collectors run' starts what no other process runs"
        results.append(Finding(Weight.NOTE, Check.COLLECTOR, _named(missing), says, do))
    return results


def _named(collectors: Sequence[str]) -> str:
    return f"collector{'' if len(collectors) == 1 else 's'} {shortened(collectors)}"


def of_damage(damages: Iterable[Damage]) -> list[Finding]:
    """Report what wrong order records have damaged, and what Kafka has lost."""
    do = "run 'amcast topology recover', and find out what wrote that record"
    results = []
    for damage in damages:
        about = f"log {damage.log}" if damage.harm is Harm.LOST else f"collector {damage.collector}"
        is_loss = damage.harm in (Harm.LOST, Harm.CUT)
        what = "run 'amcast topology recover --accept-loss'" if is_loss else do
        results.append(Finding(Weight.WARN, Check.DAMAGE, about, damage.says, what))
    return results


def of_ahead(collectors: Iterable[CollectorFacts], damages: Iterable[Damage]) -> list[Finding]:
    """Report logs that are ordered ahead of their ends for long, unless it is a damage."""
    damaged = {damage.log for damage in damages}
    return [
        Finding(Weight.WARN, Check.AHEAD, f"log {log.log}", log.says(), log.do())
        for collector in collectors
        for log in collector.ahead
        if log.log not in damaged and (log.for_ms is None or log.for_ms >= AHEAD_MS)
    ]


def of_held_logs(held: Iterable[HeldLog], *, now_ms: int) -> list[Finding]:
    """Report logs that wait for a transaction that has been open for long, or is not known."""
    return [
        Finding(Weight.WARN, Check.TRANSACTION, f"log {log.log}", log.says(now_ms), log.do(now_ms))
        for log in held
        if not log.opened or log.oldest(now_ms) is not None
    ]


def of_groups(
    groups: Iterable[GroupFacts], topics: Iterable[TopicFacts], *, topic: str, now_ms: int
) -> list[Finding]:
    """Check that retention has not overtaken a consumer, and will not do so soon."""
    by_name = {facts.name: facts for facts in topics}
    results = []
    for group in groups:
        name = f"consumer {group.group}"
        gone = f"if it is gone for good, delete the consumer group amcast.{topic}.{group.group}"
        if group.problem is not None:
            results.append(Finding(Weight.WARN, Check.CONSUMER, name, group.problem, gone))
        for place in group.places:
            kept = by_name.get(place.topic)
            says = _overtaken(place, kept, now_ms) if kept is not None else None
            if says is None:
                continue
            if place.position < place.begin:
                do = f"seek it to 'latest', and restore the messages that it skips then; {gone}"
            else:
                do = f"start it, or raise the retention of topic {place.topic}; {gone}"
            results.append(
                Finding(Weight.WARN, Check.RETENTION, name, f"{name} {says}", do),
            )
    return results


def _overtaken(place: GroupPosition, topic: TopicFacts, now_ms: int) -> str | None:
    if place.position < place.begin:
        return (
            f"continues at offset {place.position} of {place.log}, which begins at {place.begin}: "
            f"retention deleted messages that it has not read, and it will stop with an error"
        )
    if place.lag == 0:
        return None
    if topic.kept_ms != FOR_EVER and place.oldest_ms is not None:
        age_ms = now_ms - place.oldest_ms
        if 2 * age_ms >= topic.kept_ms:  # half of the time is left to react
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
    """Check that brokers keep an inactive consumer's cursor as long as its messages."""
    data = [topic.kept_ms for topic in topics if topic.role is Role.DATA]
    longest = FOR_EVER if FOR_EVER in data else max(data, default=0)
    minutes = [int(broker.settings.get("offsets.retention.minutes", -1)) for broker in brokers]
    kept = min((count * 60_000 for count in minutes if count > 0), default=None)
    if kept is None or 0 <= longest <= kept:
        return []
    return [
        Finding(
            Weight.NOTE,
            Check.RETENTION,
            "cursors",
            f"brokers delete the cursor of a consumer that is inactive for {length(kept)}, and "
            f"keep messages longer; without a cursor it begins as its setting 'start' says",
            "raise offsets.retention.minutes of the brokers",
        )
    ]


def of_stamps(stamps: Iterable[Stamp]) -> list[Finding]:
    """Report clocks that are far from ours, as far as the stamps can show it."""
    results = []
    for stamp in stamps:
        if stamp.ahead_ms > CLOCKS_MS:
            far = f"{length(stamp.ahead_ms)} ahead of ours"
        elif stamp.late_ms is not None and stamp.late_ms > CLOCKS_MS:
            far = f"{length(stamp.late_ms)} behind ours"
        else:
            continue
        results.append(
            Finding(
                Weight.WARN,
                Check.CLOCK,
                stamp.source,
                f"the clock of {stamp.source} is at least {far}; the order needs no clock, but "
                f"retention and seeks do, and brokers refuse records from an hour ahead of theirs",
                "synchronise the machines' clocks (this machine's may be the wrong one)",
            )
        )
    return results


def of_unseen(unseen: Iterable[str]) -> list[Finding]:
    """Report what could not be checked, and why."""
    do = "grant this user that right"
    return [_note(Check.UNSEEN, "this inspection", sentence, do) for sentence in unseen]


def _note(check: Check, about: str, says: str, do: str) -> Finding:
    return Finding(Weight.NOTE, check, about, says, do)
