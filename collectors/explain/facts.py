"""What `amcast explain` has read of one message, and what follows from it. No I/O, no clock.

hop     a collector that orders the message's log; the first is the log's top
place   where a stream orders the message: the order record, and the writer's time
ahead   of a place: a log whose order is ahead of what is stored, so a reader waits there
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from multicast.messages import MessageID
from topology.tree import Subscription


@dataclass(frozen=True, slots=True)
class LogFacts:
    """The message's log in Kafka: its first offset, last stable offset and high watermark."""

    place: str
    first: int
    stable: int
    end: int
    transaction: str = ""  # the oldest open one, in words
    lost: int | None = None  # what is at or above has been lost, and nobody delivers it
    accepted: bool = False  # by an operator: the log's next life begins there

    def has_lost(self, offset: int) -> bool:
        """Whether an offset is lost."""
        return self.lost is not None and offset >= self.lost


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The record at the message's offset; `decision` is that on its condition, in words."""

    kind: str
    to: tuple[str, ...]
    timestamp_ms: int | None
    bytes: int
    decision: str = ""


@dataclass(frozen=True, slots=True)
class OrderPlace:
    """The order record with the message; `ahead` gives (stored up to, ordered up to) by log.

    `by` says who has entered the message into the order, where that may be a producer.
    """

    record: int
    time_ms: int
    ahead: Mapping[str, tuple[int, int]]
    by: str = ""


@dataclass(frozen=True, slots=True)
class Hop:
    """A collector on the way; `ordered_to` and `last_ms` are as far as its stream was read.

    `debt` counts offsets that were ordered without a ticket, so that as many tickets order nothing.
    """

    collector: str
    parent: str | None
    stream: str
    place: OrderPlace | None
    ordered_to: int
    last_ms: int | None
    trimmed: bool = False
    debt: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """Where a topic has a consumer's copy of the message; None: nowhere near the message's time."""

    consumer: str
    topic: str
    offset: int | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Who waits, for what, and what to do."""

    who: str
    why: str
    do: str


@dataclass(frozen=True, slots=True)
class ExplainedMessage:
    """All that was read, at `now_ms`; `readers` are the consumers that the message addresses.

    In `ticketed` epochs producers order, too.
    """

    message: MessageID
    now_ms: int
    epoch: int
    log: LogFacts
    record: StoredRecord | None
    hops: tuple[Hop, ...]
    readers: tuple[Subscription, ...]
    ticketed: bool = True
    copies: tuple[Copy, ...] = ()

    def hop(self, collector: str) -> Hop | None:
        """Give the hop of a collector."""
        return next((hop for hop in self.hops if hop.collector == collector), None)


def waits(facts: ExplainedMessage) -> list[Wait]:
    """Say who waits for what, the first cause first; [] if every reader can deliver."""
    offset, log = facts.message.offset, facts.log
    if offset < log.first or (log.has_lost(offset) and log.accepted):
        return []
    if log.has_lost(offset):
        why = f"log {facts.message.log} has lost its messages from offset {log.lost} on"
        return [Wait("all readers", why, "run 'amcast topology recover --accept-loss'")]
    if offset >= log.end:
        return [_not_stored(facts)]
    if offset >= log.stable:
        what = log.transaction or "a transaction is open in the log"
        do = "wait for its end or its time-out, or abort it with 'kafka-transactions.sh abort'"
        return [Wait("all readers", f"{what}, and Kafka gives nothing behind it to readers", do)]
    late = [hop for hop in facts.hops if hop.place is None and not hop.trimmed]
    behind = {hop.collector for hop in late}
    causes = [hop for hop in late if hop.parent not in behind]
    holes = [wait for reader in facts.readers for wait in _holes(facts, reader)]
    return [_not_ordered(facts, hop) for hop in causes] + holes


def _holes(facts: ExplainedMessage, reader: Subscription) -> list[Wait]:
    """Say for which offsets a consumer waits that its order names before the message."""
    own = None if reader.collector is None else facts.hop(reader.collector)
    if own is None or own.place is None:
        return []
    return [
        Wait(
            f"consumer {reader.name}",
            f"offset {stored} of log {name} was ordered early and is not stored yet",
            "wait for its producer; if that has failed, a collector soon fills the offset",
        )
        for name, (stored, _) in own.place.ahead.items()
    ]


def _not_stored(facts: ExplainedMessage) -> Wait:
    name, end = facts.message.log, facts.log.end
    if any(hop.place is not None for hop in facts.hops):
        why = f"the offset was ordered early, and log {name} is stored up to {end} only"
        return Wait("all readers", why, "wait for its producer; else a collector fills the offset")
    return Wait("nobody", f"log {name} ends at {end}: there is no such message yet", "check the ID")


def _not_ordered(facts: ExplainedMessage, hop: Hop) -> Wait:
    if hop.last_ms is None:
        last = "its stream has no record in this epoch"
    else:
        last = f"its last record is {seconds(facts.now_ms - hop.last_ms)} old"
    if hop.debt:
        last += f"; a debt of {hop.debt} offsets comes before what new tickets order"
    return Wait(
        f"collector {hop.collector} and who reads its order",
        f"it has ordered log {facts.message.log} up to offset {hop.ordered_to}; {last}",
        "'amcast collectors status' shows whether it runs; 'amcast collectors run' runs it",
    )


def seconds(ms: int) -> str:
    """Write a duration."""
    return f"{ms} ms" if abs(ms) < 10_000 else f"{ms / 1000:,.0f} s"


def lines(facts: ExplainedMessage) -> list[str]:
    """Say everything in lines for people."""
    said = [
        f"{facts.message}: offset {facts.message.offset} of {facts.log.place}, epoch {facts.epoch}"
    ]
    said += [f"  {line}" for line in _of_record(facts)]
    if facts.hops:
        top = facts.hops[0].collector
        beside = f"a ticket beside the message orders it, or else {top} does"
        said.append(f"  {beside if facts.ticketed else f'{top} orders it once it is stored'}")
    said.append("Order:" if facts.hops else "Order: the log is its own; no collector is needed")
    said += [f"  {_of_hop(facts, hop)}" for hop in facts.hops]
    if facts.readers:
        said.append("Consumers that it addresses:")
        said += [f"  {reader.name}: {_state_of(facts, reader)}" for reader in facts.readers]
    else:
        said.append("No consumer of the plan is addressed.")
    said += [f"  {copy.consumer}: {_of_copy(copy)}" for copy in facts.copies]
    causes = waits(facts)
    if causes:
        said.append("Waits:")
        said += [f"  {wait.who}: {wait.why}; {wait.do}" for wait in causes]
    elif facts.message.offset >= facts.log.first:
        said.append("Nobody waits.")
    return said


def _of_record(facts: ExplainedMessage) -> list[str]:
    log, record, offset = facts.log, facts.record, facts.message.offset
    if log.has_lost(offset):
        return [f"lost, as all that the log held from offset {log.lost} on"]
    if record is not None:
        size = f"{record.bytes:,} bytes"
        said = [f"{record.kind} to {'+'.join(record.to)}, {size}, stored; {_time(record)}"]
        others = sorted(set(facts.message.log.split("+")) - set(record.to))
        if record.kind == "message" and others:
            names = f"{facts.message.log}: who reads only {' '.join(others)} reads and drops it"
            said.append(f"covered by log {names}")
        return [*said, f"conditional: {record.decision}"] if record.decision else said
    if offset < log.first:
        return [f"removed by retention: the log begins at offset {log.first}"]
    if offset >= log.end:
        return [f"not stored: the log ends at offset {log.end}"]
    if offset >= log.stable:
        return [f"stored behind an open transaction: readable up to offset {log.stable}"]
    return ["no record: of a transaction's end, or of one that was aborted"]


def _of_hop(facts: ExplainedMessage, hop: Hop) -> str:
    name = hop.collector if hop.parent is None else f"{hop.collector}, after {hop.parent}"
    if hop.trimmed:
        return f"{name}: its records were removed by retention"
    if hop.place is None:
        return f"{name}: not yet; ordered up to {hop.ordered_to}"
    after = ""
    if facts.record is not None and facts.record.timestamp_ms is not None:
        after = f", {seconds(hop.place.time_ms - facts.record.timestamp_ms)} after it was made"
    done = "ordered" if hop is facts.hops[0] else "relayed"
    done += f" by {hop.place.by}" if hop.place.by else ""
    where = f"in record {hop.place.record} of {hop.stream}"
    return f"{name}: {done} {where}, {moment_of(hop.place.time_ms)}{after}"


def moment_of(time_ms: int) -> str:
    """Write a time, given in milliseconds since 1970, in UTC."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def _time(record: StoredRecord) -> str:
    """Write a record's time, which any client may have set to anything."""
    if record.timestamp_ms is None:
        return "without a time"
    try:
        return f"made {moment_of(record.timestamp_ms)}"
    except (OverflowError, OSError, ValueError):
        return f"made at {record.timestamp_ms} ms"


