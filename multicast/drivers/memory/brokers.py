"""Brokers of a `MemoryLog`: they take Produce requests, and check batches as Kafka's do.

A joint appender in memory (`appender.py`) sends its requests here. What happens to each is
decided by the hook `carry`, which gets it as soon as it is sent, and may keep it for later:

    request.store()         the broker stores the batches. Called again, they come a second time
    request.store({p: 87})  the batch for `p` is refused with this error code of Kafka's, the others
                            are stored. So p's records may be refused while their tickets are stored
    request.answers[p] = 7, -1      after `store`, another answer for `p`: here that the time of the
                            replicas was up, which leaves open whether it is stored
    request.answer()        the answer arrives. A broker answers the requests of one connection in
                            order: an answer waits for the ones before it
    request.disconnect()    the connection ends: what it has not answered is in doubt, and is sent
                            again by the next one. It may still be stored, before or after that

Without a hook each request is stored and answered at once. A hook may do nothing (a frozen broker:
then time limits decide), and may call anything, as no lock is held.

    brokers.leaders[p] = 2      from now on broker 2 leads `p`; None: nobody. By default 0 leads all
    brokers.away.add(2)         nobody can connect to broker 2; end its connections yourself
    brokers.forget(p)           what `p` remembers of its producers is lost, as after its retention
    brokers.turn()              all appenders look at the time, and ask again for what they lack

After a change of a leader, or once a broker is back, only `turn` or the next append asks again.
Time is that of the log's clock; without one no time passes.

    known    of a partition and a producer: its epoch, and its last five batches

Invariant: a batch of an epoch is stored once while it is known; its successor is stored after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from multicast.drivers.appender.link import AnsweredBatch, Link, SentBatch
from multicast.drivers.appender.partition_appends import REQUESTS_MAX, TOO_LARGE
from multicast.drivers.appender.record_batch import (
    SEQUENCES,
    ProducerIdentity,
    ReadBatch,
    read_batch,
)
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import TopicPartition

# Kafka's error codes.
_UNKNOWN_TOPIC, _NOT_LEADER, _TOO_LARGE, _OUT_OF_ORDER, _OLD_EPOCH = 3, 6, 10, 45, 47


class _Stored(NamedTuple):
    first: int  # sequence numbers
    last: int
    offset: int


class _Known:
    """What a partition remembers of one producer."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[_Stored] = deque(maxlen=REQUESTS_MAX)

    def judged(self, batch: ReadBatch) -> tuple[int, int] | None:
        """Give the answer to a batch that is not to be stored, None if it is the next one."""
        epoch, first = batch.identity.epoch, batch.sequence
        if epoch < self.epoch:
            return _OLD_EPOCH, -1
        expected = 0
        if epoch == self.epoch:
            for stored in self.batches:
                if (stored.first, stored.last) == (first, batch.last):
                    return 0, stored.offset
            expected = (self.batches[-1].last + 1) % SEQUENCES if self.batches else first
        return None if first == expected else (_OUT_OF_ORDER, -1)

    def take(self, batch: ReadBatch, offset: int) -> None:
        """Note the next batch, which was stored there."""
        if batch.identity.epoch > self.epoch:
            self.epoch = batch.identity.epoch
            self.batches.clear()
        self.batches.append(_Stored(batch.sequence, batch.last, offset))


class TurningAppender(Protocol):
    """An appender, as brokers see it."""

    def turn(self) -> None:
        """Take answers, look at the time, send what may be sent, and report outcomes."""


