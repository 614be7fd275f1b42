"""The positions of consumer groups: from a committed cursor to an offset in each log.

It needs the control state, the group's cursor and the collector's stream. Facts on what is left to
read let `checks.py` judge whether retention may overtake the group. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from collectors.doctor.ended_groups import why_ended
from collectors.doctor.facts import FOR_EVER, GroupFacts, GroupPosition, TopicFacts
from collectors.doctor.streams import now_ms, stream_records
from multicast.consuming.cursor import Cursor
from multicast.control import (
    SINGLE_LOG,
    ControlState,
    control_partition,
    log_partition,
    stream_partition,
)
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AccessDenied, AmcastError, ClusterUnreachable, UsageError
from multicast.order.runs import Run
from multicast.order.stream import OrderStream
from topology.tree import Log, Plan

# For the first unread records of lagging groups. A log that does not answer in time is left out;
# then the check of retention by time does not cover it.
_STAMP_S = 3.0


def group_prefix(topic: str) -> str:
    """Give the prefix of the names of a topic's consumer groups."""
    return f"amcast.{topic}."


def inspect_groups(
    driver: Driver,
    state: ControlState,
    names: Iterable[str],
    topics: Iterable[TopicFacts],
    sizes: Mapping[TopicPartition, int],
) -> tuple[GroupFacts, ...]:
    """Find the positions of those groups that have committed a cursor."""
    kept = {topic.name: topic for topic in topics}
    results = []
    for name in names:
        group = _group(driver, state, name)
        if group is not None:
            results.append(_with_left(driver, group, state, kept, sizes))
    return tuple(results)


def _group(driver: Driver, state: ControlState, name: str) -> GroupFacts | None:
    """Read one group's cursor, and the stream up to it."""
    partition = control_partition(state.topic)
    stored = driver.committed(name, [partition]).get(partition)
    if stored is None:
        return None
    short = name.removeprefix(group_prefix(state.topic))
    bare = GroupFacts(short, stored[1])
    try:
        cursor = Cursor.parse(stored[1])
        positions = _positions(driver, state, cursor)
    except (AccessDenied, ClusterUnreachable):
        raise
    except AmcastError as error:
        sentence = f"the cursor of consumer {short} is not valid: {error}"
        return replace(bare, problem=sentence)
    bare = replace(bare, problem=why_ended(state, short, cursor))
    plan = state.plan(cursor.epoch)
    interest = _interest(short, (state.plan(), plan))
    logs = [log for log in plan.logs if log.name in positions]
    if interest is not None:
        logs = [log for log in plan.logs_of(interest) if log.name in positions]
        logs += _added(state, cursor.epoch, interest, positions)
    places = _places(driver, logs, positions)
    return replace(bare, epoch=cursor.epoch, places=places, guessed=interest is None)


def _interest(group: str, plans: Sequence[Plan]) -> tuple[str, ...] | None:
    """Guess a group's interest from its name, as `Consumer` names groups.

    None if the group has a name of its own.
    """
    for plan in plans:
        entry = plan.subscription(group)
        if entry is not None:
            return entry.interest
    partitions = tuple(group.split("+"))
    return partitions if set(partitions) <= set(plans[0].partitions) else None


def _positions(driver: Driver, state: ControlState, cursor: Cursor) -> dict[str, int]:
    """Give the next offset to deliver of each log that the cursor's source orders."""
    plan = state.plan(cursor.epoch)
    if cursor.source.startswith(SINGLE_LOG):
        return {cursor.source.removeprefix(SINGLE_LOG): cursor.next}
    if not plan.has_collector(cursor.source):
        raise UsageError(f"epoch {cursor.epoch} has no collector {cursor.source}")
    stream = state.stream(cursor.epoch, cursor.source, below=cursor.record)
    plan = stream.plan
    positions, runs = _read_to(driver, stream, cursor.record)
    for index, run in enumerate(runs[: cursor.run + 1]):
        positions[run.log] = run.next if index < cursor.run else max(run.first, cursor.next)
    return {plan.logs[number].name: position for number, position in positions.items()}


