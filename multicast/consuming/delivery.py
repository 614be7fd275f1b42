"""Delivery at one consumer in one epoch: takes payloads and an order, gives messages in that order.

No I/O, no clock: `consumer.py` polls Kafka and carries out what this module decides. The moment at
which a payload arrives must never influence the order of deliveries.

    received   the message's record was read from its log
    ordered    its offset was read in an accepted record of the order stream
    passed     per log: every offset below it was received or has no message
    delivered  handed to the application

Invariants:
    delivered is a prefix of ordered, and a subset of received;
    an ordered offset is dropped only if it is passed and was not received, or if its record is not
    for this consumer (a skip, an epoch marker, a covered message whose exact set misses the
    interest, a void message);
    the log at the head of the order is never paused.

A single-log subscription (an interest that meets one log only) needs no order stream: the order is
the log itself, one run without an end, until an epoch marker. Anybody may write a record that looks
like a marker, so `Delivery` only stops at it; `subscription.pass_marker` decides if it is real.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from operator import itemgetter

from multicast.conditional.judge import EFFECTIVE, Decision
from multicast.conditional.judges import LogJudges
from multicast.consuming.batches import Batch
from multicast.consuming.buffers import LogBuffer, RunQueue, Waiting, WaitingRun
from multicast.consuming.cursor import Cursor, CursorProof, interest_digest
from multicast.consuming.tails import LogTails
from multicast.control import log_partition
from multicast.drivers.protocol import Record, TopicPartition
from multicast.messages import Covered, EpochMarker, Special, has_reserved, special
from multicast.order.records import SightRecord
from multicast.order.runs import OFFSET_MAX, Run, order_checksum
from multicast.order.stream import OrderStream
from topology.tree import Plan

# By index instead of by name: that cuts the cost of looking at every record to a third.
_headers = itemgetter(Record._fields.index("headers"))
# The buffer of each log: as much as one full answer to a fetch (librdkafka's `fetch.max.bytes` is
# 16 MiB in our driver). A smaller buffer pauses logs more often, a larger one takes more memory for
# each log. It influences no delivery.
BUFFER_BYTES_MAX = 16 << 20
# Runs that are queued, by default: some 15 MB (each has five numbers). It bounds callers that ask
# `order_paused`, as `Consumer` does where one reader reads order and payloads; else it reads the
# order only while no run is queued.
RUNS_MAX = 100_000
_NO_CUTS: Mapping[int, int] = {}


class Delivery:
    """One consumer's delivery in one epoch: takes what was read, gives what is deliverable.

    `order` is the stream of the collector that serves the interest; None for a single-log
    subscription, whose interest must meet exactly one log. Delivery begins at `cursor`;
    `multicast.consuming.cursor` makes one for the epoch's start. A log's buffer is full from
    `buffer_bytes_max` bytes on (`paused`), the queue of runs from `runs_max` runs on
    (`order_paused`).
    """

    def __init__(
        self,
        plan: Plan,
        interest: Sequence[str],
        order: OrderStream | None,
        cursor: Cursor,
        *,
        buffer_bytes_max: int = BUFFER_BYTES_MAX,
        runs_max: int = RUNS_MAX,
    ) -> None:
        self.plan = plan
        self.interest = frozenset(interest)
        self._digest = interest_digest(interest)
        self.order = order
        self.position = cursor
        self.logs = {plan.number(log.name): log for log in plan.logs_of(interest)}
        # By log: what was dropped last, before the position, and after it.
        self._dropped: dict[int, Record] = {}
        self._dropped_after: dict[int, Record] = {}
        self._read_base: dict[int, int] | None = None  # the order's positions at the cursor
        self._least: dict[int, int] = {}  # below these offsets all was delivered before
        self._begins: dict[int, int] | None = None  # where logs are read from, as far as known
        self.void: dict[enum.Enum, int] = {}
        self.judges = LogJudges()
        self.void_too = False  # deliver void messages, with their decision
        self.fence = 0  # of the exclusive consumer whose delivery this is
        self.payload_starts: Mapping[int, int] | None = None
        # The next four matter to a single-log subscription only.
        self.marker: int | None = None  # it has stopped at this offset, at what may be a marker
        self._end_known = False  # the log's epoch ends where the last run ends
        self._unmarked_below = 0  # below this offset no record is a marker, whatever it looks like
        self._log_position = cursor.next  # the progress while no run is queued
        self._start = cursor
        self._proof: CursorProof | None = CursorProof(cursor)  # None: it is there
        # The message before the cursor that nobody has compared yet: its log, offset and checksum.
        self.unproven: tuple[int, int, int] | None = None
        self._runs = RunQueue(self.logs)
        self._moved = set(self.logs)  # whose progress may have changed since the last `moved`
        self.buffers = {number: LogBuffer() for number in self.logs}
        self.tails = LogTails(self.logs)
        self.stopped_in: int | None = None  # the log at whose stop the last `deliver` ended
        self._full: set[int] = set()  # logs whose buffers were full when records came
        self._buffer_bytes_max = buffer_bytes_max
        self._runs_max = runs_max
        if order is None:
            (number,) = self.logs
            self.payload_starts = {number: cursor.next}
            self._runs.append(WaitingRun(number, cursor.next, OFFSET_MAX, 0, 0))
            self._prove(number)
        else:
            self._reach(order.offset_next)

    # -- input ------------------------------------------------------------------------------

    def order_read(self, record: Record) -> None:
        """Process the next order record; raises as `OrderStream.read`, and `Truncated`."""
        assert self.order is not None
        offset, checksum = record.offset, order_checksum(record)
        self._reach(offset)
        if self._proof is not None:
            self._proof.met(offset, checksum)
        result = self.order.read(offset, record.value, checksum)
        if self._proof is not None:
            self._proof.counted(offset, result, frozen=self.order.state.frozen)
            if offset >= self._start.record:
                self._proof = None
        if isinstance(result, enum.Enum):
            self.void[result] = self.void.get(result, 0) + 1
        elif not result:
            if isinstance(self.order.last, SightRecord):
                self.saw(self.order.last)
        elif offset >= self._start.record:
            self._queue(offset, result, checksum)
        self._reach(self.order.offset_next)

    def order_passed(self, position: int) -> None:
        """Report that the order stream has no more records below `position`."""
        assert self.order is not None
        if self._proof is not None:
            self._proof.passed(position)
        self.order.passed(position)
        self._reach(self.order.offset_next)

    def payload_read(
        self, log: int, records: Sequence[Record], position: int, *, now: float = 0.0
    ) -> None:
        """Process records of a log, and the reader's position after them; `now` is in seconds."""
        self.buffers[log].add(records, position, now)
        if records:
            self.tails.arrived(log, records)
        self._moved.add(log)
        self._note_full(log)

    def saw(self, sight: SightRecord, cuts: Mapping[int, int] = _NO_CUTS) -> None:
        """Take what is stated of the ends of logs, by their numbers in the plan.

        From the offset in `cuts` on an operator has accepted that a log's messages are lost.
        """
        named = [end.log for end in sight.seen if end.log in self.logs]
        progress = {log: self._progress_of(log) for log in named}
        for log in self.tails.saw(sight, progress, cuts):
            self.tails.judge(log, self.buffers[log].polls())

    def all_told(self) -> None:
        """Go on, as all is known that is stated of the ends of the logs at hand.

        Raises `Truncated` if what comes next is lost; then ask again.
        """
        self.tails.all_told()
        for log, buffer in self.buffers.items():
            self.tails.judge(log, buffer.polls())
        if self.stopped_in is not None and self._runs:
            self.tails.refuse_lost(self.stopped_in, self._runs.head.first)

    def begin_at(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read logs from these offsets on at the earliest: below them all was delivered before.

        What was delivered last, and what a reader drops behind it, need not be retained.
        """
        self._least = {
            number: offsets[partition]
            for number, log in self.logs.items()
            if (partition := log_partition(log)) in offsets
        }
        for number, offset in self._least.items():
            self.buffers[number].add((), offset, 0)
        if self.payload_starts is not None:
            self.payload_starts = self._at_least(self.payload_starts)

    def _at_least(self, starts: Mapping[int, int]) -> dict[int, int]:
        return {log: max(first, self._least.get(log, 0)) for log, first in starts.items()}

    def await_log_end(self) -> None:
        """Deliver nothing until `end_log_at`: the epoch may have ended before the position."""
        assert self.order is None
        self.marker = self._log_position = self._runs.head.first
        self._runs.clear()

    def ignore_markers(self) -> None:
        """Continue: this apparent marker is none, nor is any other that was received so far.

        Correct only if the control topic, read after these records, has no plan that ends the log's
        epoch: a plan is written before its markers.
        """
        assert self.order is None
        assert self.marker is not None
        (number,) = self.logs
        first = self._runs.head.first if self._runs else self.marker
        self._unmarked_below = self.buffers[number].passed
        self._runs.clear()
        self._runs.append(WaitingRun(number, first, OFFSET_MAX, 0, 0))
        self.marker = None

    def end_log_at(self, position: int) -> None:
        """Deliver the log up to `position`, where its epoch ends as the control topic says."""
        assert self.order is None
        (number,) = self.logs
        first = self._runs.head.first if self._runs else self.marker
        assert first is not None
        self._runs.clear()
        self._runs.append(WaitingRun(number, first, position, 0, 0))
        self._log_position = position
        self._end_known = True

    # -- output -----------------------------------------------------------------------------

    def deliver(self, messages_max: int) -> list[Batch]:
        """Give the next messages in order that are received, at most `messages_max`.

        Nothing while `judges` want records that must be read again; raises `Trimmed` if those are
        no longer retained.
        """
        self.judges.check()
        batches: list[Batch] = []
        room, self.stopped_in = messages_max, None
        while self._runs and room > 0 and not self.judges.stopped:
            run = self._runs.head
            self._moved.add(run.log)
            buffer, end = self.buffers[run.log], run.next
            if self.tails.stops:
                end = min(end, self.tails.stops.get(run.log, end))
                if run.first >= end and end < run.next:
                    if not self.tails.drops(run.log, run.first):
                        self.stopped_in = run.log
                        break
                    run.first = end = run.next
            taken = buffer.take(run.first, end, room)
            if taken:
                # For a single log, an epoch marker in `taken` may end the run.
                room -= self._hand_out(run, taken, batches)
            elif buffer.passed >= end or run.first >= end:
                run.first = end
                if end == run.next:
                    self._runs.popleft()
            else:
                break
        return batches

    @property
    def ended(self) -> bool:
        """Whether the epoch is delivered to its end."""
        if self._runs:
            return False
        return self._end_known if self.order is None else self.order.state.frozen

    def progress(self) -> dict[str, int]:
        """Give, per log of the interest, the offset below which all is delivered or dropped."""
        return {log.name: self._progress_of(number) for number, log in self.logs.items()}

    def moved(self) -> dict[int, int]:
        """Give the progress of the logs, by number, for which it changed since the last call.

        Costs as much as these logs, however many there are; the first call gives all.
        """
        moved, self._moved = self._moved, set()
        return {number: self._progress_of(number) for number in moved}

    def dropped(self) -> dict[int, Record]:
        """Give, of the logs whose last record before the position was dropped, that one, once."""
        dropped, self._dropped = self._dropped, {}
        return dropped

    def _progress_of(self, number: int) -> int:
        if self.payload_starts is None:
            return 0
        run = self._runs.first_of(number)
        if run is not None:
            buffer = self.buffers[number]
            passed = run.first if buffer.chunks else max(run.first, buffer.passed)
            return min(run.next, passed)
        # Without a run a single log is at its marker, or at its epoch's end.
        return self._log_position if self.order is None else self.order.state.positions[number]

    def entries_read(self) -> dict[int, int]:
        """Count the entries read in the order stream from the cursor on, by the plan's log numbers.

        They include those of logs outside the interest. Empty for a single-log subscription.
        """
        if self.order is None:
            return {}
        positions = self.order.state.positions
        base = positions if self._read_base is None else self._read_base
        return {log: position - base[log] for log, position in positions.items()}

    def paused(self) -> list[int]:
        """List the logs not to read for now: their buffers are full.

        The log at the head of the order is never among them: its next record may be the only one
        that lets delivery continue and so empties the buffers.
        """
        if not self._full:  # as a rule; else this takes time for each log, however many there are
            return []
        head = self._runs.head.log if self._runs else None
        for log in list(self._full):
            self._full.discard(log)
            self._note_full(log)
        return sorted(self._full - {head})

    def waiting(self, now: float) -> Waiting | None:
        """Say for what the messages at hand wait; None if some can be delivered, or there are none.

        As of the last `deliver`. Takes time for each log, however many there are.
        """
        behind = {log: buffer for log, buffer in self.buffers.items() if buffer.chunks}
        if not behind or self.order is None:
            return None
        number, oldest = min(behind.items(), key=lambda item: item[1].chunks[0].since)
        if self._runs:
            number = self._runs.head.log
            if number in behind or self.buffers[number].passed >= self._runs.head.next:
                return None
            offset = max(self._runs.head.first, self.buffers[number].passed)
        else:
            offset = oldest.chunks[0].records[oldest.chunks[0].start].offset
        return Waiting(
            self.logs[number].name,
            offset,
            self.order.state.positions[number],
            now - oldest.chunks[0].since,
            {self.logs[log].name: buffer.records for log, buffer in behind.items()},
        )

    def order_paused(self) -> bool:
        """Whether not to read the order for now: enough runs are queued."""
        return len(self._runs) >= self._runs_max

    # -- inside -----------------------------------------------------------------------------

    def _note_full(self, log: int) -> None:
        if self.buffers[log].bytes >= self._buffer_bytes_max:
            self._full.add(log)

    def _reach(self, offset: int) -> None:
        """Set `payload_starts` once the order stream is read up to the cursor's record."""
        start, order = self._start, self.order
        if self._begins is None and offset >= start.record and order is not None and order.proven:
            self._begins = {number: order.state.positions[number] for number in self.logs}
            self._read_base = order.state.positions.copy()
        if self._begins is None or self.payload_starts is not None:
            return
        if offset > start.record or not (start.run or start.next):
            self.payload_starts = self._at_least(self._begins)

    def _queue(self, offset: int, runs: Sequence[Run], proof: int) -> None:
        resumed = offset == self._start.record
        for index, (log, first, end) in enumerate(runs):
            if not resumed and log not in self.logs:
                continue
            begin = first
            if resumed and index <= self._start.run:
                begin = end if index < self._start.run else min(end, max(first, self._start.next))
                assert self._read_base is not None
                self._read_base[log] += begin - first
                if log in self.logs:
                    assert self._begins is not None
                    self._begins[log] = begin
                    if index == self._start.run:
                        self._prove(log)
            if log in self.logs:
                self._moved.add(log)
                self._runs.append(WaitingRun(log, begin, end, offset, index, proof))

    def _prove(self, log: int) -> None:
        """Have the message before the cursor compared, if the cursor says which it was."""
        if self._start.message:
            self.unproven = log, self._start.next - 1, self._start.message

    def _hand_out(self, run: WaitingRun, taken: Sequence[Record], batches: list[Batch]) -> int:
        """Append batches of these records of the head run; give the number of messages."""
        log = self.logs[run.log]
        headed = filter(None, map(_headers, taken))
        if not self.judges.active(run.log) and not any(map(has_reserved, headed)):
            return self._emit(run, log.to, taken, batches)
        count = 0
        plain: list[Record] = []
        for record in taken:
            meaning = special(log.name, record.headers) if record.headers else None
            stops = isinstance(meaning, EpochMarker) and self._stops_here(meaning, record.offset)
            decision = self.judges.judge(run.log, log, record)
            if meaning is None and decision is EFFECTIVE:
                plain.append(record)
                continue
            if plain:
                count += self._emit(run, log.to, plain, batches)
                plain = []
            if decision is None or stops:
                untaken = [after for after in taken if after.offset >= record.offset]
                self.buffers[run.log].put_back(untaken)
                self._note_full(run.log)
                if stops:
                    run.next = record.offset
                return count
            count += self._special(run, meaning, decision, record, batches)
        if plain:
            count += self._emit(run, log.to, plain, batches)
        return count

    def _stops_here(self, marker: EpochMarker, offset: int) -> bool:
        if self.order is not None or self._end_known:
            return False
        if marker.epoch <= self.plan.epoch:  # of an earlier change of epoch, appended again
            return False
        if offset < self._unmarked_below:
            return False
        self.marker = self._log_position = offset
        return True

    def _special(
        self,
        run: WaitingRun,
        meaning: Special | None,
        decision: Decision,
        record: Record,
        batches: list[Batch],
    ) -> int:
        run.first = record.offset + 1
        self._dropped_after[run.log] = record  # unless it is handed out
        if meaning is not None and not isinstance(meaning, Covered):
            return 0
        to = self.logs[run.log].to if meaning is None else meaning.to
        if self.interest.isdisjoint(to) or not (decision.takes_effect or self.void_too):
            return 0
        return self._emit(run, to, [record], batches, decision)

    def _emit(
        self,
        run: WaitingRun,
        to: tuple[str, ...],
        records: Sequence[Record],
        batches: list[Batch],
        decision: Decision = EFFECTIVE,
    ) -> int:
        if self._dropped_after:
            self._dropped |= self._dropped_after
            self._dropped_after = {}
        self._dropped.pop(run.log, None)
        place = self.plan.epoch, self.position.source, run.record, run.run
        log = self.logs[run.log]
        rest = decision, self._digest, run.proof, self.fence
        batches.append(Batch(log, to, records, *place, *rest))
        run.first = records[-1].offset + 1
        self.position = Cursor(*place, run.first, self._digest, run.proof)
        return len(records)
