"""The transactions of a copier, by librdkafka's transactional producer.

A consumer that joins no group asks for the group's stable offsets, and stands for the group in the
transaction. librdkafka's calls may be repeated after a time-out, so each waits in slices: a signal
takes effect at the end of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from threading import Thread
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from multicast.drivers.access import Access
from multicast.drivers.client_settings import MESSAGE_BYTES_MAX, OF_PRODUCERS, REQUEST_TIMEOUT_S
from multicast.drivers.librdkafka_reader.client import EndedClient, librdkafka_settings, open_client
from multicast.drivers.protocol import Headers, Record, TopicPartition
from multicast.errors import (
    AmcastError,
    AppendNotStored,
    AppendRefused,
    ClusterUnreachable,
    Fenced,
    UsageError,
)

_SLICE_S = 1.0  # of a wait: whoever presses Ctrl-C waits for so long
# Of a call, at least: a cluster takes 8-9 s to replace a dead leader or coordinator.
_PATIENCE_S = 30.0
_ABORT_S = 5.0  # for the abort at the end; whoever is fenced or cut off leaves it to the brokers
_FENCED = (
    KafkaError._FENCED,  # noqa: SLF001
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
)
# Of a coordinator that has just moved: the transaction is to be made again.
_MOVING = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)
# The right that is missing, and on what.
_LACKING = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: ("Write", "topic"),
    KafkaError.GROUP_AUTHORIZATION_FAILED: ("Read", "group"),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ("Write", "transactional ID"),
}
# More copies in one request; a commit sends what lingers at once.
_LINGER_MS = 20


class LibrdkafkaTransactions:
    """Writes to `topic`; `partition` -1: to the partition of each key, as Java's clients choose it.

    It commits for one group, and the group's name is its transactional ID. A transaction that has
    been open for `timeout_s` is aborted by the brokers. For one thread; each call waits for so
    long, or 30 s, at most, and raises `Fenced` once another one has fenced it, `AccessDenied`, and
    `ClusterUnreachable` if the brokers do not answer.
    """

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None,
        *,
        topic: str,
        partition: int,
        group: str,
        timeout_s: float,
    ) -> None:
        client = client or {}
        self._bootstrap, self._access = bootstrap, Access.of(bootstrap, client)
        self._topic, self._partition = topic, partition
        self._group, self._timeout_s = group, timeout_s
        self._patience_s = max(_PATIENCE_S, timeout_s)
        self._open = False
        self._first: list[int] = []  # the offset of the transaction's first copy, once it is stored
        self._placed: Callable[..., None] | None = None  # what takes it, until it is produced
        shared = librdkafka_settings(bootstrap, client, timeout_s=min(REQUEST_TIMEOUT_S, timeout_s))
        self._producer = open_client(
            confluent_kafka.Producer,
            {
                **shared,
                "linger.ms": _LINGER_MS,
                **{name: client[name] for name in OF_PRODUCERS if name in client},
                "transactional.id": group,
                "transaction.timeout.ms": int(timeout_s * 1000),
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "partitioner": "murmur2_random",
            },
        )
        self._consumer = open_client(
            confluent_kafka.Consumer,
            {
                **shared,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",  # with it, librdkafka asks for stable offsets
            },
        )

    def fence(self) -> None:
        """Fence all earlier holders of the transactional ID."""
        self._repeat(self._producer.init_transactions)

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Give the stable offsets of the group, which is the one of this producer."""
        assert group == self._group
        wanted = [confluent_kafka.TopicPartition(*partition) for partition in partitions]
        answers = self._repeat(lambda timeout: self._consumer.committed(wanted, timeout=timeout))
        for answer in answers:
            if answer.error is not None:
                raise self._error(answer.error)
        return {
            TopicPartition(answer.topic, answer.partition): (answer.offset, answer.metadata or "")
            for answer in answers
            if answer.offset >= 0
        }

    def begin(self) -> None:
        """Begin a transaction."""
        self._repeat(lambda _: self._producer.begin_transaction())
        self._open, self._first, self._placed = True, [], self._store

    def copy(self, records: Sequence[Record], headers: Iterable[Headers]) -> None:
        """Add records to the transaction, in order; waits while librdkafka's queue is full."""
        produce, topic, partition = self._producer.produce, self._topic, self._partition
        deadline = time.monotonic() + self._patience_s
        try:
            for (_, value, key, _, time_ms, _), added in zip(records, headers, strict=True):
                while True:
                    try:
                        produce(topic, value, key, partition, self._placed, None, time_ms, added)
                    except BufferError as error:
                        if time.monotonic() > deadline:
                            raise self._unreachable("the queue stays full") from error
                        self._repeat(self._producer.poll)
                    else:
                        break
                self._placed = None
        except KafkaException as error:
            raise self._error(error.args[0]) from error
        except TypeError as error:
            # The package has replaced what a signal's handler raised while it read the name of a
            # header (docs/hazards.md).
            raise KeyboardInterrupt from error

    def stored(self) -> int:
        """Wait until the brokers hold all copies; give the first one's offset."""
        deadline = time.monotonic() + self._patience_s
        while self._repeat(self._producer.flush):
            if time.monotonic() > deadline:
                raise self._unreachable("copies are not acknowledged")
        return self._first[0] if self._first else -1  # a failure, of which the commit tells

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit the transaction, and the group's offsets with it."""
        assert group == self._group
        positions = [
            confluent_kafka.TopicPartition(*partition, offset, text)
            for partition, (offset, text) in offsets.items()
        ]
        member = self._consumer.consumer_group_metadata()
        send = self._producer.send_offsets_to_transaction
        self._returns(lambda timeout: send(positions, member, timeout))
        self._repeat(self._producer.commit_transaction)
        self._open = False

    def abort(self) -> None:
        """Abort the transaction, if one is open; else nothing. Raises nothing."""
        if self._open:
            self._open = False
            with suppress(KafkaException):
                self._producer.abort_transaction(_ABORT_S)

    def close(self) -> None:
        """Abort what is open, and release everything."""
        self.abort()
        self._consumer.close()
        self._consumer = self._producer = EndedClient(UsageError("This copier is closed."))

    def _store(self, error: Any, message: Any) -> None:
        if error is None:
            offset = message.offset()
            self._first.append(-1 if offset is None else offset)

    def _repeat(self, call: Callable[[float], Any]) -> Any:
        """Call, and again after each failure that may pass, for the time-out at most."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                return call(_SLICE_S)
            except SystemError as failure:
                # The package calls `_store` with a fatal error set, which the call then hides.
                if (fatal := self._fatal()) is None:
                    raise
                raise self._error(fatal) from failure
            except KafkaException as failure:
                error = failure.args[0]
                passes = error.retriable() or error.code() == KafkaError._TIMED_OUT  # noqa: SLF001
                if not passes or error.fatal() or error.txn_requires_abort():
                    raise self._error(error) from failure
                if time.monotonic() > deadline:
                    raise self._unreachable(error.str()) from failure

    def _returns(self, call: Callable[[float], Any]) -> None:
        """Do as `_repeat` in a thread of its own: librdkafka may never return (docs/hazards.md)."""
        result: Future[None] = Future()

        def run() -> None:
            try:
                result.set_result(self._repeat(call))
            except BaseException as failure:  # noqa: BLE001 - raised where it is awaited
                result.set_exception(failure)

        thread = Thread(target=run, name="copies", daemon=True)
        thread.start()
        try:
            result.result(self._patience_s + 2 * _SLICE_S)
        except BaseException as error:
            if isinstance(error, TimeoutError) and not result.done():
                self._open = False  # an abort would not return either; the brokers do it
                raise self._unreachable("librdkafka does not return") from None
            thread.join(2 * _SLICE_S)  # an abort beside it would be refused
            raise

    def _unreachable(self, why: str) -> ClusterUnreachable:
        return ClusterUnreachable(
            f"The brokers at {self._bootstrap} did not complete a transaction on topic "
            f"{self._topic} within {self._patience_s:g} s ({why})."
        )

    def _fatal(self) -> Any:
        """Give the error that has ended the producer, which not every call names; None: none."""
        try:
            self._producer.begin_transaction()
        except KafkaException as failure:
            return failure.args[0] if failure.args[0].fatal() else None
        self._open = True  # whoever ends this copier aborts it
        return None

    def _error(self, error: Any) -> AmcastError:
        if error.code() == KafkaError._FATAL:  # noqa: SLF001
            error = self._fatal() or error
        code = error.code()
        if code in _FENCED:
            return Fenced(
                f"another process has taken over the copies to {self._topic} (transactional ID "
                f"{self._group}), or this one stood still for longer than the transaction time-out "
                f"of {self._timeout_s:g} s: what it had not committed is aborted; run one of them"
            )
        if code in _LACKING:
            of_topic = code == KafkaError.TOPIC_AUTHORIZATION_FAILED
            return self._access.lacks(*_LACKING[code], self._topic if of_topic else self._group)
        if code == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            return UsageError(
                f"the brokers allow no transaction time-out of {self._timeout_s:g} s; "
                f"transaction.max.timeout.ms says what they allow"
            )
        if error.retriable() or code == KafkaError._TIMED_OUT:  # noqa: SLF001
            return self._unreachable(error.str())
        kind = AppendNotStored if code in _MOVING else AppendRefused
        return kind(
            f"copies to {self._topic} were refused: {error.str()}; nothing of the transaction is "
            f"committed"
        )
