"""The checks of a deployment: each function turns facts into findings.

`amcast topology apply`, `amcast topology verify`, the start of collectors and `amcast doctor` use
these functions and no others. No I/O, no clock; `inspection.py` asks Kafka for the facts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from collectors.core.mending import Damage, Harm
from collectors.doctor.consumer_checks import of_cursors_kept, of_groups, of_standing
from collectors.doctor.facts import (
    AHEAD_MS,
    FOR_EVER,
    BrokerFacts,
    CollectorFacts,
    Facts,
    HeldLog,
    Role,
    Stamp,
    TopicFacts,
    length,
)
from collectors.doctor.finding import Check, Finding, Weight, worst_first
from topology.draw import shortened
from topology.tree import Plan

# Synchronised clocks never differ by so much, and no retention time is so short that it matters.
CLOCKS_MS = 5_000
NOBODY = "all collectors"  # what a finding is about if no process runs any
_MEANWHILE = "meanwhile what has no ticket, and collectors below, wait"


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Run all checks, and give their findings, the worst first.

    What follows from another cause is a detail of that one.
    """
    away = frozenset(broker.broker for broker in facts.brokers if broker.away)
    cut = {damage.collector for damage in facts.damages if damage.harm is Harm.CUT}
    readable = [each for each in facts.collectors if each.name not in cut]
    ahead = of_ahead(facts.collectors, facts.damages)
    held = of_held_logs(facts.held, now_ms=facts.now_ms)
    late = of_collectors(readable, now_ms=facts.now_ms, members=facts.members)
    if any(finding.about == NOBODY for finding in late):
        late[0] = replace(late[0], details=(*late[0].details, *(each.says for each in ahead)))
        ahead = []
    results = [
        *of_brokers(facts.brokers, facts.topics),
        *(of_changed_topics(facts.plan, facts.topic_ids) if facts.plan else ()),
        *of_topics(facts.topics),
        *of_partitions(facts.topics, away),
        *(of_unordered(facts.plan, facts.topics) if facts.plan else ()),
        *of_epoch(facts),
        *_of_foreign(f"the control topic {facts.topic}.topology", facts.control_foreign),
        *_of_foreign(f"the control topic {facts.topic}.collectors", facts.collectors_foreign),
        *of_damage(facts.damages),
        *ahead,
        *held,
        *(_note(Check.RETENTION, *older) for older in facts.older),
        *late,
        *of_standing(facts.groups, topic=facts.topic, now_ms=facts.now_ms),
        *of_groups(facts.groups, facts.topics, topic=facts.topic, now_ms=facts.now_ms),
        *of_cursors_kept(facts.brokers, facts.topics),
        *of_stamps(facts.stamps),
        *of_unseen(facts.unseen),
        *of_unchecked(facts.unchecked),
    ]
    return tuple(worst_first(results))


def of_brokers(brokers: Sequence[BrokerFacts], topics: Iterable[TopicFacts] = ()) -> list[Finding]:
    """Check that all registered brokers answer, and their own settings.

    What partitions of `topics` lack because of a broker that is away is a detail.
    """
    unclean = [each for each in brokers
               if each.settings.get("unclean.leader.election.enable") == "true"]  # fmt: skip
    results = [_unclean(f"broker {broker.broker}") for broker in unclean]
    away = [broker.broker for broker in brokers if broker.away]
    if away:
        name = _brokers(away)
        short = [each for each in _short_of_replicas(topics) if each.missing & {*away}]
        stuck = sum(not each.works for each in short)
        says = f"{name} cannot be reached"
        if short:
            says += f": {len(short)} partitions lack replicas"
            says += f", and {stuck} refuse appends" if stuck else ""
        do = f"start {name}; what is gone for good, unregister"
        details = tuple(each.says for each in short)
        results.append(Finding(Weight.WARN, Check.BROKER, name, says, do, details))
    return results


def _brokers(brokers: Sequence[int]) -> str:
    return f"broker{'s' * (len(brokers) > 1)} {', '.join(map(str, brokers))}"


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
        results += _of_compression(topic)
    results = _together(results)
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


def _together(findings: Iterable[Finding]) -> list[Finding]:
    """Make one finding of those that say the same of several topics."""
    same: dict[tuple[Check, str], list[Finding]] = {}
    for each in findings:
        same.setdefault((each.check, each.says.removeprefix(each.about)), []).append(each)
    results = []
    for (_, says), (first, *others) in same.items():
        more = " ".join(each.about.removeprefix("topic ") for each in others)
        results.append(replace(first, says=f"{first.about} (and {more}){says}") if more else first)
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


def _of_compression(topic: TopicFacts) -> list[Finding]:
    """Check that brokers need not decompress: they hold each record whole, however large it is."""
    kind = topic.settings.get("compression.type", "producer")
    if kind == "producer":
        return []
    name = f"topic {topic.name}"
    says = f"{name} has compression.type={kind}, so a small record may take all memory of a broker"
    return [Finding(Weight.NOTE, Check.COMPRESSION, name, says, "set it to producer")]


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


def of_partitions(
    topics: Iterable[TopicFacts], away: frozenset[int] = frozenset()
) -> list[Finding]:
    """Check that each Kafka partition has a leader and all its replicas in sync.

    What partitions lack because of brokers that are `away` is a detail of `of_brokers`.
    """
    by_cause: dict[tuple[int, ...], list[_Short]] = {}
    for each in _short_of_replicas(topics):
        if not each.missing & away:
            by_cause.setdefault(tuple(sorted(each.missing)), []).append(each)
    results = []
    for missing, short in by_cause.items():
        short.sort(key=lambda each: each.works)
        do = f"check {_brokers(missing)}" if missing else "check the brokers that hold it"
        says = short[0].says
        if len(short) > 1:
            says += f", and {len(short) - 1} partitions more lack replicas"
        details = tuple(each.says for each in short[1:])
        results.append(Finding(Weight.WARN, Check.PARTITION, short[0].name, says, do, details))
    return results


