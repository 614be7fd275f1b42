"""The positions of consumer groups, from what they have committed, and what waits for them.

Facts on what is left to read let `consumer_checks.py` judge whether retention may overtake the
group, and whether it stands. Writes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from collectors.doctor.facts import GroupFacts, GroupPosition
from collectors.doctor.streams import SPAN_MAX, KnownStream, first_records, now_ms, stream_records
from multicast.consuming.cursor import Cursor, interest_digest
from multicast.consuming.last_read import committed_at
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import (
    SINGLE_LOG,
    ControlState,
    control_partition,
    log_partition,
    stream_partition,
)
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.errors import (
    AccessDenied,
    AmcastError,
    ClusterUnreachable,
    UncoveredInterest,
    UsageError,
)
from multicast.messages import Covered, special
from multicast.order.runs import Run
from topology.tree import Log, Plan

_NO_SIZES: Mapping[TopicPartition, int] = MappingProxyType({})
_NO_STREAMS: Mapping[str, KnownStream] = MappingProxyType({})


def group_prefix(topic: str) -> str:
    """Give the prefix of the names of a topic's consumer groups."""
    return f"amcast.{topic}."


def inspect_groups(
    driver: Driver,
    state: ControlState,
    names: Iterable[str],
    sizes: Mapping[TopicPartition, int] = _NO_SIZES,
    streams: Mapping[str, KnownStream] = _NO_STREAMS,
) -> tuple[GroupFacts, ...]:
    """Find the positions of those groups that have committed a cursor.

    With the collectors' `streams` of the running epoch, what they have not ordered does not wait.
    """
    groups = [committed_group(driver, state, name, streams) for name in names]
    return tuple(with_left(driver, group, state, sizes) for group in groups if group is not None)


def never_committed(plan: Plan, groups: Iterable[GroupFacts]) -> tuple[GroupFacts, ...]:
    """Give those consumers of a plan for whose name or interest no group has a commit."""
    known = {key for group in groups for key in (group.group, group.interest)}
    return tuple(
        GroupFacts(entry.name, "", entry.interest)
        for entry in plan.consumers
        if not known & {entry.name, entry.interest}
    )


def committed_group(
    driver: Driver, state: ControlState, name: str, streams: Mapping[str, KnownStream] = _NO_STREAMS
) -> GroupFacts | None:
    """Read what a group has committed: its cursor, and an offset of each log; None: nothing."""
    control = control_partition(state.topic)
    logs = {log.name: log for plan in state.plans for log in plan.logs}
    committed = driver.committed(name, [control, *map(log_partition, logs.values())])
    if control not in committed:
        return None
    short, text = name.removeprefix(group_prefix(state.topic)), committed[control][1]
    times = [committed_at(told) for _, told in committed.values()]
    last_ms = max((each for each in times if each is not None), default=None)
    bare = GroupFacts(short, text, committed_ms=last_ms)
    try:
        cursor = Cursor.parse(text)
        plan = state.plan(cursor.epoch)
        is_single = cursor.source.startswith(SINGLE_LOG)
        if not is_single and not plan.has_collector(cursor.source):
            raise UsageError(f"epoch {cursor.epoch} has no collector {cursor.source}")
        positions = {
            name: committed[log_partition(log)][0]
            for name, log in logs.items()
            if log_partition(log) in committed
        }
        if is_single:
            positions[cursor.source.removeprefix(SINGLE_LOG)] = cursor.next
        elif not positions:
            positions = _positions(driver, state, cursor)
    except (AccessDenied, ClusterUnreachable):
        raise
    except AmcastError as error:
        sentence = f"the cursor of consumer {short} is not valid: {error}"
        return replace(bare, problem=sentence)
    bare = replace(bare, problem=why_ended(state, short, cursor))
    interest = _interest(short, cursor, state)
    if interest is not None:
        wanted = {log.name for each in state.plans[cursor.epoch - 1 :]
                  for log in each.logs_of(interest)}  # fmt: skip
        positions = {name: at for name, at in positions.items() if name in wanted}
        positions |= _added(state, cursor.epoch, interest, positions)
    ordered = _ordered(cursor, state, streams)
    places = _places(driver, [logs[name] for name in positions], positions, ordered)
    return replace(
        bare, interest=interest or (), epoch=cursor.epoch, places=places, guessed=interest is None
    )


def _positions(driver: Driver, state: ControlState, cursor: Cursor) -> dict[str, int]:
    """Give the next offset of each log at a cursor; who has delivered nothing commits none."""
    stream = state.stream(cursor.epoch, cursor.source, below=cursor.record)
    plan, before = stream.plan, dict(stream.state.positions)
    runs: tuple[Run, ...] = ()
    partition = stream_partition(plan, cursor.source)
    end = min(cursor.record + 1, driver.last_stable_offsets([partition])[partition])
    for record, judged in stream_records(driver, stream, end):
        if record.offset == cursor.record:
            runs = judged if isinstance(judged, tuple) else ()
        else:
            before = dict(stream.state.positions)
    for index, run in enumerate(runs[: cursor.run + 1]):
        before[run.log] = run.next if index < cursor.run else max(run.first, cursor.next)
    return {plan.logs[number].name: position for number, position in before.items()}


