"""Delivery at one consumer in one epoch: payloads and an order go in, deliveries come out.

No I/O, no clock: `consumer.py` polls Kafka and carries out what this module decides. When a payload
happened to arrive must never show in the order of deliveries.

    received   its record was read from its log
    ordered    its offset was read from the order stream, in a record that counted
    passed     of a log: every offset below it was received or holds no message
    delivered  handed to the application

Invariants:
    delivered is a prefix of ordered, and within received;
    an ordered offset is dropped only when it is passed and was not received, or when its record is
    not for us (a skip, an epoch marker, a covered message whose exact set misses our interest);
    the log at the head of the order is never paused.

A consumer whose interest meets one log only needs no order stream: its order is the log itself, a
single run without an end, cut at the epoch marker. Anybody may write what looks like a marker, so
it stops at one and no more; `subscription.pass_marker` decides whether it goes on there.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter

from multicast.cursor import Cursor
from multicast.drivers.protocol import Record
from multicast.messages import Covered, EpochMarker, Special, special
from multicast.order import OFFSET_MAX, OrderRecord, OrderStream, Void
from topology.tree import Log, Plan

_offset = attrgetter("offset")
# By number, so that looking at every record costs a third.
_value = itemgetter(Record._fields.index("value"))
_headers = itemgetter(Record._fields.index("headers"))
_RECORD_BYTES = 200  # what a record takes beside its payload


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one log with one destination set that are delivered one after the other."""

    log: Log
    to: tuple[str, ...]
    records: Sequence[Record]
    epoch: int
    source: str
    record: int
    run: int

    def cursor(self, index: int = -1) -> Cursor:
        """Give the position right after `records[index]`."""
        after = self.records[index].offset + 1
        return Cursor(self.epoch, self.source, self.record, self.run, after)


@dataclass(slots=True)
class _Run:
    """What is left of a run: offsets first … next-1 of a log, from a place in the order stream."""

    log: int
    first: int
    next: int
    record: int
    run: int


@dataclass(slots=True)
class _Chunk:
    """Records as one poll read them, and their size; those before `start` are gone."""

    records: Sequence[Record]
    bytes: int
    start: int = 0


@dataclass(slots=True)
class _Buffer:
    """Received and not yet delivered records of one log, in offset order."""

    chunks: deque[_Chunk] = field(default_factory=deque)
    passed: int = 0
    bytes: int = 0  # of all chunks, each counted until its last record is gone

    def add(self, records: Sequence[Record], position: int) -> None:
        if records:
            chunk = _Chunk(records, _size(records))
            self.chunks.append(chunk)
            self.bytes += chunk.bytes
        self.passed = max(self.passed, position)

    def take(self, first: int, end: int, records_max: int) -> Sequence[Record]:
        """Take the oldest records from `first` to below `end`; drop those before `first`.

        At most one chunk's worth. Empty where nothing received stands in that range.
        """
        while self.chunks:
            chunk = self.chunks[0]
            records, low, high = chunk.records, chunk.start, len(chunk.records)
            if records[low].offset < first:
                low = bisect_left(records, first, low, key=_offset)
            if records[-1].offset >= end:
                high = bisect_left(records, end, low, key=_offset)
            high = min(high, low + records_max)
            if high == len(records):
                self.chunks.popleft()
                self.bytes -= chunk.bytes
            else:
                chunk.start = high
            if low < high:
                return records if high - low == len(records) else records[low:high]
            if self.chunks and self.chunks[0] is chunk:
                break
        return ()

    def put_back(self, records: Sequence[Record]) -> None:
        """Undo the taking of these, the last that were taken."""
        chunk = _Chunk(records, _size(records))
        self.chunks.appendleft(chunk)
        self.bytes += chunk.bytes


def _size(records: Sequence[Record]) -> int:
    """Estimate the memory that buffered records take, in bytes."""
    return sum(map(len, filter(None, map(_value, records)))) + _RECORD_BYTES * len(records)


