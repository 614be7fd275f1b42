"""The appends to one Kafka partition: their order, sequence numbers and outcomes. No I/O, no clock.

    queue       entries (`entries.py`) that were never sent, or that the log certainly does not hold
    sent        batches that were sent and have no outcome yet, by sequence number
    in doubt    of a batch: an attempt had no answer, or one that leaves open whether it is stored
    lost        the brokers may not expect the next sequence number of this epoch

A batch is sent again with the same bytes, so the brokers store it once. If a batch ends without
being stored for certain, later sequence numbers have a gap before them: then nothing new is sent
until the batches behind it are settled, and the next batch begins a new epoch of the producer with
sequence number 0 (KIP-360). The epoch is counted here: brokers compare the epochs of a producer
without transactions in each partition by itself, and an InitProducerId request would only give
another ID. The new epoch fences what is left of the old one.

Unlike Kafka's own clients, nothing in doubt is sent in the new epoch, where it would have no
earlier number by which the brokers find the copy. Sent again are only records that the brokers'
answers prove not to be stored: every attempt was refused because of a number before it.

Invariants: len(sent) <= `requests_max` <= 5, which is how many batches a broker remembers. While no
batch of an epoch is stored, at most one is in flight: a broker without state for a producer accepts
any first number. Outcomes come in the order of the appends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate, islice
from math import inf

from multicast.drivers.appender.entries import QueuedEntry
from multicast.drivers.appender.record_batch import (
    BATCH_BYTES,
    SEQUENCES,
    Codec,
    ProducerIdentity,
    written_batch,
)
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import (
    AmcastError,
    AppendNotAuthorized,
    AppendNotStored,
    AppendRefused,
    AppendUnknown,
)

REQUESTS_MAX = 5  # in flight for each partition: as many batches does a broker remember
_EPOCH_MAX = 2**15 - 1  # the largest number of Kafka's field
# A single record above this is copied once only; below it a copy takes a few microseconds.
_LARGE_BYTES = 64 * 1024
# A batch below this would hardly become smaller.
_COMPRESSED_BYTES_MIN = 100

# Kafka's error codes for records that are refused for good: too large (two codes), invalid topic, a
# time too far from the broker's, record format, policy, codec, invalid record.
TOO_LARGE = frozenset({10, 18})
REFUSED = TOO_LARGE | {17, 32, 43, 44, 76, 87}
# These say that a number is out of sequence, or the epoch or ID is unknown:
# the broker has not stored the batch.
_OUT_OF_SEQUENCE = frozenset({45, 47, 59})
_TOO_FEW_REPLICAS = 19  # refused before anything was stored, for now
_DUPLICATE = 46  # stored earlier, and the broker remembers no offset
_NOT_AUTHORIZED = frozenset({29, 31})  # no right on the topic, on the cluster

# The outcome of an entry's first record: if it is stored, the others follow it.
EntryOutcome = tuple[QueuedEntry, AppendOutcome]


class BatchState(Enum):
    """Where a batch that was sent stands."""

    IN_FLIGHT = "in flight"
    WAITING = "to be sent again"
    NOT_STORED = "certainly not stored, because of a gap before it"
    ENDED = "has its outcome"


_IN_FLIGHT, _WAITING, _NOT_STORED, _ENDED = BatchState  # an Enum's own look-up is slow


@dataclass(slots=True, eq=False)
class NumberedBatch:
    """Consecutive records of a partition with their sequence numbers, as they are sent.

    `count` records, the first with number `sequence` and time `first_ms`; `codec` may be None.
    """

    entries: list[QueuedEntry]
    count: int
    identity: ProducerIdentity
    sequence: int
    first_ms: int
    codec: Codec | None
    state: BatchState = _IN_FLIGHT
    doubt: bool = False
    offset: int = -1
    error: AmcastError | None = None
    _written: bytes = b""

    @property
    def written(self) -> bytes:
        """The bytes that are sent; the first call makes them, and needs no lock."""
        self._written = self._written or self._encoded()
        return self._written

    def _encoded(self) -> bytes:
        entries, first = self.entries, self.entries[0].since
        place = delta_ms = 0
        later = first + 0.001  # when `delta_ms` is no longer right
        pieces: list[bytes] = []
        for entry in entries:
            if entry.since >= later:
                delta_ms = int(1000 * (entry.since - first))
                later = first + (delta_ms + 1) / 1000
            pieces += entry.pieces(place, delta_ms)
            place += entry.count
        if place > 1 or entries[0].size < _LARGE_BYTES:
            pieces = [b"".join(pieces)]
        pieces, codec = self._compressed(pieces)
        times = self.first_ms, self.first_ms + delta_ms
        return written_batch(pieces, *times, self.identity, self.sequence, count=place, codec=codec)

    def _compressed(self, pieces: list[bytes]) -> tuple[list[bytes], int]:
        """Give the records of a batch and the number of their codec, 0 if that gains nothing."""
        size = sum(map(len, pieces))
        if self.codec is not None and size >= _COMPRESSED_BYTES_MIN:
            compressed = self.codec.encode(b"".join(pieces))
            if len(compressed) < size:
                return [compressed], self.codec.number
        return pieces, 0


class PartitionAppends:
    """The appends to `partition`; a batch has at most `batch_bytes_max` bytes, or one record.

    The bytes are counted before they are compressed by the codec.
    """

    def __init__(
        self,
        partition: TopicPartition,
        *,
        requests_max: int,
        batch_bytes_max: int,
        codec: Codec | None = None,
    ) -> None:
        self.partition = partition
        self.name = f"{partition.topic}/{partition.partition}"
        self.leader: int | None = None
        self.identity: ProducerIdentity | None = None
        self.batch_bytes_max = batch_bytes_max
        self.queue: deque[QueuedEntry] = deque()
        self.queue_bytes = 0
        self.hurries = False  # what is in the queue goes without a linger
        self.is_due = False  # who sends was told that the queue has lingered
        self.compresses = codec is not None
        self._codec = codec
        self._requests_max = requests_max
        self._sent: deque[NumberedBatch] = deque()
        self._in_flight = 0
        self._sequence = 0
        self._limit = 1  # of batches that are sent: until one of this epoch is stored
        self._lost = False

    # -- what to send -----------------------------------------------------------------------

    @property
    def wants_to_send(self) -> bool:
        """Whether something waits to be sent; not all of it may be allowed to go now."""
        return bool(self.queue) or self._in_flight < len(self._sent)

    @property
    def idle(self) -> bool:
        """Whether nothing is to be sent, now or later, as far as is known."""
        return not self.queue and not self._sent

    def enqueue(self, entry: QueuedEntry) -> None:
        """Add an entry behind all others, in parts if it does not fit in a batch."""
        self.queue_bytes += entry.size
        if entry.count == 1 or entry.size <= self.batch_bytes_max - BATCH_BYTES:
            self.queue.append(entry)
        else:
            self.queue.extend(self._parts(entry))

    def linger_ends(self, linger_s: float) -> float:
        """Give when the queue has lingered (seconds, by the clock of `since`); -inf: it need not.

        A full batch lingers no longer, nor does what was sent before.
        """
        if self.hurries or self._in_flight < len(self._sent):
            return -inf
        if not self.queue:
            return inf
        is_full = self.queue_bytes >= self.batch_bytes_max - BATCH_BYTES
        return -inf if is_full else self.queue[0].since + linger_s

    def to_send_again(self) -> NumberedBatch | None:
        """Give the next batch to send again now; it is in flight then."""
        if self._in_flight < len(self._sent) and self._in_flight < self._limit:
            for batch in self._sent:
                if batch.state is _WAITING:
                    batch.state = _IN_FLIGHT
                    self._in_flight += 1
                    return batch
        return None

    def may_take(self) -> bool:
        """Return whether `take` is allowed now, if nothing is to be sent again."""
        return (
            bool(self.queue)
            and self.identity is not None
            and not self._lost
            and len(self._sent) < self._limit
        )

    def fitting(self) -> int:
        """Return how many entries of the queue fit in one batch; 1 at least if there are some."""
        room = self.batch_bytes_max - BATCH_BYTES
        if self.queue_bytes <= room:
            return len(self.queue)
        sizes = accumulate(entry.size for entry in self.queue)
        return max(1, next(count for count, total in enumerate(sizes) if total > room))

    def count_first(self, count: int) -> int:
        """Count each record once: return how many are new in the queue's first `count` entries."""
        new = 0
        for entry in islice(self.queue, count):
            if not entry.counted:
                entry.counted = True
                new += entry.count
        return new

    def take(self, count: int, now: float, now_ms: int) -> NumberedBatch:
        """Make a batch of the first `count` entries of the queue; it is in flight then.

        `now` is by the clock of `QueuedRecord.since`, `now_ms` the time of day in ms.
        """
        assert self.identity is not None
        assert not self._lost
        self.is_due = False
        if count == len(self.queue):
            entries = list(self.queue)
            self.queue.clear()
            self.queue_bytes, self.hurries = 0, False
        else:
            entries = [self.queue.popleft() for _ in range(count)]
            self.queue_bytes -= sum(entry.size for entry in entries)
        first_ms = now_ms - max(0, int(1000 * (now - entries[0].since)))
        codec = self._codec if self.compresses else None
        total = sum(entry.count for entry in entries)
        batch = NumberedBatch(entries, total, self.identity, self._sequence, first_ms, codec)
        self._sequence = (self._sequence + total) % SEQUENCES
        self._sent.append(batch)
        self._in_flight += 1
        return batch

    # -- what became of it ------------------------------------------------------------------

    def answered(self, batch: NumberedBatch, code: int, offset: int, why: str) -> None:
        """Take the answer to a batch: Kafka's error code (0: none) in words, and the first offset.

        After a passing error the batch waits to be sent again; `leader` is None then, as looking
        for it is what paces attempts.
        """
        if batch.state is _ENDED:
            return  # its time was up before
        self._in_flight -= 1
        if code == 0:
            self._limit = self._requests_max
            self._end(batch, None, offset)
        elif code == _DUPLICATE:
            self._end(batch, AppendUnknown(f"{self.name} holds the record: {why}."))
        elif code in _OUT_OF_SEQUENCE:
            self._out_of_sequence(batch, why)
        elif code in TOO_LARGE and batch.count > 1:
            # The next batches are smaller, down to a single record.
            size = BATCH_BYTES + sum(entry.size for entry in batch.entries)
            self.batch_bytes_max = max(BATCH_BYTES + 1, size // 2)
            self.queue = deque(part for entry in self.queue for part in self._parts(entry))
            self._not_stored(batch, why)
        elif code in REFUSED | _NOT_AUTHORIZED:
            self._end(batch, self._unknown(why) if batch.doubt else self._refusal(code, why))
        else:
            # A leader that is deposed may have stored the batch before it says so.
            batch.doubt = batch.doubt or code != _TOO_FEW_REPLICAS
            batch.state = _WAITING
            self.leader = None

    def unanswered(self, batch: NumberedBatch) -> None:
        """Report that the connection ended before the answer to a batch came."""
        self.leader = None
        if batch.state is not _ENDED:
            self._in_flight -= 1
            batch.doubt = True
            batch.state = _WAITING

    def expire(self, due: float, why: str) -> None:
        """End what was taken before `due`: it is in doubt if it was sent, else not stored."""
        for batch in self._sent:
            if batch.entries[0].since > due:
                break
            self._give_up(batch, why)

    def give_up(self, why: str) -> list[EntryOutcome]:
        """End everything; the outcomes that are left."""
        for batch in self._sent:
            self._give_up(batch, why)
        return self.settled() + self.refuse_queue(AppendNotStored(self._missed(why)))

    def refuse_queue(self, error: AmcastError, *, since: float | None = None) -> list[EntryOutcome]:
        """End the entries of the queue, or those taken up to `since`; none while some are sent."""
        refused: list[EntryOutcome] = []
        while self.queue and not self._sent and (since is None or self.queue[0].since <= since):
            entry = self.queue.popleft()
            self.queue_bytes -= entry.size
            refused.append((entry, AppendFailed(error, sent=entry.counted)))
        self.hurries = self.hurries and bool(self.queue)
        self.is_due = self.is_due and bool(self.queue)
        return refused

    def settled(self) -> list[EntryOutcome]:
        """Remove the entries that have their outcome, in order; begin a new epoch if it is time."""
        settled: list[EntryOutcome] = []
        if self._lost and {batch.state for batch in self._sent} <= {_ENDED, _NOT_STORED}:
            self._put_back()
        while self._sent and self._sent[0].state is _ENDED:
            settled += self._outcomes(self._sent.popleft())
        if self._lost and not self._sent:
            self._begin_epoch()
        return settled

    def _out_of_sequence(self, batch: NumberedBatch, why: str) -> None:
        for earlier in self._sent:
            if earlier is batch:
                break
            if earlier.state in (_WAITING, _IN_FLIGHT):
                batch.state = _WAITING  # in its turn the number may be the next one
                self.leader = None  # not at once: the earlier one may be with another broker
                return
        if self._limit == 1:  # a new epoch was no help, so the next one need not be
            self.leader = None
        self._not_stored(batch, why)

    def _not_stored(self, batch: NumberedBatch, why: str) -> None:
        """Take that an attempt was refused; an earlier one may have been stored."""
        if batch.doubt:
            self._end(batch, self._unknown(why))
        else:
            self._lost = True
            batch.state = _NOT_STORED
            batch.error = AppendNotStored(self._missed(why))

    def _give_up(self, batch: NumberedBatch, why: str) -> None:
        if batch.state is _NOT_STORED:
            batch.state = _ENDED
        elif batch.state is _IN_FLIGHT:
            self._in_flight -= 1
            self._end(batch, self._unknown(why))
        elif batch.state is _WAITING and batch.doubt:
            self._end(batch, self._unknown(why))
        elif batch.state is _WAITING:
            self._end(batch, AppendNotStored(self._missed(why)))

    def _end(self, batch: NumberedBatch, error: AmcastError | None, offset: int = -1) -> None:
        batch.state = _ENDED
        batch.error, batch.offset = error, offset
        self._lost = self._lost or error is not None

    def _unknown(self, why: str) -> AppendUnknown:
        return AppendUnknown(f"It is unknown whether {self.name} holds the record: {why}.")

    def _refusal(self, code: int, why: str) -> AppendRefused:
        text = f"The brokers refused a record for {self.name}: {why}."
        return AppendNotAuthorized(text) if code in _NOT_AUTHORIZED else AppendRefused(text)

    def _missed(self, why: str) -> str:
        return f"{self.name} does not hold the record: {why}."

    def _put_back(self) -> None:
        """Put the last batches back into the queue if they are certainly not stored.

        One that others follow, whose outcomes are known, would change the order: it fails.
        """
        self.hurries = True
        while self._sent and self._sent[-1].state is _NOT_STORED:
            for entry in reversed(self._sent.pop().entries):
                self.queue_bytes += entry.size
                self.queue.extendleft(reversed(self._parts(entry)))
        for batch in self._sent:
            batch.state = _ENDED

    def _parts(self, entry: QueuedEntry) -> Sequence[QueuedEntry]:
        """Divide an entry until each part fits in a batch or is one record."""
        if entry.count == 1 or entry.size <= self.batch_bytes_max - BATCH_BYTES:
            return (entry,)
        return [part for half in entry.divided() for part in self._parts(half)]

    def _begin_epoch(self) -> None:
        assert self.identity is not None
        producer, epoch = self.identity
        self.identity = ProducerIdentity(producer, epoch + 1) if epoch < _EPOCH_MAX else None
        self._sequence, self._limit, self._lost = 0, 1, False

    @staticmethod
    def _outcomes(batch: NumberedBatch) -> list[EntryOutcome]:
        if batch.error is not None:
            failed = AppendFailed(batch.error)
            return [(entry, failed) for entry in batch.entries]
        settled: list[EntryOutcome] = []
        offset = batch.offset
        for entry in batch.entries:
            settled.append((entry, Appended(offset)))
            offset += entry.count
        return settled
