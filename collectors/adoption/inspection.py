"""Reads what `amcast adopt` has to know of a topic, and refuses a topic that cannot be adopted."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress

from collectors.adoption.facts import AdoptionFacts, OldGroup, Sample, base_of
from collectors.doctor.checks import of_brokers, of_topics
from collectors.doctor.finding import Weight, refuse
from collectors.doctor.inspection import inspect_brokers
from collectors.doctor.record_times import older_logs
from collectors.reconfiguration.topics import refuse_partitions, topics_ahead
from multicast.control import ControlReader, control_partition
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.drivers.reading import read_upto
from multicast.errors import Conflict, TimedOut, UsageError
from topology.interests import NAME, NAME_LENGTH_MAX
from topology.tree import Plan

_SAMPLE_PARTITIONS = 8  # the first ones; producers treat all alike
_SAMPLE_RECORDS = 50  # of each: some hundreds show whether records have keys
_SAMPLE_S = 3.0  # without a record: a sample is a courtesy, and must not hold up the command


def refuse_topic(driver: Driver, admin: Admin, topic: str) -> int:
    """Give the topic's number of partitions, or raise why it cannot be adopted.

    `UsageError`: it is absent, Kafka's own, or one of ours. `Conflict`: it is adopted already.
    """
    if topic.startswith("__"):
        raise UsageError(f"topic {topic} is Kafka's own; its records are no messages")
    if not NAME.fullmatch(topic) or len(topic) > NAME_LENGTH_MAX or topic in (".", ".."):
        raise UsageError(
            f"topic {topic!r} cannot be adopted: its name must be 1 to {NAME_LENGTH_MAX} "
            f"characters of A-Z, a-z, 0-9, '.', '_', '-'; amcast adds to it for its own topics"
        )
    control = control_partition(topic).topic
    base, _, _ = topic.rpartition(".")
    ours = [base, control_partition(base).topic] if base else []
    exists = admin.partitions([topic, control, *ours])
    owner = base_of(topic, exists)
    if owner is not None:
        raise UsageError(f"topic {topic} belongs to amcast's topic {owner}; adopt an own topic")
    if control in exists:
        with closing(ControlReader(driver, topic)) as reader:
            epoch = reader.refresh().epoch
        if epoch:
            raise Conflict(
                f"topic {topic} is adopted already: epoch {epoch} runs; 'amcast topology show "
                f"--from-cluster' shows it, 'amcast topology plan --from-cluster' changes it"
            )
    if topic not in exists:
        raise UsageError(
            f"topic {topic} does not exist; for a new topic write an interest file, and run "
            f"'amcast topology plan' and 'amcast topology apply'"
        )
    return exists[topic]


def read_facts(
    driver: Driver, admin: Admin, topic: str, partition_count: int, seconds: float
) -> AdoptionFacts:
    """Read the topic, its groups and its rates. Blocks for `seconds`, to measure the rates."""
    places = {f"P{number + 1}": TopicPartition(topic, number) for number in range(partition_count)}
    began = time.monotonic()
    before = driver.high_watermarks(list(places.values()))
    groups = _groups(driver, admin, places, before)
    settings = admin.topic_settings([topic])[topic]
    sample = _sample(driver, places)
    threading.Event().wait(max(0.0, began + seconds - time.monotonic()))
    took = time.monotonic() - began
    after = driver.high_watermarks(list(places.values()))
    first = driver.log_start_offsets(list(places.values()))
    stable = driver.last_stable_offsets(list(places.values()))
    return AdoptionFacts(
        topic,
        first={name: first[place] for name, place in places.items()},
        end={name: after[place] for name, place in places.items()},
        rates={name: (after[place] - before[place]) / took for name, place in places.items()},
        rate_seconds=round(took, 1),
        settings=settings,
        # The broker that answers may not know of a topic that was made a moment ago.
        replication=admin.replications([topic]).get(topic, 0),
        groups=groups,
        sample=sample,
        older=older_logs(
            driver, places, int(settings["retention.ms"]), time.time_ns() // 1_000_000
        ),
        held=tuple(name for name, place in places.items() if stable[place] < after[place]),
    )


def _groups(
    driver: Driver,
    admin: Admin,
    places: Mapping[str, TopicPartition],
    ends: Mapping[TopicPartition, int],
) -> tuple[OldGroup, ...]:
    """Find the groups that have committed offsets of the topic; not those of this project."""
    groups = []
    for name in admin.groups(""):
        if name.startswith("amcast."):
            continue
        commits = driver.committed(name, list(places.values()))
        reads = tuple(partition for partition, place in places.items() if place in commits)
        if reads:
            lag = sum(max(0, ends[place] - offset) for place, (offset, _) in commits.items())
            groups.append(OldGroup(name, reads, lag))
    return tuple(groups)


def _sample(driver: Driver, places: Mapping[str, TopicPartition]) -> Sample:
    """Read some of the newest records, as long as they come."""
    some = list(places.values())[:_SAMPLE_PARTITIONS]
    first, ends = driver.log_start_offsets(some), driver.last_stable_offsets(some)
    starts = {place: max(first[place], ends[place] - _SAMPLE_RECORDS) for place in some}
    records = keys = headers = 0
    with suppress(TimedOut):
        for place in some:
            reads = starts[place], ends[place]
            for fetched in read_upto(driver, place, *reads, wait_s=_SAMPLE_S, error=TimedOut):
                records += len(fetched.records)
                keys += sum(record.key is not None for record in fetched.records)
                headers += sum(bool(record.headers) for record in fetched.records)
    return Sample(records, keys, headers)


def refuse_plan(driver: Driver, admin: Admin, plan: Plan) -> list[str]:
    """Raise why 'topology apply' would refuse the first plan of a topic; give warnings and notes.

    Nothing is created. Raises `UnsafeCluster`, `UsageError` and `Conflict`.
    """
    findings = of_brokers(inspect_brokers(admin, []))
    refuse(findings)
    refuse_partitions(driver, admin, plan, None, add_partitions=False)
    findings += of_topics(topics_ahead(admin, plan))
    refuse(findings)
    return [str(finding) for finding in findings if finding.weight is not Weight.REFUSE]
