"""What `amcast adopt` has read of a topic, and what it says of it. No I/O.

partition   Kafka's partition 0 of the topic is P1, 1 is P2, and so on
old group   a consumer group that has committed offsets of the topic; it knows nothing of amcast
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from collectors.doctor.record_times import names_older
from multicast.control import groups_topic, own_topics
from topology.interests import NAME_LENGTH_MAX
from topology.tree import Plan

# A rate of 0 would tell the planner that a partition costs nothing. The next message may come.
_RATE_MIN = 0.1
_PURPOSES = (  # of `own_topics`
    "plans",
    "checkpoints, and where collectors run",
    "the order of message IDs",
    "messages to sets of several partitions",
    "one small record on each broker",
)
_SETTINGS = ("cleanup.policy", "retention.ms", "retention.bytes", "min.insync.replicas")


@dataclass(frozen=True, slots=True)
class OldGroup:
    """A group, the partitions that it has committed offsets of, and its records still to read."""

    name: str
    partitions: tuple[str, ...]
    lag: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Some of the newest records: how many were read, and how many have a key or headers."""

    records: int = 0
    keys: int = 0
    headers: int = 0


@dataclass(frozen=True, slots=True)
class AdoptionFacts:
    """A topic as it is; `first` and `end` are offsets by partition, `rates` messages/s."""

    topic: str
    first: Mapping[str, int]
    end: Mapping[str, int]
    rates: Mapping[str, float]
    rate_seconds: float
    settings: Mapping[str, str]
    replication: int
    groups: tuple[OldGroup, ...] = ()
    sample: Sample = Sample()
    held: tuple[str, ...] = ()
    older: tuple[str, ...] = ()  # those without a record that is younger than the retention

    @property
    def notes(self) -> list[str]:
        """What to know before the topic is adopted, in sentences."""
        if not self.older:
            return []
        _, says, do = names_older(self.topic, int(self.settings["retention.ms"]), self.older)
        return [f"{says}; {do}"]

    @property
    def stored(self) -> int:
        """The offsets that the topic retains; a record is one, markers of transactions are, too."""
        return sum(self.end[name] - self.first[name] for name in self.end)


def base_of(topic: str, exists: Iterable[str]) -> str | None:
    """Give the topic that amcast made this one for (its plans, order, sets …); None: for no one."""
    existing = set(exists)
    for suffix in own_topics(""):
        base = topic.removesuffix(suffix)
        if base and base != topic and {base, own_topics(base)[0]} <= existing:
            return base
    return None


def consumers_of(
    facts: AdoptionFacts, given: Mapping[str, Sequence[str]]
) -> dict[str, tuple[str, ...]]:
    """Give the consumers of the interest file: those given, else one for each old group.

    Without old groups it is one consumer, `all`, of all partitions.
    """
    if given:
        return {name: tuple(interest) for name, interest in given.items()}
    consumers: dict[str, tuple[str, ...]] = {}
    for group in facts.groups:
        name = re.sub(r"[^A-Za-z0-9._-]", "-", group.name)[:NAME_LENGTH_MAX]
        while name in consumers:
            name += "-"
        consumers[name] = group.partitions
    return consumers or {"all": tuple(facts.end)}


def interests_text(
    facts: AdoptionFacts,
    consumers: Mapping[str, Sequence[str]],
    destinations: Iterable[Sequence[str]],
) -> str:
    """Write the interest file."""
    names = list(facts.end)
    sets = ", ".join(_list(to, names) for to in destinations)
    lines = [
        f"# Made by 'amcast adopt {facts.topic}'. P1 is Kafka's partition 0, and so on.",
        f'topic = "{facts.topic}"',
        f"partitions = {len(names)}",
        "# Sets of several partitions that messages may be multicast to, such as",
        '# [["P1", "P2"]]. Messages to a set stand in a topic of their own.',
        f"destinations = [{sets}]",
    ]
    for name, interest in consumers.items():
        lines += [
            "",
            "[[consumer]]",
            f"name = {json.dumps(name)}",
            f"interest = {_list(interest, names)}",
        ]
    if any(facts.rates.values()):
        lines += ["", f"[rates]  # messages/s, measured for {facts.rate_seconds:g} s"]
        lines += [f"{name} = {max(_RATE_MIN, round(facts.rates[name], 1))}" for name in names]
    return "\n".join(lines) + "\n"


def _list(partitions: Sequence[str], names: Sequence[str]) -> str:
    """Write a set of partitions as TOML, runs of three or more as ranges."""
    if any(name not in names for name in partitions):  # a range, or a mistake: the reader says it
        return "[" + ", ".join(map(json.dumps, partitions)) + "]"
    numbers = sorted({names.index(name) for name in partitions})
    parts: list[str] = []
    for _, places in groupby(enumerate(numbers), lambda each: each[1] - each[0]):
        run = [names[number] for _, number in places]
        parts += [f"{run[0]}..{run[-1]}"] if len(run) > 2 else run
    return "[" + ", ".join(f'"{part}"' for part in parts) + "]"


