"""Reads an order without its payloads: pieces, which are runs of offsets with their positions.

Which stream is read in which epoch is decided by `subscription.py`, and what a stream says
by `multicast.control.OrderStream`, as for a `Consumer`. A piece contains only offsets that are
both ordered and stored, so whoever reads it need not wait.

    position   of a message in an epoch: how many offsets its collector's stream orders before it,
               those of all logs, delivered or not; for a single-log subscription its offset.
               It rises strictly in delivery order, and is the same for every reader at any time

Invariant: the pieces of all calls together are the order from the start cursor on, without a gap.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Literal, NamedTuple

from multicast.consuming.cursor import Cursor, CursorProof, interest_digest
from multicast.consuming.delivery import Delivery
from multicast.consuming.ends import end_now, place_of, refuse_beyond_end
from multicast.consuming.last_read import LastRead, LastReads
from multicast.consuming.stated_ends import (
    lost_behind,
    read_stated,
    refuse_lost_stream,
    refuse_other_end,
    tell,
)
from multicast.consuming.subscription import (
    Bounds,
    End,
    Reached,
    SubscriptionRequest,
    begin,
    lacking,
    resume,
)
from multicast.control import SINGLE_LOG, ControlReader, log_partition, stream_partition
from multicast.control.topic_identity import refuse_changed_topics
from multicast.drivers.clock import clock_of
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.protocol import Driver, Fetched, Reader, Record, TopicPartition
from multicast.errors import (
    AmcastError,
    ClusterUnreachable,
    ProtocolViolation,
    TopicChanged,
    Trimmed,
)
from multicast.order.records import Loss, SeenEnd, SightRecord
from multicast.order.runs import OFFSET_MAX, order_checksum, ordered_by
from multicast.order.stream import OrderStream
from topology.tree import Log

Where = Literal["earliest", "latest"] | Cursor | datetime
_BOUNDS = Bounds()  # nothing is buffered here
_POLL_S = 1.0  # one wait for order records that exist; more polls follow
_QUIET_S = 10.0  # the request time-out of a driver: so long a record that exists may take
_ANEW = (
    "retention removed messages that were not read; begin at earliest, the first place from which "
    "all is retained: a stream with a new checkpoint, an export in a new folder"
)


class Piece(NamedTuple):
    """The offsets first … next-1 of a log, which follow each other in the order.

    Offset o has the position `position + o - first` in `epoch`. `record` and `run` place the piece
    as a `Cursor` does; `interest` is the reader's in this epoch.
    """

    epoch: int
    source: str
    interest: tuple[str, ...]
    log: Log
    record: int
    run: int
    first: int
    next: int
    position: int
    proof: int

    @property
    def end(self) -> Cursor:
        """The cursor after the piece's last offset."""
        place = self.epoch, self.source, self.record, self.run, self.next
        return Cursor(*place, interest_digest(self.interest), self.proof)


