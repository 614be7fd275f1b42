"""Reads from the cluster what `amcast explain` needs of one message. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace

from collectors.doctor.consumer_groups import group_prefix
from collectors.doctor.streams import now_ms, stream_records
from collectors.explain.facts import (
    Copy,
    ExplainedMessage,
    Hop,
    LogFacts,
    OrderPlace,
    StoredRecord,
    is_void,
)
from multicast.conditional.condition import EXPECT
from multicast.conditional.follower import DecisionFollower
from multicast.control import ControlState, log_partition, stream_partition
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.drivers.reading import READ_S, read_upto
from multicast.errors import AmcastError, TimedOut, Trimmed, UsageError
from multicast.messages import Covered, EpochMarker, MessageID, special
from multicast.order.records import OwnRecord, RestoredRecord, decode
from multicast.order.stream import OrderStream
from multicast.verification.audit import epoch_at, epochs_of
from topology.tree import CollectorSpec, Log, Plan

_COPIES_MAX = 10_000  # read in search of one: times are not in order, but nearly so


def message_of(text: str) -> MessageID:
    """Read a message's ID, "P1+P3:17"; raises `UsageError`."""
    message = MessageID.parse(text)
    return message._replace(log="+".join(sorted(message.log.split("+"))))


def explain(
    driver: Driver, admin: Admin, state: ControlState, message: MessageID
) -> ExplainedMessage:
    """Read all facts. Blocks; reads the streams from the last checkpoint before the message.

    Raises `UsageError` if no plan of the topic has the log, and `TimedOut` if a stream does not
    answer.
    """
    epochs = epochs_of(state, message.log, message.life)
    if not epochs:
        label = str(message).rpartition(":")[0]
        raise UsageError(
            f"no plan of topic {state.topic} has a log {label}; 'amcast topology show "
            f"--from-cluster' shows those that there are"
        )
    epoch = min(epoch_at(epochs, message.offset), state.begun_epoch)
    plan = state.plan(epoch)
    log = plan.log(message.log)
    cut, first = state.cut_of(epoch, log.name), state.loss_of(epoch, log.name)
    facts = _log(driver, admin, log, message.offset, first if cut is None else cut)
    facts = replace(facts, accepted=cut is not None)
    record = None if facts.has_lost(message.offset) else _record(driver, log, message, facts)
    stable = driver.last_stable_offsets([log_partition(each) for each in plan.logs])
    ends = {each.name: stable[log_partition(each)] for each in plan.logs}
    hops = tuple(
        _hop(driver, state, plan, node, message=message, ends=ends) for node in _path(plan, log)
    )
    to = set(log.to if record is None else record.to)
    readers = tuple(each for each in plan.consumers if not to.isdisjoint(each.interest))
    copies: tuple[Copy, ...] = ()
    if record is not None and record.kind == "message" and not is_void(record):
        copies = tuple(_copies(driver, admin, plan, message, record))
    return ExplainedMessage(
        message, now_ms(), epoch, facts, record, hops, readers, plan.tickets, copies
    )


def _copies(
    driver: Driver, admin: Admin, plan: Plan, message: MessageID, record: StoredRecord
) -> Iterator[Copy]:
    """Find what copiers have made of a message, as far as this user may see their groups."""
    prefix = group_prefix(plan.topic)
    groups: Iterable[str] = ()
    with suppress(AmcastError):
        groups = admin.groups(prefix)
    for group in groups:
        name, at, topic = group.removeprefix(prefix).rpartition("@")
        entry = plan.subscription(name)
        interest = name.split("+") if entry is None else entry.interest
        if at and not set(interest).isdisjoint(record.to):
            with suppress(AmcastError):  # also where the target's leader is away
                yield Copy(name, topic, _copy(driver, topic, message, record.timestamp_ms or 0))


def _copy(driver: Driver, topic: str, message: MessageID, time_ms: int) -> int | None:
    """Give the offset of a message's copy, which has its time or a later one."""
    wanted = str(message).encode()
    for number in range(driver.partition_counts([topic]).get(topic, 0)):
        partition = TopicPartition(topic, number)
        start = driver.offsets_at([partition], max(0, time_ms))[partition]
        end = min(driver.last_stable_offsets([partition])[partition], start + _COPIES_MAX)
        for fetched in read_upto(driver, partition, start, end, error=TimedOut):
            for copy in fetched.records:
                if any(value == wanted for _, value in copy.headers[-3:]):  # the last are ours
                    return copy.offset
    return None


def _log(driver: Driver, admin: Admin, log: Log, offset: int, lost: int | None) -> LogFacts:
    partition = log_partition(log)
    place = f"{partition.topic}/{partition.partition}"
    first = driver.log_start_offsets([partition])[partition]
    stable = driver.last_stable_offsets([partition])[partition]
    end = driver.high_watermarks([partition])[partition]
    said = _oldest_transaction(admin, partition) if stable <= offset < end else ""
    return LogFacts(place, first, stable, end, said, lost)