def _interest(group: str, cursor: Cursor, state: ControlState) -> tuple[str, ...] | None:
    """Find a group's interest: the one that its cursor names, or that its name is; else None."""
    plans = [state.plan(), *reversed(state.plans)]
    named = [entry.interest for plan in plans if (entry := plan.subscription(group)) is not None]
    partitions = tuple(group.split("+"))
    if set(partitions) <= set(plans[0].partitions):
        named.append(partitions)
    if not cursor.interest:
        return named[0] if named else None
    others = [entry.interest for plan in plans for entry in plan.consumers]
    return next(
        (each for each in [*named, *others] if interest_digest(each) == cursor.interest), None
    )


def _ordered(
    cursor: Cursor, state: ControlState, streams: Mapping[str, KnownStream]
) -> Mapping[str, int]:
    """Say how far the collector that a cursor reads has ordered its logs, if that is known."""
    if cursor.source not in streams or cursor.epoch < state.begun_epoch:
        return {}
    stream = streams[cursor.source].stream
    return {stream.plan.logs[log].name: at for log, at in stream.state.positions.items()}


def _added(
    state: ControlState, epoch: int, interest: Sequence[str], known: Mapping[str, int]
) -> dict[str, int]:
    """Give the first offsets of the interest's logs that later epochs added: it has read none."""
    added: dict[str, int] = {}
    for later in range(epoch + 1, state.epoch + 1):
        starts = state.starts(later) or {}
        for log in state.plan(later).logs_of(interest):
            if log.name not in known:
                added.setdefault(log.name, starts.get(log.name, log.first))
    return added


def _places(
    driver: Driver, logs: Sequence[Log], positions: Mapping[str, int], ordered: Mapping[str, int]
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
            ordered=ordered.get(log.name),
        )
        for log in logs
    )


def with_left(
    driver: Driver,
    group: GroupFacts,
    state: ControlState,
    sizes: Mapping[TopicPartition, int] = _NO_SIZES,
) -> GroupFacts:
    """Add the first unread message of each log, and the unread bytes, for the check of retention.

    Skips, epoch markers and messages to others that have the same log are none.
    """
    logs = {log_partition(log): log for plan in state.plans for log in plan.logs}
    partitions = {log.name: partition for partition, log in logs.items()}
    late = {partitions[place.log]: place for place in group.places
            if place.lag and place.position >= place.begin}  # fmt: skip

    def counts(partition: TopicPartition, record: Record) -> bool:
        meaning = special(logs[partition].name, record.headers) if record.headers else None
        if isinstance(meaning, Covered):
            return not group.interest or not set(group.interest).isdisjoint(meaning.to)
        return meaning is None

    spans = {partition: (place.position, place.end) for partition, place in late.items()}
    firsts = first_records(driver, spans, counts)
    places = []
    for place in group.places:
        partition, kept = partitions[place.log], place.end - place.begin
        size, record = sizes.get(partition), firsts.get(partition)
        left = None if size is None or kept <= 0 else size * min(place.lag, kept) // kept
        first, oldest = place.position, None
        if record is not None:
            first, oldest = record.offset, min(record.timestamp_ms, now_ms())
        elif partition in late and place.lag <= SPAN_MAX:
            first = place.end
        places.append(replace(place, first=first, oldest_ms=oldest, bytes_left=left))
    return replace(group, places=tuple(places))


def request_of(state: ControlState, group: str, cursor: Cursor) -> SubscriptionRequest | None:
    """Give what a group's consumer has subscribed to, as far as its name and its cursor tell.

    That is the name, if a plan has it; else an interest of which the cursor has the digest.
    """
    if any(plan.subscription(group) is not None for plan in state.plans):
        return SubscriptionRequest(group, None)
    known = {entry.interest: None for plan in state.plans for entry in plan.consumers}
    partitions = state.plan().partitions
    known |= {tuple(sorted(group.split("+"))): None, tuple(sorted(partitions)): None}
    known |= {(partition,): None for partition in partitions}
    matching = (each for each in known if interest_digest(each) == cursor.interest)
    return next((SubscriptionRequest(None, each) for each in matching), None)


def why_ended(state: ControlState, group: str, cursor: Cursor) -> str | None:
    """Say that the newest plan ends the group's consumer; None: it does not, as far as is known."""
    request = request_of(state, group, cursor)
    try:
        if request is not None:
            request.resolve(state.plan())
    except UncoveredInterest as error:
        return f"no plan serves consumer {group} any more: {error}"
    return None