class OrderWalk(ClosedAtEnd):
    """Goes along the order of one subscription from a cursor on, epoch by epoch.

    Used from one thread. `until` is a cursor to which it goes, made by a walk or a consumer: both
    must be of what is there now. Raises what `Consumer.seek` raises for `start`, and `TopicChanged`
    if the topic's origin is not the given one.
    """

    def __init__(
        self,
        driver: Driver,
        topic: str,
        request: SubscriptionRequest,
        start: Where,
        *,
        until: Cursor | None = None,
        origin: str | None = None,
    ) -> None:
        self._driver = driver
        self._until = until
        self._last = LastReads(driver)
        # By log: under which leader's epoch its seen ends were compared, and which.
        self._compared: dict[TopicPartition, tuple[int, tuple[SeenEnd, ...]]] = {}
        self._delivery: Delivery  # nothing is handed out by it: it knows what is lost
        self._request = request
        self._control = ControlReader(driver, topic)
        self._reader: Reader = driver.reader({})
        self._heard_to: Mapping[TopicPartition, int] = {}  # how far the control topic was taken
        self._checkpoints = True
        self._queue: deque[Piece] = deque()
        self._queued = 0  # offsets in the queue
        self._order: OrderStream | None = None
        self._partition: TopicPartition  # of the order stream, if there is one
        self._log_next = 0  # of a single log: the first offset not queued yet
        self._log_over = False  # a single log's epoch is queued to its end
        self._ordered = 0  # offsets that the stream orders in the records read so far
        try:
            cursor = self.cursor_of(start)
            self._refuse_other(origin)
            self._open(cursor, is_given=isinstance(start, Cursor))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the readers."""
        self._reader.close()
        self._control.close()

    def advance(self, offsets_max: int = OFFSET_MAX, *, until: Cursor | None = None) -> list[Piece]:
        """Give the next pieces, at most `offsets_max` offsets; [] if there are none now.

        With `until`, nothing after that cursor. Blocks for requests to Kafka. Raises `Trimmed` if
        retention has removed a part of the order or of a piece, and what `Consumer.poll` raises.
        """
        control = self._control.refresh()
        if self._control.positions != self._heard_to:
            tell(control, self._delivery)
            self._heard_to = self._control.positions
        pieces: list[Piece] = []
        left = offsets_max
        while left > 0:
            self._read(left)
            is_last = until is not None and until.epoch == self._epoch
            taken = list(self._take(left, until if is_last else None))
            left -= sum(piece.next - piece.first for piece in taken)
            pieces += taken
            if self._queue or not self._over or (until and until.epoch <= self._epoch):
                break
            try:
                if not self._turn():
                    break
            except AmcastError:
                if pieces:  # the caller gets these first, and the error from the next call
                    break
                raise
        if not pieces and self._queue:
            head, delivery = self._queue[0], self._delivery
            delivery.tails.refuse_lost(delivery.plan.number(head.log.name), head.first)
        self._refuse_trimmed(pieces)
        return pieces

    def passed(self, cursor: Cursor) -> bool:
        """Whether all offsets up to a cursor were given."""
        if self._epoch != cursor.epoch:
            return self._epoch > cursor.epoch
        if self.position == cursor:
            return True
        where = (cursor.record, cursor.run, cursor.next)
        if self._queue:
            head = self._queue[0]
            return (head.record, head.run, head.first) >= where
        if self._over:  # a place after the epoch's end is one of the next epoch
            return True
        if self._order is None:
            return self._log_next >= cursor.next
        below = self._order.offset_next
        return below > cursor.record or (below == cursor.record and where[1:] == (0, 0))

    def lacks(self, end: End) -> str | None:
        """Say what was not given yet up to an end; None: nothing."""
        if self._order is None:
            (log,) = self._logs.values()
            progress = {log.name: self._log_next}
        else:
            state = self._order.state
            progress = {log.name: state.positions[number] for number, log in self._logs.items()}
        for piece in reversed(self._queue):
            progress[piece.log.name] = piece.first
        where = Reached(self._epoch, self._source, progress, stopped=self._over)
        return lacking(self._control.state, self._request, where, end)

    def end(self) -> End:
        """Take the end of the interest's logs as it is now; blocks for requests to Kafka."""
        return end_now(self._driver, self._control, self._request)

    def cursor_of(self, start: Where) -> Cursor:
        """Give the cursor of a place; a time means what it means to `Consumer.seek`."""
        control = self._control.refresh()
        if isinstance(start, Cursor):
            return start
        cursor = place_of(self._driver, control, self._request, start).cursor
        # A log's end may lie after an epoch marker; `resume` then needs that epoch's plan.
        self._control.refresh()
        return cursor

    @property
    def origin(self) -> str:
        """What tells this topic from another one of its name: a digest of its first plan.

        That plan has the IDs of the topics, so a topic that is recreated has another origin.
        """
        return self._control.state.plan(1).digest.hex()

    @property
    def interest(self) -> tuple[str, ...]:
        """The partitions that are read in the epoch of the position, sorted."""
        return self._interest

    def wait(self, timeout_s: float) -> None:
        """Wait until the control topic says more, at most `timeout_s` seconds."""
        self._control.follow(timeout_s)

    # -- inside -----------------------------------------------------------------------------

    def _refuse_other(self, origin: str | None) -> None:
        if origin not in (None, self.origin):
            raise TopicChanged(
                f"topic {self._control.state.topic} is not the one that was read before: it was "
                f"deleted and recreated, or this is another cluster; begin anew: a stream with a "
                f"new checkpoint, an export in a new folder"
            )

    def _open(self, cursor: Cursor, *, is_given: bool = False) -> None:
        """Go on at a cursor, in its epoch; one that somebody kept may be of what is lost."""
        delivery = resume(
            self._control.state,
            self._request,
            cursor,
            bounds=_BOUNDS,
            checkpoints=self._checkpoints,
        )
        topics = {log.topic for log in delivery.logs.values()}
        refuse_changed_topics(self._driver, delivery.plan, topics)
        if delivery.order is not None:
            control, collector = self._control.state, delivery.order.collector
            refuse_lost_stream(self._driver, control, cursor.epoch, collector)
        if is_given:
            refuse_beyond_end(self._driver, clock_of(self._driver), delivery)
            if delivery.unproven is not None:
                number, offset, checksum = delivery.unproven
                partition = log_partition(delivery.logs[number])
                self._last.refuse_others({partition: LastRead(offset, checksum)})
        if self._order is not None:
            self._reader.remove([self._partition])
        self._queue.clear()
        self._queued = 0
        self.position = self._start = delivery.position
        self._epoch, self._source = delivery.plan.epoch, delivery.position.source
        self._interest = tuple(sorted(delivery.interest))
        self._logs = delivery.logs
        self._order, self._delivery, self._compared = delivery.order, delivery, {}
        known = [each for each in (cursor, self._until) if each and each.epoch == self._epoch]
        self._proofs = [CursorProof(each) for each in known]
        self._log_next, self._log_over = cursor.next, False
        if self._order is not None:
            state = self._order.state
            self._ordered = sum(state.positions.values()) - sum(self._order.starts.values())
            self._partition = stream_partition(delivery.plan, self._order.collector)
            self._last.begin(self._partition)
            self._reader.add({self._partition: self._order.offset_next})

    @property
    def _over(self) -> bool:
        """Whether this epoch was read to its end."""
        return self._log_over if self._order is None else self._order.state.frozen

    def _turn(self) -> bool:
        """Begin the next epoch; False while it has not begun."""
        control = self._control.state
        last = control.last_epoch(self._epoch, self._source)
        if last is None or control.starts(last + 1) is None:
            return False
        if self._order is not None:  # where its freeze is another one, that epoch begins elsewhere
            self._last.refuse_lost(self._partition)
            refuse_other_end(control, self._order)
        following = begin(control, self._request, epoch=last + 1, bounds=_BOUNDS)
        self._open(following.position)
        return True

    def _read(self, offsets_wanted: int) -> None:
        """Queue what is ordered now, or as much of it as is wanted."""
        if self._order is None:
            self._read_log()
            return
        end = self._driver.last_stable_offsets([self._partition])[self._partition]
        if end < self._order.offset_next:
            self._last.refuse_lost(self._partition)
        quiet_since = clock_of(self._driver).monotonic()
        while self._order.offset_next < end and self._queued < offsets_wanted and not self._over:
            try:
                answers = self._reader.poll(_POLL_S)
            except Trimmed as error:
                gone = Trimmed(f"{str(error).rstrip('.')}: {_ANEW}")
                raise gone.about(self._partition) from error
            now = clock_of(self._driver).monotonic()
            if answers:
                quiet_since = now
            elif now - quiet_since > _QUIET_S:
                raise ClusterUnreachable(
                    f"the order stream of collector {self._order.collector} could not be read to "
                    f"its end within {_QUIET_S:g} s"
                )
            self._take_answers(self._order, answers)

    def _take_answers(self, order: OrderStream, answers: Sequence[Fetched]) -> None:
        try:
            for partition, records, position in answers:
                self._last.note(partition, records, position)
                for record in records:
                    self._queue_runs(order, record)
                for proof in self._proofs:
                    proof.passed(position)
                order.passed(position)
        except ProtocolViolation:
            if order.proven:
                raise
            # The checkpoint does not match the stream: read from the epoch's start instead.
            self._checkpoints = False
            self._open(self.position)

    def _queue_runs(self, order: OrderStream, record: Record) -> None:
        offset, checksum = record.offset, order_checksum(record)
        for proof in self._proofs:
            proof.met(offset, checksum)
        runs = order.read(offset, record.value)
        for proof in self._proofs:
            proof.counted(offset, runs, frozen=order.state.frozen)
        if isinstance(order.last, SightRecord) and runs == ():
            self._delivery.saw(order.last)
        if isinstance(runs, enum.Enum):
            return
        position = self._ordered
        self._ordered += ordered_by(runs)
        start = self._start
        for index, (number, first, end) in enumerate(runs):
            low = first
            if (offset, index) < (start.record, start.run):
                low = end
            elif (offset, index) == (start.record, start.run):
                low = min(end, max(first, start.next))
            if number in self._logs and low < end:
                log = self._logs[number]
                place = offset, index, checksum
                self._add(log, place, range(low, end), position + low - first)
            position += end - first

    def _read_log(self) -> None:
        """Queue what a single log contains now; up to the epoch's end, if a plan has ended it."""
        if self._log_over:
            return
        (log,) = self._logs.values()
        partition = log_partition(log)
        stored = self._driver.last_stable_offsets([partition])[partition]
        # A plan is in the control topic before its markers are in the logs: if there is none after
        # `stored` was taken, no record below it ends the epoch.
        control = self._control.refresh()
        end: int | None = stored
        last = control.last_epoch(self._epoch, self._source)
        if last is not None:
            end = control.single_log_end(last, self._source.removeprefix(SINGLE_LOG))
        if end is None:
            return  # the epoch ends somewhere; the control topic will say where
        if self._log_next < end:
            self._add(log, (0, 0, 0), range(self._log_next, end), self._log_next)
            self._log_next = end
        self._log_over = last is not None

    def _add(self, log: Log, place: tuple[int, int, int], offsets: range, position: int) -> None:
        first, end, (record, run, proof) = offsets.start, offsets.stop, place
        of = self._epoch, self._source, self._interest, log
        self._queue.append(Piece(*of, record, run, first, end, position, proof))
        self._queued += end - first

    def _take(self, offsets_max: int, until: Cursor | None) -> Iterator[Piece]:
        """Take pieces from the queue, as far as they are stored; `until` is of this epoch."""
        if not self._queue:
            return
        stored = self._stored(dict.fromkeys(piece.log for piece in self._queue))
        left, tails = offsets_max, self._delivery.tails
        while self._queue and left > 0:
            piece = self._queue[0]
            number = self._delivery.plan.number(piece.log.name)
            stop = tails.stops.get(number, OFFSET_MAX)
            if stop <= piece.first and tails.drops(number, piece.first):
                self._queued -= piece.next - piece.first
                self._queue.popleft()
                continue
            stored_to = min(stop, stored[piece.log])
            end = min(piece.next, stored_to, piece.first + left)
            if until is not None:
                if (piece.record, piece.run) > (until.record, until.run):
                    return
                if (piece.record, piece.run) == (until.record, until.run):
                    end = min(end, until.next)
            if end <= piece.first:
                return
            taken = piece._replace(next=end)
            self._queued -= end - piece.first
            left -= end - piece.first
            if end == piece.next:
                self._queue.popleft()
            else:
                self._queue[0] = piece._replace(
                    first=end, position=piece.position + end - piece.first
                )
            self.position = taken.end
            yield taken

    def _stored(self, logs: Iterable[Log]) -> dict[Log, int]:
        """Ask where logs end, and compare the ends that collectors saw with what leaders have.

        Under a later leader than before, all is read first that is stated of ends by now.
        """
        places = {log: log_partition(log) for log in logs}
        present = self._driver.leader_ends(list(places.values()))
        for place in places.values():
            if place not in present:
                raise ClusterUnreachable(f"{place.topic}/{place.partition}: no leader answers")
        leaders = {place: answer.leader_epoch for place, answer in present.items()}
        before, delivery = self._compared, self._delivery
        if any(epoch > before.get(place, (0, ()))[0] for place, epoch in leaders.items()):
            read_stated(self._driver, self._control, delivery, nullcontext())
            before.update({place: (epoch, ()) for place, epoch in leaders.items()})
            return self._stored(logs)
        numbers = {place: delivery.plan.number(log.name) for log, place in places.items()}
        for place, number in numbers.items():
            seen = delivery.tails.seen(number)
            if before.get(place) != (leaders[place], seen):
                before[place] = leaders[place], seen
                for first in lost_behind(self._driver, {place: seen}, present).values():
                    delivery.saw(SightRecord(lost=(Loss(number, first),)))
        return {log: present[place].end for log, place in places.items()}

    def _refuse_trimmed(self, pieces: list[Piece]) -> None:
        """Raise `Trimmed` if retention has removed messages of these pieces."""
        lowest: dict[Log, Piece] = {}
        for piece in pieces:
            lowest.setdefault(piece.log, piece)
        starts = self._driver.log_start_offsets([log_partition(log) for log in lowest])
        for log, piece in lowest.items():
            start = starts[log_partition(log)]
            if piece.first < start:
                raise Trimmed(
                    f"log {log.name} begins at offset {start}, but the order from the start on "
                    f"contains its offset {piece.first}: {_ANEW}"
                ).about(log_partition(log))
