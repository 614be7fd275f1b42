"""The ticket rule: which records of an order stream count, and what they order.

An order stream is one Kafka partition. Producers, any number of instances of its collector, zombies
and strangers append to it. Its state is a pure function of its committed bytes; no record names
another one, so there is no digest chain. No I/O, no clock, no randomness.

    own log        a log that enters the order in this stream; its producers write tickets here
    inherited      a log whose order comes from the parent's stream
    position       of a log: the first offset that is not ordered yet
    run            the offsets from a log's old position to its new one: what a record orders
    ticket         (log, messages, upto): so many more messages of the log are on their way, and the
                   log ends at `upto` or later once they are stored. A collector that saw the end of
                   a log writes a ticket of 0 messages
    debt           of an own log: offsets that were ordered although no ticket had counted them
    correction     (log, number, amount, held): `amount` of the debt will not be paid
    held           of an own log: an open transaction hides its messages, so only its collector
                   orders them; set and ended by corrections
    parent_next    the first offset of the parent's stream whose effect is not taken over yet
    parent_last    the checksum of the parent's last record below it
    restored       how many of the runs are taken over that a recovery restores
    seen           (log, end, leader epoch, checksum): a collector saw the log end there or later
                   under that leader, behind this message. A record below `end` with a later leader
                   epoch, or another one at `end` - 1, has replaced one
    lost           (log, first): the log lost its messages from offset `first` on
    mark           the offset at which the next checkpoint describes the state: behind the last
                   checkpoint that counted, or the stream's first offset

Clauses:
 1. A record counts only if it carries the stream's tag (epoch, plan, collector), and only before
    the stream is frozen.
 2. A ticket's messages first pay debt; each message beyond the debt moves the position by one.
    Then, if the position is below `upto`, it becomes `upto`, and the debt grows by the difference;
    but a ticket with messages moves it no further than lets the debt grow to PROMISE_MAX.
    If the log is held, a ticket with messages does nothing, and one without makes no debt.
 3. A correction counts iff its number is the next one of its log. It lowers the debt by `amount`,
    not below 0, and sets `held`.
 4. A relay (first, next, before, last, entries) counts iff first = parent_next < next and before =
    parent_last. Each entry (log, upto) moves an inherited log's position to `upto`, if that is
    higher. Then parent_next becomes `next`, and parent_last `last`.
 5. A freeze (parent_next, positions) counts iff the state has reached what it names. One that names
    nothing always counts; only a recovery writes it.
 6. A record orders at most ORDERED_MAX offsets: messages and the way to the highest `upto` of each
    log together. A record with an impossible entry, or one that asks for more, is void as a whole.
 7. While fewer runs are restored than the epoch's start owes, only records of restored runs (first,
    next, entries) count, iff first <= restored < next, for all logs of the bag. Their entries act
    as those of a relay, so one that overlaps what is known adds only the rest; then `restored`
    becomes `next`.
 8. A checkpoint (mark, state) counts iff it names the mark, and the state that was there. It moves
    the mark behind itself and changes nothing else.
 9. What a collector saw counts iff all its logs are in the bag; clause 7 does not hold it up. Its
    entries act one after the other, but for an end that is more than ORDERED_MAX above its log's
    position; before each, what its log has is judged anew. Of a log's seen ends, each is dropped
    for which another one has the same or a higher end and the same or a lower epoch, one of equal
    ones staying; of those at or below the position the largest stays; of those above it, while more
    than SEEN_MAX are left, the one before the last by rising end is dropped. Of a log's losses the
    lowest stays.

Why writers need no agreement: an entry of clause 2 can only bring a position forward, and a wrong
one costs time (a hole is filled by a skip, a debt is corrected). What a relay says is determined by
the parent's bytes between `first` and `next`, so it does not matter which instance wrote it, and
clause 4 admits no gap, nor what follows another tail of the parent's stream. A correction computed
from an old state has an old number. A checkpoint is checked by all who read it; who begins at one
is where all others were.

Invariants, for each log: positions never go back; the runs of a log continue each other without a
gap; debt >= 0.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from multicast.errors import ProtocolViolation
from multicast.order.records import (
    COUNT_MAX,
    PROMISE_MAX,
    CheckpointRecord,
    FreezeRecord,
    Loss,
    OwnLog,
    OwnRecord,
    Position,
    RelayRecord,
    RestoredRecord,
    SeenEnd,
    SightRecord,
    StreamRecord,
    Unread,
    decode,
)
from multicast.order.runs import ORDERED_MAX, Run

# Of the ends that were seen of a log. Two failures of a leader within one checkpoint's time are
# rare; of more, the lowest epochs and the largest end show each loss but those between them.
SEEN_MAX = 3


class NotCounted(enum.Enum):
    """Why a record does not count."""

    FOREIGN = Unread.FOREIGN.value
    MALFORMED = Unread.MALFORMED.value
    FROZEN = "the stream is frozen"
    IMPOSSIBLE = "one of its entries is impossible"
    GAP = "it relays what comes after a part that is missing here"
    OVERLAP = "it begins before what is relayed here ends"
    OTHER = "it continues another tail of the parent's stream"
    KNOWN = "it says what is known here"
    EARLY = "the stream has not reached what the freeze names"
    OWED = "the runs that a recovery restores come first"
    FALSE = "a checkpoint names another state than this reader's: one of the two is wrong"


@dataclass(frozen=True, slots=True)
class StreamShape:
    """What plan and control topic say of a stream: its tag, and where its logs begin, by number.

    `first` is where the stream begins in its partition, and `parent_first` where the parent's does;
    None without a parent. After a recovery, `owed` is the number of restored runs with which the
    stream begins. `sight` is what was seen and lost of its logs before: it acts first.
    """

    tag: bytes
    own: Mapping[int, int]
    inherited: Mapping[int, int]
    first: int = 0
    parent_first: int | None = None
    owed: int = 0
    sight: SightRecord = field(default_factory=SightRecord)


@dataclass(slots=True)
class StreamState:
    """The effect of all records read so far: its size depends on the number of logs alone."""

    positions: dict[int, int]
    debts: dict[int, int]
    corrections: dict[int, int]
    parent_next: int
    held: set[int] = field(default_factory=set)
    restored: int = 0
    frozen: bool = False
    parent_last: int = 0
    seen: dict[int, tuple[SeenEnd, ...]] = field(default_factory=dict)  # by log, in rising order
    lost: dict[int, int] = field(default_factory=dict)  # by log: the first offset

    def copy(self) -> StreamState:
        """Give a copy."""
        return replace(
            self,
            positions=dict(self.positions),
            debts=dict(self.debts),
            corrections=dict(self.corrections),
            held=set(self.held),
            seen=dict(self.seen),
            lost=dict(self.lost),
        )


class RecordStream:
    """One stream in one epoch, read record by record, from its start or from a checkpoint.

    A checkpoint must come from a record of this stream that has counted. Reading begins at its
    mark, so the checkpoint itself is read again. Raises `ProtocolViolation` if it has other logs
    than the stream.
    """

    def __init__(self, shape: StreamShape, checkpoint: CheckpointRecord | None = None) -> None:
        self.shape = shape
        self.offset_next = shape.first
        self.state = StreamState(
            positions={**shape.own, **shape.inherited},
            debts=dict.fromkeys(shape.own, 0),
            corrections=dict.fromkeys(shape.own, 0),
            parent_next=shape.parent_first or 0,
        )
        if checkpoint is None:
            self._sight(shape.sight)
        else:
            self.offset_next = checkpoint.mark
            self._begin(checkpoint)
        # Of each own log: how many messages tickets have counted since reading began.
        self.counted = dict.fromkeys(shape.own, 0)
        # Behind the last record that was read before the stream was frozen, and behind its freeze.
        # Producers may go on to write tickets, so a child must not wait for the stream's end.
        self.relevant_next = self.offset_next
        self.checksum = 0  # of the last record that was read; 0: none
        self.relevant_checksum = 0  # of the last record below `relevant_next`
        self.mark = self.offset_next
        self.marked = self.checkpoint()
        self.checkpoint_at: int | None = None  # where a checkpoint last counted
        self.read_from = self.mark  # by who opens the stream at that checkpoint
        self.last: StreamRecord | Unread | None = None  # the record that was read last

    def _begin(self, checkpoint: CheckpointRecord) -> None:
        state = self.state
        for log, position, debt, corrections, held in checkpoint.own:
            state.positions[log], state.debts[log] = position, debt
            state.corrections[log] = corrections
            if held:
                state.held.add(log)
        state.positions.update(checkpoint.inherited)
        state.parent_next, state.restored = checkpoint.parent_next, checkpoint.restored
        state.parent_last = checkpoint.parent_last
        for each in checkpoint.seen:
            state.seen[each.log] = (*state.seen.get(each.log, ()), each)
        state.lost.update(checkpoint.lost)
        logs = {log.log for log in checkpoint.own}, {log for log, _ in checkpoint.inherited}
        strange = (state.seen.keys() | state.lost.keys()) - state.positions.keys()
        if strange or logs != (set(self.shape.own), set(self.shape.inherited)):
            raise ProtocolViolation("a checkpoint has other logs than its stream")

    def checkpoint(self) -> CheckpointRecord:
        """Give the present state, as a checkpoint record names it once its mark is here."""
        state, own = self.state, sorted(self.shape.own)
        return CheckpointRecord(
            self.offset_next,
            state.parent_next,
            state.restored,
            tuple(
                OwnLog(
                    log,
                    state.positions[log],
                    state.debts[log],
                    state.corrections[log],
                    log in state.held,
                )
                for log in own
            ),
            tuple(Position(log, state.positions[log]) for log in sorted(self.shape.inherited)),
            state.parent_last,
            tuple(
                each
                for log in sorted(state.seen)
                for each in undominated(state.seen[log], state.positions[log])
            ),
            tuple(Loss(*each) for each in sorted(state.lost.items())),
        )

    def read(
        self, offset: int, raw: bytes | None, checksum: int = 0
    ) -> tuple[Run, ...] | NotCounted:
        """Read the record at `offset`; give the runs that it orders, or why it does not count.

        Offsets must rise from call to call; those of aborted records and markers may be left out.
        `checksum` is the record's (`order_checksum`); who needs none may leave it out.
        """
        assert offset >= self.offset_next, "records are read in offset order, each once"
        self.offset_next, self.checksum = offset + 1, checksum
        if not self.state.frozen:
            self.relevant_next, self.relevant_checksum = offset + 1, checksum
        self.last = record = decode(self.shape.tag, raw or b"")
        if isinstance(record, Unread):
            return NotCounted[record.name]
        if self.state.frozen:
            return NotCounted.FROZEN
        return self._judge(record)

    def _judge(self, record: StreamRecord) -> tuple[Run, ...] | NotCounted:
        match record:
            case RestoredRecord():
                return self._restored(record)
            case SightRecord():
                return self._sight(record)
            case _ if self.state.restored < self.shape.owed:
                return NotCounted.OWED
            case OwnRecord():
                return self._own(record)
            case RelayRecord():
                return self._relay(record)
            case FreezeRecord():
                return self._freeze(record)
            case CheckpointRecord():
                return self._checkpoint(record)

    def _own(self, record: OwnRecord) -> tuple[Run, ...] | NotCounted:
        state, own = self.state, self.shape.own
        reach: dict[int, int] = {}  # few of all logs: this runs for each ticket
        asked = 0
        for log, messages, upto in record.tickets:
            if log not in own or messages > COUNT_MAX:
                return NotCounted.IMPOSSIBLE
            reached = reach.get(log, state.positions[log])
            asked += messages + max(0, upto - reached)
            reach[log] = max(upto, reached)
        if asked > ORDERED_MAX or any(entry.log not in own for entry in record.corrections):
            return NotCounted.IMPOSSIBLE
        runs = []
        for log, messages, named in record.tickets:
            held = log in state.held
            if held and messages:
                continue
            first = state.positions[log]
            paid = min(messages, state.debts[log])
            end = first + messages - paid
            room = max(0, PROMISE_MAX - state.debts[log] + paid)
            upto = min(named, end + room) if messages else named
            if not held:
                state.debts[log] += max(0, upto - end) - paid
            self.counted[log] += messages
            end = max(end, upto)
            if end > first:
                state.positions[log] = end
                runs.append(Run(log, first, end))
        for log, number, amount, held in record.corrections:
            if number == state.corrections[log] + 1:
                state.corrections[log] = number
                state.debts[log] = max(0, state.debts[log] - amount)
                (state.held.add if held else state.held.discard)(log)
        return tuple(runs)

    def _relay(self, record: RelayRecord) -> tuple[Run, ...] | NotCounted:
        state = self.state
        if self.shape.parent_first is None:
            return NotCounted.IMPOSSIBLE
        if record.next <= state.parent_next:
            return NotCounted.KNOWN
        if record.first != state.parent_next:
            return NotCounted.GAP if record.first > state.parent_next else NotCounted.OVERLAP
        if record.before != state.parent_last:
            return NotCounted.OTHER
        runs = self._advanced(record.entries, self.shape.inherited)
        if not isinstance(runs, NotCounted):
            state.parent_next, state.parent_last = record.next, record.last
        return runs

    def _restored(self, record: RestoredRecord) -> tuple[Run, ...] | NotCounted:
        if record.next > self.shape.owed or record.next - record.first != len(record.entries):
            return NotCounted.IMPOSSIBLE
        if record.next <= self.state.restored:
            return NotCounted.KNOWN
        if record.first > self.state.restored:
            return NotCounted.GAP
        runs = self._advanced(record.entries, self.state.positions)
        if not isinstance(runs, NotCounted):
            self.state.restored = record.next
        return runs

    def _advanced(
        self, entries: Sequence[Position], allowed: Mapping[int, int]
    ) -> tuple[Run, ...] | NotCounted:
        runs = advance(self.state.positions, entries, allowed)
        if runs is None:
            return NotCounted.IMPOSSIBLE
        self.state.positions.update([(run.log, run.next) for run in runs])
        return runs

    def _sight(self, record: SightRecord) -> tuple[Run, ...] | NotCounted:
        state = self.state
        if any(each[0] not in state.positions for each in (*record.seen, *record.lost)):
            return NotCounted.IMPOSSIBLE
        for each in record.seen:
            position = state.positions[each.log]
            if each.end <= position + ORDERED_MAX:
                # First as a checkpoint has it: who began at one knows no more.
                known = undominated(state.seen.get(each.log, ()), position)
                state.seen[each.log] = undominated([*known, each], position)
        for log, first in record.lost:
            state.lost[log] = min(first, state.lost.get(log, first))
        return ()

    def _freeze(self, record: FreezeRecord) -> tuple[Run, ...] | NotCounted:
        state = self.state
        if state.parent_next < record.parent_next:
            return NotCounted.EARLY
        if any(state.positions.get(log, -1) < end for log, end in record.positions):
            return NotCounted.EARLY
        state.frozen = True
        return ()

    def _checkpoint(self, record: CheckpointRecord) -> tuple[Run, ...] | NotCounted:
        if record.mark < self.mark:
            return NotCounted.KNOWN
        if record != self.marked:
            return NotCounted.FALSE
        self.checkpoint_at = self.offset_next - 1
        self.read_from, self.mark = self.mark, self.offset_next
        self.marked = self.checkpoint()
        return ()


def undominated(seen: Sequence[SeenEnd], position: int) -> tuple[SeenEnd, ...]:
    """Give the seen ends of one log that clause 9 keeps, by rising end and leader epoch.

    Of equal ones the first with a checksum stays.
    """
    kept: list[SeenEnd] = []
    for each in sorted(seen, key=lambda each: (each.leader_epoch, -each.end, not each.checksum)):
        if not kept or each.end > kept[-1].end:
            kept.append(each)
    ordered = [each for each in kept if each.end <= position]
    above = kept[len(ordered) :]
    while len(above) > SEEN_MAX:
        del above[-2]
    return (*ordered[-1:], *above)


def advance(
    positions: Mapping[int, int], entries: Sequence[Position], allowed: Mapping[int, int]
) -> tuple[Run, ...] | None:
    """Give the runs by which these entries move positions forward; None: they are impossible."""
    ahead: dict[int, int] = {}
    runs = []
    for log, upto in entries:
        if log not in allowed:
            return None
        first = ahead.get(log, positions[log])
        if upto > first:
            ahead[log] = upto
            runs.append(Run(log, first, upto))
    return None if sum([end - first for _, first, end in runs]) > ORDERED_MAX else tuple(runs)
