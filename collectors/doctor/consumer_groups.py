"""Where consumer groups stand: from a committed cursor to an offset in every log of the interest.

Goes in: the control state, a group's cursor, its collector's stream. Comes out: where the group
reads on, and whether retention may overtake it (judged in `checks.py`). Nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from collectors.doctor.facts import FOR_EVER, GroupFacts, GroupPosition, TopicFacts
from collectors.doctor.streams import READ_S, now_ms
from multicast.control import (
    ALONE,
    ControlState,
    control_partition,
    log_partition,
    stream_partition,
)
from multicast.cursor import Cursor
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AccessDenied, AmcastError, ClusterUnreachable, TimedOut, UsageError
from multicast.order import OrderRecord, OrderStream
from topology.tree import Log, Plan

_STAMP_S = 3.0


def group_prefix(topic: str) -> str:
    """Give what the names of a topic's consumer groups begin with."""
    return f"amcast.{topic}."


def look_at_groups(
    driver: Driver,
    state: ControlState,
    names: Iterable[str],
    topics: Iterable[TopicFacts],
    sizes: Mapping[TopicPartition, int],
) -> tuple[GroupFacts, ...]:
    """Find out where those groups stand that have committed a cursor."""
    kept = {one.name: one for one in topics}
    found = []
    for name in names:
        group = _group(driver, state, name)
        if group is not None:
            found.append(_with_left(driver, group, state, kept, sizes))
    return tuple(found)


def _group(driver: Driver, state: ControlState, name: str) -> GroupFacts | None:
    """Read one group's cursor, and the stream up to it."""
    at = control_partition(state.topic)
    stored = driver.committed(name, [at]).get(at)
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
        sentence = f"the cursor of consumer {short} leads nowhere: {error}"
        return replace(bare, problem=sentence)
    plan = state.plan(cursor.epoch)
    interest = _interest(short, (state.plan(), plan))
    logs = [log for log in plan.logs if log.name in positions]
    if interest is not None:
        logs = [log for log in plan.logs_of(interest) if log.name in positions]
        logs += _added(state, cursor.epoch, interest, positions)
    places = _places(driver, logs, positions)
    return replace(bare, epoch=cursor.epoch, places=places, guessed=interest is None)


def _interest(group: str, plans: Sequence[Plan]) -> tuple[str, ...] | None:
    """Guess a group's interest from its name, as `Consumer` names groups; None: it has its own."""
    for plan in plans:
        entry = plan.subscription(group)
        if entry is not None:
            return entry.interest
    partitions = tuple(group.split("+"))
    return partitions if set(partitions) <= set(plans[0].partitions) else None


def _positions(driver: Driver, state: ControlState, cursor: Cursor) -> dict[str, int]:
    """Say for each log that the cursor's source orders where reading goes on."""
    plan = state.plan(cursor.epoch)
    if cursor.source.startswith(ALONE):
        return {cursor.source.removeprefix(ALONE): cursor.next}
    if not plan.has_collector(cursor.source):
        raise UsageError(f"epoch {cursor.epoch} has no collector {cursor.source}")
    stream = state.stream(cursor.epoch, cursor.source, below=cursor.record)
    plan = stream.plan
    at_cursor = _read_to(driver, stream, cursor.record)
    positions = dict(stream.state.positions)
    for index, run in enumerate(at_cursor.runs[: cursor.run + 1] if at_cursor else ()):
        positions[run.log] = run.next if index < cursor.run else max(run.first, cursor.next)
    return {plan.logs[number].name: position for number, position in positions.items()}


def _read_to(driver: Driver, stream: OrderStream, offset: int) -> OrderRecord | None:
    """Read a stream to the record at `offset`; give that if it counts, its effect left out."""
    at = stream_partition(stream.plan, stream.collector)
    end = driver.last_stable_offsets([at])[at]
    reader = driver.reader({at: stream.offset_next})
    try:
        while stream.offset_next < min(offset + 1, end):
            moved = reader.poll(READ_S)
            if not moved:
                raise TimedOut(f"nothing came beyond offset {stream.offset_next} of {end}")
            for fetched in moved:
                for record in fetched.records:
                    before = stream.state.copy()
                    judged = stream.read(record.offset, record.value)
                    if record.offset >= offset:
                        stream.state = before
                        if record.offset == offset and isinstance(judged, OrderRecord):
                            return judged
                        return None
                stream.passed(fetched.position)
    finally:
        reader.close()
    return None


def _added(
    state: ControlState, epoch: int, interest: Sequence[str], positions: dict[str, int]
) -> list[Log]:
    """List the interest's logs that came with later epochs; all of them are still to be read."""
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
    at = {log.name: log_partition(log) for log in logs}
    begins, ends = (
        driver.log_start_offsets(list(at.values())),
        driver.last_stable_offsets(list(at.values())),
    )
    return tuple(
        GroupPosition(
            log.name, log.topic, positions[log.name], begins[at[log.name]], ends[at[log.name]]
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
    """Add what tells whether retention comes near: stamps, and bytes left, of what it lags."""
    at = {
        place.log: log_partition(log)
        for place in group.places
        for plan in state.plans
        for log in plan.logs
        if log.name == place.log
    }
    late = _late(driver, [one for one in group.places if one.lag], at, topics)
    stamps = _stamps(driver, {at[one.log]: one.position for one in late})
    places = []
    for place in group.places:
        size, stand = sizes.get(at[place.log]), place.end - place.begin
        left = None if size is None or stand <= 0 else size * min(place.lag, stand) // stand
        places.append(replace(place, oldest_ms=stamps.get(at[place.log]), bytes_left=left))
    return replace(group, places=tuple(places))


def _late(
    driver: Driver,
    places: Iterable[GroupPosition],
    partitions: Mapping[str, TopicPartition],
    topics: Mapping[str, TopicFacts],
) -> list[GroupPosition]:
    """Pick those whose next record is older than half its topic's retention: no payload is read."""
    now = now_ms()
    found = []
    for place in places:
        kept_ms = topics[place.topic].kept_ms if place.topic in topics else FOR_EVER
        if kept_ms == FOR_EVER or place.position < place.begin:
            continue
        young = driver.offsets_at([partitions[place.log]], now - kept_ms // 2)[
            partitions[place.log]
        ]
        if place.position < young:
            found.append(place)
    return found


def _stamps(driver: Driver, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Read the stamp of the first record at or after each offset; what does not come is left."""
    found: dict[TopicPartition, int] = {}
    if not starts:
        return found
    reader = driver.reader(starts)
    try:
        while len(found) < len(starts):
            moved = reader.poll(_STAMP_S, 1)
            if not moved:
                break
            for fetched in moved:
                for record in fetched.records[:1]:
                    found.setdefault(fetched.partition, record.timestamp_ms)
            reader.remove([one.partition for one in moved if one.partition in found])
    finally:
        reader.close()
    return found
