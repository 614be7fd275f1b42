"""Appends through librdkafka's idempotent producer.

In go records; out come outcomes, each once. librdkafka itself bounds what is in flight and says
at once when that is full.

    definite    the brokers or the client refused the record: it does not stand in the log
    unknown     anything else, above all time running out
    busy        appends come so fast that the appending thread serves the callbacks itself: the
                package takes the interpreter's lock once for each, and two threads that fight
                for it halve the rate
    fatal       librdkafka has given up on its producer id; a new producer takes its place

The package tells no message's persistence (`rd_kafka_message_status`), so a code must do.
Invariant: an append that was started is settled once, at the latest by `close`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from multicast.access import Access, user_of
from multicast.errors import (
    AmcastError,
    AppendNotAuthorized,
    AppendRefused,
    AppendUnknown,
    BufferFull,
    UsageError,
)
from multicast.librdkafka.settings import LOG
from multicast.log import Appended, AppendFailed, AppendOutcome, Headers, TopicPartition

_DEFINITE = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    }
)


_UNSENT = (KafkaError._FATAL, KafkaError._PURGE_QUEUE)  # noqa: SLF001

# Raised on, it would end the serving thread, and with it all outcomes to come.
_DONE_FAILED = "what was called with the outcome of an append failed"
_SERVED_EVERY = 32
_BUSY_S = 0.002
_IDLE_S = 0.25  # an outcome ends the wait at once; only `close` may wait so long


class LibrdkafkaAppender:
    """An appender with a producer of its own, whose callbacks a thread of ours serves."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._bootstrap = settings["bootstrap.servers"]
        user = user_of(settings.get("sasl.username"), settings.get("ssl.certificate.location"))
        self._access = Access(self._bootstrap, user)
        self._denied: Any = None  # the producer that got no id, as the user may write nowhere
        self._producer = self._open()
        self._reached: set[TopicPartition] = set()  # a log that was there may be there again
        self._replacing = threading.Lock()
        self._closed = threading.Event()
        self._count = 0
        self._serving = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="amcast-appender", daemon=True)
        self._thread.start()

    def append(
        self,
        at: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Start an append; outcomes come on the serving thread, or on one that appends."""
        if self._closed.is_set():
            raise UsageError("This appender was closed before.")
        producer = self._producer
        settled = partial(self._settled, producer, done, at)
        try:
            if headers:
                producer.produce(at.topic, value, key, at.partition, settled, headers=list(headers))
            else:
                producer.produce(at.topic, value, key, at.partition, settled)
        except BufferError as error:
            self._serve_here(producer)
            raise BufferFull(
                f"{len(producer)} appends to {self._bootstrap} are in flight already."
            ) from error
        except KafkaException as error:
            # It was not taken, so it certainly does not stand in the log.
            done(self._not_taken(producer, at, error.args[0]))
        self._count += 1
        if self._count % _SERVED_EVERY == 0:
            self._serve_here(producer)

    def append_all(
        self,
        at: TopicPartition,
        values: Sequence[bytes | None],
        *,
        done: Callable[[int, AppendOutcome], None],
    ) -> int:
        """Start appends in one call of the package, which takes them up to where it is full."""
        if self._closed.is_set():
            raise UsageError("This appender was closed before.")
        producer = self._producer

        def settled(index: int, error: Any, message: Any) -> None:
            outcome = self._outcome(producer, at, error, message)
            try:
                done(index, outcome)
            except Exception:  # noqa: BLE001
                LOG.exception(_DONE_FAILED)

        messages: list[dict[str, Any]] = [
            {"value": value, "callback": partial(settled, index)}
            for index, value in enumerate(values)
        ]
        taken = len(messages)
        if producer.produce_batch(at.topic, messages, at.partition) < taken:
            for index, message in enumerate(messages):
                error = message.get("_error")
                if error is None:
                    continue
                # What stands behind the first that found the queue full was not taken, either.
                if error.code() == KafkaError._QUEUE_FULL:  # noqa: SLF001
                    taken = index
                    break
                done(index, self._not_taken(producer, at, error))
        self._count += taken
        self._serve_here(producer)
        return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight."""
        return self._drain(self._producer, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Flush, then give up what is left."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._give_up(self._producer, timeout_s)
        self._thread.join()

    def _open(self) -> Any:
        try:
            return confluent_kafka.Producer(self._settings, logger=LOG)
        except (KafkaException, ValueError) as error:
            raise UsageError(f"librdkafka refuses the client settings: {error}.") from error

    def _poll(self, producer: Any, timeout_s: float) -> None:
        """Serve callbacks; the package raises here what is fatal to a producer."""
        try:
            producer.poll(timeout_s)
        except KafkaException as error:
            LOG.warning("A producer has failed: %s", error.args[0].str())
            if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                self._denied = producer

    def _serve_here(self, producer: Any) -> None:
        # One thread at a time, so that outcomes come in the order of their offsets. A callback
        # that appends again finds the lock held, too: nothing nests.
        if self._serving.acquire(blocking=False):
            try:
                self._poll(producer, 0)
            finally:
                self._serving.release()

    def _serve(self) -> None:
        seen = 0
        while not self._closed.is_set():
            count = self._count
            if count - seen > _SERVED_EVERY:
                self._closed.wait(_BUSY_S)
            else:
                with self._serving:
                    self._poll(self._producer, _IDLE_S)
            seen = count

    def _drain(self, producer: Any, timeout_s: float) -> bool:
        """Wait until the producer holds nothing, which it does until a callback has returned."""
        deadline = time.monotonic() + timeout_s
        while len(producer):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            if self._serving.acquire(timeout=min(left_s, _BUSY_S)):
                try:
                    self._poll(producer, min(left_s, 0.1))
                finally:
                    self._serving.release()
        return True

    def _settled(
        self,
        producer: Any,
        done: Callable[[AppendOutcome], None],
        at: TopicPartition,
        error: Any,
        message: Any,
    ) -> None:
        outcome = self._outcome(producer, at, error, message)
        try:
            done(outcome)
        except Exception:  # noqa: BLE001
            LOG.exception(_DONE_FAILED)

    def _outcome(
        self, producer: Any, at: TopicPartition, error: Any, message: Any
    ) -> AppendOutcome:
        if error is None:
            self._reached.add(at)
            return Appended(message.offset())
        self._replace_if_fatal(producer, error)
        return AppendFailed(self._explained(producer, at, error))

    def _not_taken(self, producer: Any, at: TopicPartition, why: Any) -> AppendFailed:
        self._replace_if_fatal(producer, why)
        if self._denied is producer:
            return AppendFailed(self._lacks_write(at))
        return AppendFailed(AppendRefused(f"A record for {_name(at)} was not sent: {why.str()}."))

    def _explained(self, producer: Any, at: TopicPartition, error: Any) -> AmcastError:
        if error.code() in _UNKNOWN_TOPIC and at not in self._reached:
            return AppendRefused(f"{_name(at)} does not exist at {self._bootstrap}.")
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return self._lacks_write(at)
        if self._denied is producer and error.code() in _UNSENT:
            # Without an id nothing is sent. Of one that had an id before, nobody knows.
            lacks = self._lacks_write(at)
            return AppendUnknown(str(lacks)) if self._reached else lacks
        if error.code() in _DEFINITE:
            return AppendRefused(f"The record for {_name(at)} was refused: {error.str()}.")
        return AppendUnknown(f"Whether {_name(at)} holds the record is unknown: {error.str()}.")

    def _lacks_write(self, at: TopicPartition) -> AppendNotAuthorized:
        return AppendNotAuthorized(self._access.lacking("Write", "topic", at.topic))

    def _replace_if_fatal(self, producer: Any, error: Any) -> None:
        """Go on with a new producer id where librdkafka has given up on the old one."""
        if not (error.fatal() or error.code() == KafkaError._FATAL):  # noqa: SLF001
            return
        with self._replacing:
            if self._producer is not producer or self._closed.is_set():
                return
            LOG.warning("A producer is replaced after a fatal error: %s", error.str())
            self._producer = self._open()
        threading.Thread(
            target=self._give_up, args=(producer, 1.0), name="amcast-appender-end", daemon=True
        ).start()

    def _give_up(self, producer: Any, timeout_s: float) -> None:
        """Flush for so long; what is left then is settled as unknown."""
        if not self._drain(producer, timeout_s):
            producer.purge(in_queue=True, in_flight=True, blocking=True)
            self._drain(producer, 1.0)


def _name(at: TopicPartition) -> str:
    return f"{at.topic}/{at.partition}"
