"""Appends through kafka-python's idempotent producer.

Outcomes are reported on the producer's thread. The appender counts what is in flight so that
`append` can refuse at once: the package's own producer has no such limit.

    definite    the brokers or the client refused the record: the log does not hold it
    unknown     any other failure, above all a time-out

Invariant: every append that started is settled once, at the latest by `close`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kafka import KafkaProducer
from kafka import TopicPartition as KafkaTopicPartition
from kafka import errors as kafka_errors
from kafka.producer.producer_batch import FinalState
from kafka.producer.transaction_manager import TransactionManager, TransactionState

from multicast.drivers.access import Access
from multicast.drivers.client_settings import (
    MESSAGE_BYTES_MAX,
    RECONNECT_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    UNKNOWN_TOPIC_S,
    WRONG_CLOCK,
)
from multicast.drivers.home_process import HomeProcess
from multicast.drivers.kafka_python.codecs import codec_of
from multicast.drivers.kafka_python.connection import client_of_ours, kafka_python_settings
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    Appended,
    AppendFailed,
    AppendOutcome,
    DoneAll,
    Headers,
    TopicPartition,
    append_each,
)
from multicast.errors import (
    AmcastError,
    AppendNotAuthorized,
    AppendRefused,
    AppendUnknown,
    BufferFull,
    ClusterUnreachable,
    UsageError,
)

_LOG = logging.getLogger("amcast.kafka_python")
_LOG.addHandler(logging.NullHandler())
# The period of the guard. An overdue outcome comes up to twice that late: little beside a delivery
# time-out of 30 s, and a look at an idle appender costs microseconds.
_GUARD_S = 0.25
# Of one batch; kafka-python's default is 16 KB. Only with a linger is there time to fill a larger
# one.
_BATCH_BYTES_MAX = 64 * 1024
_LINGER_BATCH_BYTES_MAX = 1024 * 1024
# For the end of a producer's thread, which takes milliseconds unless the process is overloaded.
_END_S = 1.0

# Brokers refuse a producer ID to a user who may write to no topic at all.
_NO_ID = kafka_errors.ClusterAuthorizationFailedError.__name__
_DEFINITE = (
    kafka_errors.AuthorizationError,
    kafka_errors.InvalidRecordError,
    kafka_errors.InvalidTimestampError,
    kafka_errors.InvalidTopicError,
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.PolicyViolationError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.UnsupportedForMessageFormatError,
)


class _Pending(NamedTuple):
    partition: TopicPartition
    size: int
    since: float
    done: Callable[[AppendOutcome], None]


def _bump_the_epoch_after_a_loss(producer: Any) -> None:
    """Let a producer of kafka-python 3.0.12 take a new epoch when a numbered batch has failed.

    The broker may never get that batch; it would refuse the number of the next one, and a second
    record would fail with `OutOfOrderSequenceNumberError`. The package thinks of that only where a
    batch expires between two attempts, not where an attempt fails after the delivery time-out.

    If a broker refuses a batch for good, such as a record that is too large, the package's producer
    fails for good, and with it every other record, for the same reason. A new epoch is enough, as
    for Java's producer.
    """
    sender, state = producer._sender, producer._transaction_manager  # noqa: SLF001
    dispatch = sender._dispatch_error  # noqa: SLF001
    classify = state.classify_batch_error

    def classify_batch_error(error: Any, batch: Any, **more: Any) -> Any:
        refused = isinstance(error, _DEFINITE)
        if refused and not isinstance(error, kafka_errors.ClusterAuthorizationFailedError):
            return TransactionManager.ERROR_CLASS_RETRIABLE  # of the producer; the batch has failed
        return classify(error, batch, **more)

    def dispatch_error(batch: Any, *details: Any, **more: Any) -> None:
        numbered = batch.has_sequence and state.producer_id_and_epoch.match(batch)
        dispatch(batch, *details, **more)
        if (
            numbered
            and batch.final_state is FinalState.FAILED
            and state._current_state == TransactionState.READY  # noqa: SLF001
        ):
            state.bump_producer_id_and_epoch()

    sender._dispatch_error = dispatch_error  # noqa: SLF001
    state.classify_batch_error = classify_batch_error


class _Headers(list[tuple[str, bytes | None]]):
    """Headers whose sizes kafka-python does not add up; the list is written as any other.

    `ProducerBatch.try_append` of kafka-python 3.0.12 adds them up `if headers`, only for the
    record's metadata, once the record is in the batch. A null value makes the sum fail: the caller
    would be told that a record was refused which the batch still takes to the log.
    """

    def __bool__(self) -> bool:
        return False


class KafkaPythonAppender:
    """An appender with its own producer, and so its own producer ID."""

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str],
        *,
        timeout_s: float,
        delivery_timeout_s: float,
        linger_ms: int,
        compression: str,
        batch_bytes: int | None,
        in_flight_max: int,
        in_flight_bytes_max: int,
    ) -> None:
        self._home = HomeProcess("producer", self)
        self._bootstrap = bootstrap
        self._access = Access.of(bootstrap, client)
        self._reached = False  # whether a broker ever acknowledged a record
        self._metadata_wait_s = min(UNKNOWN_TOPIC_S, timeout_s / 2)
        self._overdue_s = delivery_timeout_s + _GUARD_S
        self._in_flight_max = in_flight_max
        self._in_flight_bytes_max = in_flight_bytes_max
        self._idle = threading.Condition()
        self._in_flight: dict[int, _Pending] = {}
        self._bytes = 0
        self._unsettled = 0  # in flight, or `done` has not returned
        self._count = 0
        self._closed = threading.Event()
        codec = codec_of(compression)
        self._settings = {
            "bootstrap_servers": bootstrap,
            "bootstrap_timeout_ms": int(timeout_s * 1000),
            "acks": "all",
            "enable_idempotence": True,
            "linger_ms": linger_ms,
            "batch_size": batch_bytes
            or (_LINGER_BATCH_BYTES_MAX if linger_ms else _BATCH_BYTES_MAX),
            "compression_type": None if codec is None else codec.name,
            "max_block_ms": int(self._metadata_wait_s * 1000),
            "delivery_timeout_ms": int(delivery_timeout_s * 1000),
            # With the linger it must not exceed the delivery time-out.
            "request_timeout_ms": int(min(1000 * delivery_timeout_s - linger_ms, 1000 * timeout_s)),
            "retry_backoff_ms": RETRY_BACKOFF_MS,
            "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
            "max_request_size": MESSAGE_BYTES_MAX,
            "metrics_enabled": False,
            "kafka_client": client_of_ours,
            **kafka_python_settings(client),
        }
        self._producer = self._open()
        self._guard = threading.Thread(target=self._watch, name="amcast-appender", daemon=True)
        self._guard.start()

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Start an append; the first one to a topic blocks for its metadata, 3 s at most."""
        self._home.check()
        size = len(value or b"") + len(key or b"")
        with self._idle:
            if self._closed.is_set():
                raise UsageError("This appender is closed; open another one.")
            full = self._unsettled and self._bytes + size > self._in_flight_bytes_max
            if full or self._unsettled >= self._in_flight_max:
                raise BufferFull(
                    f"{self._unsettled} appends ({self._bytes} bytes) to {self._bootstrap} are in "
                    f"flight; wait for some outcomes, then append again."
                )
            self._unsettled += 1
            self._count += 1
            number = self._count
            self._in_flight[number] = _Pending(partition, size, time.monotonic(), done)
            self._bytes += size
        try:
            future = self._send(partition, value, key, headers)
        except (kafka_errors.KafkaError, AmcastError, ValueError, TypeError) as error:
            self._settle(number, AppendFailed(self._not_started(partition, error)))
            return
        future._add_cb_eb(  # noqa: SLF001 - one lock instead of two for each record
            partial(self._appended, number), partial(self._failed, number, partition)
        )

    def ready(self, partition: TopicPartition) -> bool:
        """Return whether the package has the metadata of this Kafka partition."""
        known = self._producer._metadata.partitions_for_topic(partition.topic)  # noqa: SLF001
        return known is not None and partition.partition in known

    def prepare(self, partition: TopicPartition) -> None:
        """Wait for the metadata, 3 s at most; raises what else the append would fail with."""
        try:
            self._wait_for_partition(partition)
        except (kafka_errors.KafkaError, UsageError) as error:
            raise self._not_started(partition, error) from error

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start one append after another until the buffer is full."""
        return append_each(self, partition, values, keys=keys, headers=headers, done=done)

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight."""
        self._home.check()
        with self._idle:
            return self._idle.wait_for(lambda: not self._unsettled, timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then settle the remaining appends as unknown; nothing in a forked process."""
        if self._home.is_left:
            return
        with self._idle:
            if self._closed.is_set():
                return
            self._closed.set()
        self._guard.join(timeout_s)
        flushed = self.flush(timeout_s)
        self._end(self._producer, force=not flushed)
        self._give_up(list(self._in_flight), "the appender was closed")

    def _open(self) -> Any:
        try:
            producer = KafkaProducer(**self._settings)
        except (kafka_errors.KafkaError, OSError) as error:
            timeout_s = self._settings["bootstrap_timeout_ms"] / 1000
            raise ClusterUnreachable(
                f"No broker at {self._bootstrap} answered within {timeout_s:g} s ({error})."
            ) from error
        except ValueError as error:
            raise UsageError(
                f"The bootstrap addresses {self._bootstrap} are not usable: {error}."
            ) from error
        _bump_the_epoch_after_a_loss(producer)
        return producer

    def _end(self, producer: Any, *, force: bool) -> None:
        sender = producer._sender  # noqa: SLF001
        if force:
            # `KafkaProducer.close` raises if records are unsent, and once more at exit.
            sender.force_close()
            sender.join(timeout=_END_S)
        try:
            producer.close(timeout=_END_S)
        except kafka_errors.KafkaError:
            producer._closed = True  # noqa: SLF001

    def _watch(self) -> None:
        """Enforce the delivery time-out, and revive a producer of kafka-python 3.0.12 after it."""
        while not self._closed.wait(_GUARD_S):
            due = time.monotonic() - self._overdue_s
            overdue = []
            with self._idle:
                for number, pending in self._in_flight.items():
                    if pending.since > due:
                        break
                    overdue.append(number)
            self._give_up(overdue, "no broker acknowledged it in time")
            state = self._producer._transaction_manager  # noqa: SLF001
            if state.has_fatal_error():
                self._replace()
            elif state._current_state == TransactionState.READY and not state.has_producer_id():  # noqa: SLF001
                # When a batch that was sent expires, the producer drops its ID. It requests another
                # one in this state only; otherwise it would never send again.
                state._current_state = TransactionState.UNINITIALIZED  # noqa: SLF001

    def _replace(self) -> None:
        """Replace a producer that has failed for good by one with a new ID."""
        try:
            successor = self._open()
        except AmcastError:
            return  # The guard tries again.
        failed, self._producer = self._producer, successor
        self._end(failed, force=True)

    def _give_up(self, numbers: list[int], why: str) -> None:
        for number in numbers:
            pending = self._in_flight.get(number)
            if pending is not None:
                name = f"{pending.partition.topic}/{pending.partition.partition}"
                unknown = AppendUnknown(f"It is unknown whether {name} holds the record: {why}.")
                self._settle(number, AppendFailed(unknown))

    def _send(
        self, partition: TopicPartition, value: bytes | None, key: bytes | None, headers: Headers
    ) -> Any:
        """Do what `KafkaProducer.send` does, but accept a record that has only headers."""
        producer = self._producer
        known = producer._metadata.partitions_for_topic(partition.topic)  # noqa: SLF001
        if known is None or partition.partition not in known:
            self._wait_for_partition(partition)
        producer._ensure_valid_record_size(  # noqa: SLF001
            producer._estimate_size_in_bytes(key, value, headers)  # noqa: SLF001
        )
        future, full, made, _ = producer._accumulator.append(  # noqa: SLF001
            KafkaTopicPartition(partition.topic, partition.partition),
            None,
            key,
            value,
            _Headers(headers),
        )
        if full or made:
            producer._sender.wakeup()  # noqa: SLF001
        return future

    def _wait_for_partition(self, partition: TopicPartition) -> None:
        """Refresh the metadata until the partition, which may be new, is known."""
        producer = self._producer
        deadline = time.monotonic() + self._metadata_wait_s
        known = producer.partitions_for(partition.topic)
        while partition.partition not in known:
            if time.monotonic() > deadline:
                raise UsageError(f"the topic has {len(known)} partitions")
            refreshed = threading.Event()
            future = producer._metadata.request_update()  # noqa: SLF001
            future.add_both(lambda _, done=refreshed: done.set())
            producer._sender.wakeup()  # noqa: SLF001
            refreshed.wait(max(0.0, deadline - time.monotonic()))
            known = producer.partitions_for(partition.topic)

    def _appended(self, number: int, metadata: Any) -> None:
        self._reached = True
        self._settle(number, Appended(metadata.offset))

    def _failed(self, number: int, partition: TopicPartition, error: BaseException) -> None:
        name = f"{partition.topic}/{partition.partition}"
        outcome: AmcastError
        lacking = self._access.lacking("Write", "topic", partition.topic)
        if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
            outcome = AppendNotAuthorized(lacking)
        elif _NO_ID in str(error):
            # Without an ID nothing is sent; records sent under an earlier ID may be stored.
            outcome = AppendUnknown(lacking) if self._reached else AppendNotAuthorized(lacking)
        elif isinstance(error, _DEFINITE):
            is_time = isinstance(error, kafka_errors.InvalidTimestampError)
            why = WRONG_CLOCK if is_time else str(error)
            outcome = AppendRefused(f"The brokers refused a record for {name}: {why}.")
        else:
            outcome = AppendUnknown(f"It is unknown whether {name} holds the record: {error}.")
        self._settle(number, AppendFailed(outcome))

    def _not_started(self, partition: TopicPartition, error: BaseException) -> AmcastError:
        """Return why the client did not accept a record: the log certainly does not hold it."""
        name = f"{partition.topic}/{partition.partition}"
        if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
            return AppendNotAuthorized(self._access.lacking("Write", "topic", partition.topic))
        if isinstance(error, kafka_errors.KafkaTimeoutError):
            refreshed_ms = self._producer._metadata._last_successful_refresh_ms  # noqa: SLF001
            if time.monotonic() - refreshed_ms / 1000 > self._metadata_wait_s:
                return ClusterUnreachable(
                    f"No broker at {self._bootstrap} sent metadata of {name} within "
                    f"{self._metadata_wait_s:g} s; the record was not sent."
                )
            return AppendRefused(f"{name} does not exist at {self._bootstrap}.")
        return AppendRefused(f"A record for {name} was not sent: {error}.")

    def _settle(self, number: int, outcome: AppendOutcome) -> None:
        with self._idle:
            pending = self._in_flight.pop(number, None)
        if pending is None:
            return
        try:
            pending.done(outcome)
        except Exception:  # noqa: BLE001
            # The exception would end the guard or the producer's thread.
            _LOG.exception("the callback for an append's outcome failed")
        finally:
            with self._idle:
                self._bytes -= pending.size
                self._unsettled -= 1
                if not self._unsettled:
                    self._idle.notify_all()