def _oldest_transaction(admin: Admin, partition: TopicPartition) -> str:
    """Say who holds up the log; "" if this user may not see it, or it has just ended."""
    try:
        transactions = admin.open_transactions([partition])[partition]
    except AmcastError:
        return ""
    if not transactions:
        return ""
    oldest = transactions[0]
    name = oldest.transactional_id or f"producer {oldest.producer_id}"
    since = (now_ms() - oldest.since_ms) / 1000
    return f"transaction {name} is open from offset {oldest.first_offset} on, since {since:,.0f} s"


def _record(driver: Driver, log: Log, message: MessageID, facts: LogFacts) -> StoredRecord | None:
    """Read the record at the message's offset; None if readers get none there."""
    if not facts.first <= message.offset < facts.stable:
        return None
    record = _read_one(driver, log_partition(log), message.offset)
    if record is None:
        return None
    meaning = special(log.name, record.headers)
    kind, to = "message", log.to
    if isinstance(meaning, Covered):
        to = meaning.to
    elif meaning is not None:
        kind = "epoch marker" if isinstance(meaning, EpochMarker) else "skip"
    size = len(record.value or b"") + len(record.key or b"")
    decision = ""
    if kind == "message" and any(name == EXPECT for name, _ in record.headers):
        decision = _decision(driver, log, message.offset)
    return StoredRecord(kind, to, record.timestamp_ms, size, decision)


def _read_one(driver: Driver, partition: TopicPartition, offset: int) -> Record | None:
    """Read from an offset on; give its record, None if the log has none there."""
    for fetched in read_upto(driver, partition, offset, offset + 1, error=TimedOut):
        for record in fetched.records:
            if record.offset >= offset:
                return record if record.offset == offset else None
    return None


def _decision(driver: Driver, log: Log, offset: int) -> str:
    with closing(DecisionFollower(driver)) as follower:
        follower.add([log])
        try:
            decision = follower.wait(log.name, offset, READ_S)
        except Trimmed as error:
            return f"unknown: {error}"
    return (
        f"unknown: the log was not read within {READ_S:g} s" if decision is None else str(decision)
    )


def _path(plan: Plan, log: Log) -> list[CollectorSpec]:
    """List the collectors that order a log, each after its parent."""
    nodes = [node for node in plan.collectors if log.name in node.bag]
    return sorted(nodes, key=lambda node: len(plan.path(node.name)))


def _hop(
    driver: Driver,
    state: ControlState,
    plan: Plan,
    node: CollectorSpec,
    *,
    message: MessageID,
    ends: Mapping[str, int],
) -> Hop:
    """Read a collector's stream up to the message, or to its end."""
    first_epoch = state.first_epoch(plan.epoch, node.name)
    began_with = state.plan(first_epoch)
    partition = stream_partition(began_with, node.name)
    begin = driver.log_start_offsets([partition])[partition]
    end = driver.last_stable_offsets([partition])[partition]
    number = began_with.number(message.log)
    points = [
        point
        for point in state.checkpoints(first_epoch, node.name)
        if begin <= point.read_from
        and point.offset < end
        and point.positions[number] <= message.offset
    ]
    point = points[-1] if points else None
    stream_place = f"{partition.topic}/{partition.partition}"
    parent = node.parent if node.parent and message.log in plan.collector(node.parent).bag else None
    is_gone = point is None and began_with.collector(node.name).stream_first < begin
    stream = state.opened(first_epoch, node.name, point)
    if is_gone or stream.state.positions[number] > message.offset:  # older than this stream
        return Hop(node.name, parent, stream_place, None, 0, None, trimmed=True)
    place, last_ms = _place(driver, stream, end, log=number, offset=message.offset, ends=ends)
    ordered_to = stream.state.positions[number]
    debt = stream.state.debts.get(number, 0) if isinstance(stream, OrderStream) else 0
    return Hop(node.name, parent, stream_place, place, ordered_to, last_ms, debt=debt)


def _place(
    driver: Driver, stream: OrderStream, end: int, *, log: int, offset: int, ends: Mapping[str, int]
) -> tuple[OrderPlace | None, int | None]:
    """Read a stream until it orders the offset; give the place, and the last time read."""
    last_ms: int | None = None
    for record, judged in stream_records(driver, stream, end):
        if isinstance(judged, tuple):
            last_ms = time_ms = record.timestamp_ms or 0
            if stream.state.positions[log] > offset:
                ahead, by = _ahead(stream, ends), _by(stream, record, log)
                return OrderPlace(record.offset, time_ms, ahead, by), last_ms
    return None, last_ms


def _by(stream: OrderStream, record: Record, log: int) -> str:
    """Say who has entered a log's offset into the order with a record; "" where that is plain."""
    if log not in stream.own:
        return ""
    content = decode(stream.shape.tag, record.value or b"")
    tickets = content.tickets if isinstance(content, OwnRecord) else ()
    if any(ticket.log == log and ticket.messages for ticket in tickets):
        return "a producer's ticket"
    return "a recovery" if isinstance(content, RestoredRecord) else "the collector"


def _ahead(stream: OrderStream, ends: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Give the logs that are ordered further than they are stored."""
    logs = stream.plan.logs
    names = {logs[number].name: next_ for number, next_ in stream.state.positions.items()}
    return {name: (ends[name], at) for name, at in names.items() if at > ends.get(name, at)}