class MemoryBrokers:
    """The brokers of one log in memory, for any number of drivers; `carry` may be replaced."""

    def __init__(
        self, log: MemoryLog, *, carry: Callable[[MemoryRequest], None] | None = None
    ) -> None:
        self.log = log
        self.carry = carry or answer_at_once
        self.leaders: dict[TopicPartition, int | None] = {}
        self.away: set[int] = set()
        self.appenders: list[TurningAppender] = []
        self._known: dict[tuple[str, TopicPartition], dict[int, _Known]] = {}  # by topic ID, too
        self._producers = 0

    def turn(self) -> None:
        """Let all appenders look at the time and the leaders."""
        for appender in list(self.appenders):
            appender.turn()

    def leader(self, partition: TopicPartition) -> int | None:
        """Return the broker that leads a Kafka partition, if one does."""
        return self.leaders.get(partition, 0)

    def new_identity(self) -> ProducerIdentity:
        """Give the ID of another producer."""
        with self.log.changed:
            self._producers += 1
            return ProducerIdentity(self._producers, 0)

    def why(self, code: int) -> str:
        """Put an error code of Kafka's into words."""
        if code in TOO_LARGE:
            return f"it is larger than {self.log.message_bytes_max} bytes"
        return f"a broker answered with Kafka's error code {code}"

    def forget(self, partition: TopicPartition) -> None:
        """Forget the producers of a partition: the next number of each is taken as it comes."""
        with self.log.changed:
            self._known_of(partition).clear()

    def store(self, node: int, partition: TopicPartition, batch: ReadBatch) -> tuple[int, int]:
        """Have broker `node` store a batch; give Kafka's error code (0: none) and its offset."""
        log = self.log
        with log.changed:
            if not log.exists(partition):
                return _UNKNOWN_TOPIC, -1
            if self.leader(partition) != node:
                return _NOT_LEADER, -1
            if batch.size > log.message_bytes_max:
                return _TOO_LARGE, -1
            producer, epoch = batch.identity
            known = self._known_of(partition).setdefault(producer, _Known(epoch))
            answer = known.judged(batch)
            if answer is None:
                offsets = [
                    log.write(partition, each.value, key=each.key, headers=each.headers)
                    for each in batch.records
                ]
                known.take(batch, offsets[0])
                answer = 0, offsets[0]
            return answer

    def _known_of(self, partition: TopicPartition) -> dict[int, _Known]:
        topic_id = self.log.topic_ids([partition.topic]).get(partition.topic, "")
        return self._known.setdefault((topic_id, partition), {})


class MemoryRequest:
    """A Produce request on its way to broker `node`: at most one batch for each Kafka partition.

    The module says what a hook may do with it.
    """

    def __init__(
        self, brokers: MemoryBrokers, link: MemoryLink, batches: Mapping[TopicPartition, ReadBatch]
    ) -> None:
        self._brokers = brokers
        self._link = link
        self.node = link.node
        self.batches = batches
        self.answers: dict[tuple[str, int], tuple[int, int]] = {}
        self.is_answered = False

    @property
    def producer(self) -> int:
        """The ID of the producer that sent it."""
        return next(iter(self.batches.values())).identity.producer

    def store(self, codes: Mapping[TopicPartition, int] | None = None) -> None:
        """Store all batches but those for the partitions of `codes`."""
        for partition, batch in self.batches.items():
            code = (codes or {}).get(partition, 0)
            answer = (code, -1) if code else self._brokers.store(self.node, partition, batch)
            if not self.is_answered:
                self.answers[partition] = answer

    def answer(self) -> None:
        """Let the answer arrive, unless the connection has ended; `store` made it."""
        assert self.answers.keys() == self.batches.keys(), "nothing is answered before it is stored"
        self.is_answered = True
        self._link.arrived()

    def disconnect(self) -> None:
        """End the connection on which it was sent."""
        self._link.broken = self._link.broken or "the broker closed the connection"
        self._link.arrived()


def answer_at_once(request: MemoryRequest) -> None:
    """Store and answer like a healthy broker."""
    request.store()
    request.answer()


class MemoryLink(Link):
    """A connection to a broker in memory: `send` adds a request to `sent`, for who carries them.

    `arrived` is called when there is something to receive, or the connection has ended.
    """

    def __init__(
        self,
        node: int,
        brokers: MemoryBrokers,
        sent: list[MemoryRequest],
        arrived: Callable[[], None],
    ) -> None:
        super().__init__(node)
        self.arrived = arrived
        self._brokers = brokers
        self._sent = sent
        self._requests: deque[MemoryRequest] = deque()

    def send(self, batches: Sequence[SentBatch], now: float) -> None:
        """Send a request."""
        self._start(batches, now)
        read = {appends.partition: read_batch(batch.written) for appends, batch in batches}
        assert len(read) == len(batches), "a request holds one batch for each partition"
        request = MemoryRequest(self._brokers, self, read)
        self._requests.append(request)
        self._sent.append(request)

    def receive(self) -> list[AnsweredBatch]:
        """Return what the answers that have arrived say of each batch, in order."""
        answers: list[AnsweredBatch] = []
        while self._requests and self._requests[0].is_answered:
            answers += self._answered(self._requests.popleft().answers)
        return answers

    def close(self) -> list[SentBatch]:
        """End the connection; the batches without an answer, in order."""
        self._requests.clear()
        return super().close()