def _state_of(facts: ExplainedMessage, reader: Subscription) -> str:
    is_lost = facts.log.has_lost(facts.message.offset)
    if facts.message.offset < facts.log.first or (is_lost and facts.log.accepted):
        return "cannot read it any more, unless it has"
    if is_lost:
        return "stops before it"
    if facts.message.offset >= facts.log.stable:
        return "waits until it is stored"
    if facts.record is None or facts.record.kind != "message" or is_void(facts.record):
        return "passes over it"
    if reader.collector is None:
        return "may deliver it, in the log's order"
    own = facts.hop(reader.collector)
    if own is None or own.trimmed:
        return f"reads the order of {reader.collector}, which is gone by retention"
    if own.place is None or own.place.ahead:
        return f"waits for {reader.collector}"
    return f"may deliver it, by the order of {reader.collector}"


def _of_copy(copy: Copy) -> str:
    if copy.offset is not None:
        return f"copied to {copy.topic} at offset {copy.offset}"
    return f"not in {copy.topic} near its time: not copied yet, or removed by retention"


def is_void(record: StoredRecord) -> bool:
    """Whether the message's condition has failed, so that nobody delivers it."""
    return record.decision.startswith("void")


def document(facts: ExplainedMessage) -> dict[str, Any]:
    """Give the JSON document."""
    states = {reader.name: _state_of(facts, reader) for reader in facts.readers}
    return {
        "schema_version": 1,
        "message_id": str(facts.message),
        "epoch": facts.epoch,
        "log": asdict(facts.log),
        "record": None if facts.record is None else asdict(facts.record),
        "hops": [asdict(hop) for hop in facts.hops],
        "consumers": states,
        "copies": [asdict(copy) for copy in facts.copies],
        "waits": [asdict(wait) for wait in waits(facts)],
    }