class Delivery:
    """One consumer's delivery in one epoch. Feed it what was read; take what it delivers.

    Reads through `order` (a stream of the collector that serves the interest), or a lone log where
    `order` is None: then the interest must meet exactly one log, and `starts` says where it begins.
    `cursor` says where to begin; `multicast.cursor` makes one for the epoch's start.
    """

    def __init__(
        self,
        plan: Plan,
        interest: Sequence[str],
        order: OrderStream | None,
        cursor: Cursor,
        *,
        buffer_bytes_max: int = 16 << 20,
        runs_max: int = 100_000,
    ) -> None:
        self.plan = plan
        self.interest = frozenset(interest)
        self.order = order
        self.position = cursor
        self.logs = {plan.number(log.name): log for log in plan.logs_of(interest)}
        self.foreign = 0  # covered messages whose exact set misses the interest
        self.void: dict[Void, int] = {}
        self.payload_starts: Mapping[int, int] | None = None
        self.marker: int | None = None  # lone log: where it stopped for the next epoch
        self._start = cursor
        self._runs: deque[_Run] = deque()
        self._buffers = {number: _Buffer() for number in self.logs}
        self._buffer_bytes_max = buffer_bytes_max
        self._runs_max = runs_max
        self._alone_ended = False
        self._unmarked_below = 0  # lone log: what looks like a marker below this is none
        self._alone_at = cursor.next
        if order is None:
            (number,) = self.logs
            self.payload_starts = {number: cursor.next}
            self._runs.append(_Run(number, cursor.next, OFFSET_MAX, 0, 0))
        else:
            self._reach(order.offset_next)

    # -- what goes in -----------------------------------------------------------------------

    def order_read(self, offset: int, raw: bytes | None) -> None:
        """Take the next record of the order stream; raises as `OrderStream.read` does."""
        assert self.order is not None
        self._reach(offset)
        judged = self.order.read(offset, raw)
        if isinstance(judged, OrderRecord):
            if offset >= self._start.record:
                self._queue(offset, judged)
        elif judged is not None:
            self.void[judged] = self.void.get(judged, 0) + 1
        self._reach(self.order.offset_next)

    def order_passed(self, position: int) -> None:
        """Note that the order stream holds nothing more below `position`."""
        assert self.order is not None
        self.order.passed(position)
        self._reach(self.order.offset_next)

    def payload_read(self, log: int, records: Sequence[Record], position: int) -> None:
        """Take what was read from a log: its records and the reader's position after them."""
        self._buffers[log].add(records, position)

    def alone_waits(self) -> None:
        """Hold the lone log where it stands until `alone_ends`: its epoch may have ended before."""
        assert self.order is None
        self.marker = self._alone_at = self._runs[0].first
        self._runs.clear()

    def alone_goes_on(self) -> None:
        """Go on at what looked like a marker, and at all that look so in what was read so far.

        Right only where the control topic, read after all that, has no plan that ends the log's
        epoch: a plan stands there before its markers are written.
        """
        assert self.order is None
        assert self.marker is not None
        (number,) = self.logs
        first = self._runs[0].first if self._runs else self.marker
        self._unmarked_below = self._buffers[number].passed
        self._runs.clear()
        self._runs.append(_Run(number, first, OFFSET_MAX, 0, 0))
        self.marker = None

    def alone_ends(self, position: int) -> None:
        """Say where the lone log's epoch ends, as the control topic has it."""
        assert self.order is None
        (number,) = self.logs
        first = self._runs[0].first if self._runs else self.marker
        assert first is not None
        self._runs.clear()
        self._runs.append(_Run(number, first, position, 0, 0))
        self._alone_at = position
        self._alone_ended = True

    # -- what comes out ---------------------------------------------------------------------

    def deliver(self, messages_max: int) -> list[Batch]:
        """Take what is ordered and received, in order; at most so many messages."""
        batches: list[Batch] = []
        room = messages_max
        while self._runs and room > 0:
            run = self._runs[0]
            buffer = self._buffers[run.log]
            taken = buffer.take(run.first, run.next, room)
            if taken:
                # An epoch marker may cut the lone run short inside `taken`.
                room -= self._hand_out(run, taken, batches)
            elif buffer.passed >= run.next or run.first >= run.next:
                self._runs.popleft()
            else:
                break
        return batches

    @property
    def ended(self) -> bool:
        """Whether the epoch is delivered to its end."""
        if self._runs:
            return False
        return self._alone_ended if self.order is None else self.order.state.frozen

    def progress(self) -> dict[str, int]:
        """For each log of the interest: all its offsets below this are delivered or dropped."""
        if self.payload_starts is None:
            return {log.name: 0 for log in self.logs.values()}
        if self.order is not None:
            positions = self.order.state.positions
            reached = {number: positions[number] for number in self.logs}
        else:  # without a run a lone log stands at its marker, or at its epoch's end
            reached = dict.fromkeys(self.logs, self._alone_at)
        for run in reversed(self._runs):
            buffer = self._buffers[run.log]
            passed = run.first if buffer.chunks else max(run.first, buffer.passed)
            reached[run.log] = min(run.next, passed)
        return {self.logs[number].name: offset for number, offset in reached.items()}

    def paused(self) -> list[int]:
        """List the logs to read no further for now: their buffers are full, the head waits not."""
        head = self._runs[0].log if self._runs else None
        full = self._buffer_bytes_max
        return [
            number
            for number, buffer in self._buffers.items()
            if buffer.bytes >= full and number != head
        ]

    @property
    def waits_for_order(self) -> bool:
        """Whether nothing can be delivered before more of the order is read."""
        return not self._runs and self.order is not None

    def order_paused(self) -> bool:
        """Whether to read the order no further for now: enough of it is queued."""
        return len(self._runs) >= self._runs_max

    # -- inside -----------------------------------------------------------------------------

    def _reach(self, offset: int) -> None:
        """Fix where payloads begin, once the order stream is read to where we begin."""
        if self.payload_starts is None and offset >= self._start.record:
            assert self.order is not None
            if self.order.proven:
                positions = self.order.state.positions
                self.payload_starts = {number: positions[number] for number in self.logs}

    def _queue(self, offset: int, record: OrderRecord) -> None:
        resumed = offset == self._start.record
        for index, (log, first, end) in enumerate(record.runs):
            if log not in self.logs:
                continue
            begin = first
            if resumed and index <= self._start.run:
                begin = end if index < self._start.run else max(first, self._start.next)
            self._runs.append(_Run(log, begin, end, offset, index))

    def _hand_out(self, run: _Run, taken: Sequence[Record], batches: list[Batch]) -> int:
        """Turn records of the head run into batches; give how many messages they hold."""
        log = self.logs[run.log]
        if not any(map(_headers, taken)):
            return self._emit(run, log.to, taken, batches)
        count = 0
        plain: list[Record] = []
        for record in taken:
            found = special(log.name, record.headers) if record.headers else None
            if found is None:
                plain.append(record)
                continue
            if plain:
                count += self._emit(run, log.to, plain, batches)
                plain = []
            if isinstance(found, EpochMarker) and self._stops_here(found, record.offset):
                rest = [after for after in taken if after.offset >= record.offset]
                self._buffers[run.log].put_back(rest)
                run.next = record.offset
                return count
            count += self._special(run, found, record, batches)
        if plain:
            count += self._emit(run, log.to, plain, batches)
        return count

    def _stops_here(self, marker: EpochMarker, offset: int) -> bool:
        if self.order is not None or self._alone_ended:
            return False
        if marker.epoch <= self.plan.epoch:  # of a drain that was repeated, late
            return False
        if offset < self._unmarked_below:
            return False
        self.marker = self._alone_at = offset
        return True

    def _special(self, run: _Run, found: Special, record: Record, batches: list[Batch]) -> int:
        run.first = record.offset + 1
        if isinstance(found, Covered):
            if not self.interest.isdisjoint(found.to):
                return self._emit(run, found.to, [record], batches)
            self.foreign += 1
        return 0

    def _emit(
        self, run: _Run, to: tuple[str, ...], records: Sequence[Record], batches: list[Batch]
    ) -> int:
        batch = Batch(
            self.logs[run.log],
            to,
            records,
            self.plan.epoch,
            self.position.source,
            run.record,
            run.run,
        )
        batches.append(batch)
        run.first = records[-1].offset + 1
        self.position = batch.cursor()
        return len(records)