def topics_made(plan: Plan, exists: Iterable[str]) -> dict[str, str]:
    """Name the topics that applying the plan creates, each with what it is for."""
    skipped = set(exists)
    if all(len(log.to) == 1 for log in plan.logs):
        skipped.add(groups_topic(plan.topic))
    wanted = zip(own_topics(plan.topic), _PURPOSES, strict=True)
    return {name: what for name, what in wanted if name not in skipped}


def document(
    facts: AdoptionFacts, plan: Plan, made: Mapping[str, str], notes: Sequence[str]
) -> dict[str, Any]:
    """Give the JSON document of `amcast adopt`."""
    return {
        "schema_version": 1,
        "topic": facts.topic,
        "partitions": len(facts.end),
        "offsets_stored": facts.stored,
        "messages_per_s": round(sum(facts.rates.values()), 1),
        "replication": facts.replication,
        "settings": {name: facts.settings[name] for name in _SETTINGS if name in facts.settings},
        "sample": {
            "records": facts.sample.records,
            "with_key": facts.sample.keys,
            "with_headers": facts.sample.headers,
        },
        "open_transactions_in": list(facts.held),
        "groups": [
            {"name": group.name, "partitions": list(group.partitions), "lag": group.lag}
            for group in facts.groups
        ],
        "consumers": {entry.name: list(entry.interest) for entry in plan.consumers},
        "collectors": len(plan.collectors),
        "topics_to_make": dict(made),
        "notes": list(notes),
    }


def report(facts: AdoptionFacts, plan: Plan, made: Mapping[str, str]) -> list[str]:
    """Say in lines what is there, what will be made, and what old groups will and will not see."""
    topic, sample = facts.topic, facts.sample
    rate = f"{sum(facts.rates.values()):,.1f} messages/s in {facts.rate_seconds:g} s"
    partitions = _count(len(facts.end), "partition")
    lines = [
        f"Topic {topic}: {partitions}, {facts.stored:,} offsets stored, {rate}",
        f"  replicas={facts.replication}, "
        + ", ".join(f"{name}={facts.settings[name]}" for name in _SETTINGS),
    ]
    if sample.records:
        lines.append(
            f"  of the {sample.records} newest records {sample.keys} have a key and "
            f"{sample.headers} have headers; all of them reach consumers unchanged"
        )
    if facts.held:
        lines.append(
            f"  a transaction is open in {', '.join(facts.held)}: what comes after it is ordered "
            f"when it ends"
        )
    lines += [
        "",
        "What stays: this topic with its records, settings and partitions; all producers.",
        "What is old is ordered, too, from the first retained record of each partition on.",
        "",
        "What will be made:",
        *(f"  topic {name}: {what}" for name, what in made.items()),
    ]
    collectors = _count(len(plan.collectors), "collector")
    runs = "; run 'amcast collectors run'" if plan.collectors else ""
    lines.append(f"  {collectors}{runs}")
    for entry in plan.consumers:
        by = "one log, which needs no collector" if entry.collector is None else entry.collector
        lines.append(f"  consumer {entry.name}: {_short(entry.interest)}; order by {by}")
    lines += ["", *_of_groups(facts, plan)]
    return lines


def _of_groups(facts: AdoptionFacts, plan: Plan) -> list[str]:
    if not facts.groups:
        return [f"No consumer group has committed offsets of topic {facts.topic}."]
    lines = ["Groups that read the topic go on as they are:"]
    lines += [
        f"  {group.name}: {_short(group.partitions)}, {_count(group.lag, 'record')} behind"
        for group in facts.groups
    ]
    lines += [
        "They see all records as before, and every message that is multicast to one partition.",
        "They also see empty records with a header of amcast: amcast.epoch in each partition at",
        "each later change of the plan, and amcast.skip where a producer failed.",
    ]
    wide = sum(len(log.to) > 1 for log in plan.logs)
    where = f"they stand in topic {groups_topic(facts.topic)}"
    lines.append(
        f"They do not see messages to sets of several partitions: {where}."
        if wide
        else f"No set of several partitions is declared; groups would not see such messages, as "
        f"{where}."
    )
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _short(partitions: Sequence[str]) -> str:
    """Name a few partitions, or how many there are."""
    if len(partitions) <= 6:
        return ", ".join(partitions)
    return f"{len(partitions)} partitions ({partitions[0]} … {partitions[-1]})"