class _Short(NamedTuple):
    """A partition without all its replicas; `works`: it can be appended to."""

    name: str
    missing: frozenset[int]
    says: str
    works: bool = False


def _short_of_replicas(topics: Iterable[TopicFacts]) -> Iterator[_Short]:
    for topic in topics:
        for partition in topic.partitions:
            in_sync, replicas, works = partition.in_sync, partition.replicas, False
            if partition.leader < 0:
                says = "has no leader, so it can be neither read nor appended to"
            elif len(in_sync) < topic.in_sync_min <= len(replicas):
                says = (
                    f"has {len(in_sync)} in-sync replicas of {topic.in_sync_min} needed, so "
                    f"nothing can be appended to it"
                )
            elif len(in_sync) < len(replicas):
                says, works = f"has {len(in_sync)} of {len(replicas)} replicas in sync", True
            else:
                continue
            name = f"{topic.name}/{partition.partition}"
            missing = frozenset(replicas) - frozenset(in_sync)
            yield _Short(name, missing, f"{name} {says}", works)


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


def of_collectors(
    collectors: Sequence[CollectorFacts], *, now_ms: int, members: int | None = None
) -> list[Finding]:
    """Check that each collector keeps up with its logs; `members` as in `Facts`.

    A collector is not blamed for logs in which its parent is behind, too, and none where no process
    runs any.
    """
    by_name = {collector.name: collector for collector in collectors}
    results: list[Finding] = []
    acting = [each for each in collectors if not each.frozen and each.problem is None]
    nobody = _nobody(acting, members, now_ms)
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
        elif behind and nobody is None:
            do = (
                f"check whether it runs and what it logs; 'amcast collectors run --node "
                f"{collector.name}' starts another instance"
            )
            says = f"{name} has not ordered {_waiting(behind, [collector], now_ms)}"
            ago = "it has ordered nothing in this epoch"
            if collector.last_ms is not None:
                ago = f"its last record is {length(now_ms - collector.last_ms)} old"
            results.append(Finding(Weight.WARN, Check.COLLECTOR, name, f"{says}; {ago}", do))
        elif collector.ended_at and not collector.frozen:
            ended.setdefault(collector.ended_at, []).append(collector.name)
        elif not collector.is_open:
            missing.append(collector.name)
    if nobody is not None:
        return [nobody, *results]
    for address, names in ended.items():
        says = f"the process that last acted for {_named(names)} has ended: nobody listens at "
        says += f"{address} any more"
        do = f"unless standbys run, start another: 'amcast collectors run'; {_MEANWHILE}"
        results.append(Finding(Weight.NOTE, Check.COLLECTOR, _named(names), says, do))
    if missing:
        says = f"nobody has started {_named(missing)} in this epoch"
        do = f"'amcast collectors run' starts what no other process runs; {_MEANWHILE}"
        results.append(Finding(Weight.NOTE, Check.COLLECTOR, _named(missing), says, do))
    return results


def _nobody(
    collectors: Sequence[CollectorFacts], members: int | None, now_ms: int
) -> Finding | None:
    """Say that no process of collectors runs, where that is known; else None.

    Each process has ended, or was never there; or the group in which processes meet is empty and
    nothing at all is ordered. Processes with --node are not in it.
    """
    ended = all(each.ended_at or not each.is_open for each in collectors)
    behind: dict[str, int] = {}
    for each in collectors:
        for log, count in each.behind.items():
            behind[log] = max(count, behind.get(log, 0))
    idle = all(each.behind for each in collectors)
    if not collectors or not ((ended and (behind or members == 0)) or (members == 0 and idle)):
        return None
    says = "no process of collectors runs"
    if behind:
        says += f": nobody orders {_waiting(behind, collectors, now_ms)}"
    do = f"start 'amcast collectors run'; what the last one logged says why it ended; {_MEANWHILE}"
    return Finding(Weight.WARN, Check.COLLECTOR, NOBODY, says, do)


def _waiting(behind: Mapping[str, int], collectors: Iterable[CollectorFacts], now_ms: int) -> str:
    """Say how many offsets of which logs wait for their order, and for how long."""
    stamps = [each.oldest_ms for each in collectors if each.oldest_ms is not None]
    since = f", the first for {length(max(0, now_ms - min(stamps)))}" if stamps else ""
    count = sum(behind.values())
    return f"{count} offset{'s' * (count != 1)} of {shortened(sorted(behind))}{since}"


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
    """Report logs that wait for a transaction that has been open for long, or is not known.

    All logs that one producer holds are one cause.
    """
    results: dict[int | str, Finding] = {}
    for log in held:
        oldest = log.oldest(now_ms)
        if log.opened and oldest is None:
            continue
        key = log.log if oldest is None else oldest.producer_id
        says = log.says(now_ms)
        made = Finding(Weight.WARN, Check.TRANSACTION, f"log {log.log}", says, log.do(now_ms))
        first = results.setdefault(key, made)
        if first is not made:
            results[key] = replace(first, details=(*first.details, f"{says}; {made.do}"))
    return list(results.values())


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


def of_unchecked(unchecked: Mapping[str, str]) -> list[Finding]:
    """Report what processes of collectors could not check, by the places of their pages."""
    do = "grant the collectors' user that right, or start what does not answer"
    return [
        _note(Check.UNSEEN, f"the process at {place}", f"the process at {place}: {says}", do)
        for place, says in unchecked.items()
    ]


def _note(check: Check, about: str, says: str, do: str) -> Finding:
    return Finding(Weight.NOTE, check, about, says, do)