def _read_to(
    driver: Driver, stream: OrderStream, offset: int
) -> tuple[dict[int, int], tuple[Run, ...]]:
    """Read a stream up to the record at `offset`; give the positions before it, and its runs."""
    partition = stream_partition(stream.plan, stream.collector)
    end = driver.last_stable_offsets([partition])[partition]
    before = dict(stream.state.positions)
    for record, judged in stream_records(driver, stream, min(offset + 1, end)):
        if record.offset == offset:
            return before, judged if isinstance(judged, tuple) else ()
        before = dict(stream.state.positions)
    return before, ()


def _added(
    state: ControlState, epoch: int, interest: Sequence[str], positions: dict[str, int]
) -> list[Log]:
    """List the interest's logs that later epochs added, and add their first offsets to positions.

    The group has read nothing of them.
    """
    added = []
    for later in range(epoch + 1, state.epoch + 1):
        plan = state.plan(later)
        starts = state.starts(later) or {}
        for log in plan.logs_of(interest):
            if log.name not in positions:
                positions[log.name] = starts.get(log.name, log.first)
                added.append(log)
    return added


def _places(
    driver: Driver, logs: Sequence[Log], positions: Mapping[str, int]
) -> tuple[GroupPosition, ...]:
    partitions = {log.name: log_partition(log) for log in logs}
    starts = driver.log_start_offsets(list(partitions.values()))
    ends = driver.last_stable_offsets(list(partitions.values()))
    return tuple(
        GroupPosition(
            log.name,
            log.topic,
            positions[log.name],
            starts[partitions[log.name]],
            ends[partitions[log.name]],
        )
        for log in logs
    )


def _with_left(
    driver: Driver,
    group: GroupFacts,
    state: ControlState,
    topics: Mapping[str, TopicFacts],
    sizes: Mapping[TopicPartition, int],
) -> GroupFacts:
    """Add the first unread record's timestamp and the unread bytes, for the check of retention."""
    partitions = {
        place.log: log_partition(log)
        for place in group.places
        for plan in state.plans
        for log in plan.logs
        if log.name == place.log
    }
    late = _late(driver, [place for place in group.places if place.lag], partitions, topics)
    stamps = _stamps(driver, {partitions[place.log]: place.position for place in late})
    places = []
    for place in group.places:
        partition, kept = partitions[place.log], place.end - place.begin
        size = sizes.get(partition)
        left = None if size is None or kept <= 0 else size * min(place.lag, kept) // kept
        places.append(replace(place, oldest_ms=stamps.get(partition), bytes_left=left))
    return replace(group, places=tuple(places))


def _late(
    driver: Driver,
    places: Iterable[GroupPosition],
    partitions: Mapping[str, TopicPartition],
    topics: Mapping[str, TopicFacts],
) -> list[GroupPosition]:
    """Pick positions whose next record is older than half the topic's retention time.

    It asks the brokers for offsets by time, and reads no record.
    """
    now = now_ms()
    late = []
    for place in places:
        kept_ms = topics[place.topic].kept_ms if place.topic in topics else FOR_EVER
        if kept_ms == FOR_EVER or place.position < place.begin:
            continue
        young = driver.offsets_at([partitions[place.log]], now - kept_ms // 2)[
            partitions[place.log]
        ]
        if place.position < young:
            late.append(place)
    return late


def _stamps(driver: Driver, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Read the timestamp of the first record at or after each offset, as far as records come."""
    stamps: dict[TopicPartition, int] = {}
    if not starts:
        return stamps
    with closing(driver.reader(starts)) as reader:
        while len(stamps) < len(starts):
            moved = reader.poll(_STAMP_S, 1)
            if not moved:
                break
            for fetched in moved:
                for record in fetched.records[:1]:
                    stamps.setdefault(fetched.partition, record.timestamp_ms)
            reader.remove([fetched.partition for fetched in moved if fetched.partition in stamps])
    return stamps
