"""Translates librdkafka's errors into the outcome of an append.

    refused     (definite) the brokers or the client refused the record: the log does not hold it
    not stored  (definite) it was purged from the queue behind a refused record of its partition:
                brokers store no number after one that is missing. (From a producer of which they
                have stored nothing there they take any number first. And a record before the
                refused one may wait to be sent again, and be stored: both are unknown.)
    unknown     any other failure, above all a time-out; also a record that is stored at an offset
                that the client does not know

The package does not expose a message's persistence (`rd_kafka_message_status`), so the error code
decides.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

from multicast.drivers.access import Access
from multicast.drivers.client_settings import WRONG_CLOCK
from multicast.drivers.librdkafka.started import Place
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import (
    AmcastError,
    AppendNotAuthorized,
    AppendNotStored,
    AppendRefused,
    AppendUnknown,
)

_DEFINITE = frozenset(
    {
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
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
_PURGED = frozenset({KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})  # noqa: SLF001
_UNSENT = frozenset({KafkaError._FATAL, KafkaError._PURGE_QUEUE})  # noqa: SLF001


class Outcomes:
    """Builds the outcomes of one appender; remembers which Kafka partitions have existed.

    `denied` is true while the producer gets no ID because the user may write to no topic.
    """

    def __init__(self, bootstrap: str, access: Access) -> None:
        self.denied = False
        self._bootstrap = bootstrap
        self._access = access
        # A log that existed may come back. By which producer it was reached last.
        self._reached: dict[TopicPartition, int] = {}
        self._producer = 0
        self._refused: dict[TopicPartition, Place] = {}  # the gaps in this producer's sequences

    def producer_replaced(self) -> None:
        """Note that another producer sends from now on, whose sequences have no gap."""
        self._producer += 1
        self._refused.clear()

    def stored(self, partition: TopicPartition, offset: int) -> AppendOutcome:
        """Return the outcome of a record that the brokers acknowledged at `offset`."""
        self.denied = False
        self._reached[partition] = self._producer
        if offset < 0:
            # librdkafka infers from the acknowledgement of a later record that this one is stored,
            # or a broker reports that it stored it earlier.
            return AppendFailed(
                AppendUnknown(f"{name(partition)} holds the record at an unknown offset.")
            )
        return Appended(offset)

    def not_taken(self, partition: TopicPartition, error: Any) -> AppendFailed:
        """Return why the client did not accept a record: the log certainly does not hold it."""
        of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        if of_topic or (self.denied and error.code() in _UNSENT):
            return AppendFailed(self._lacks_write(partition))
        return not_sent(partition, error.str())

    def failed(
        self, partition: TopicPartition, place: Place, error: Any, given_up: str
    ) -> AppendFailed:
        """Return why a record was not acknowledged; `given_up` is why the appender purged it."""
        return AppendFailed(self._explained(partition, place, error, given_up))

    def breaks(self, partition: TopicPartition, error: Any) -> bool:
        """Return whether the producer that reports this error must be replaced.

        A failed record leaves a gap in the producer's sequence. The only exception is a record for
        a Kafka partition that never existed, because it never had a sequence number.
        """
        return error.code() not in _UNKNOWN_TOPIC or partition in self._reached

    def _explained(
        self, partition: TopicPartition, place: Place, error: Any, given_up: str
    ) -> AmcastError:
        if error.code() in _UNKNOWN_TOPIC and partition not in self._reached:
            return AppendRefused(f"{name(partition)} does not exist at {self._bootstrap}.")
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return self._lacks_write(partition)
        if self.denied and error.code() in _UNSENT:
            # Without an ID nothing is sent; records sent under an earlier ID may be stored.
            lacks = self._lacks_write(partition)
            return AppendUnknown(str(lacks)) if self._reached else lacks
        purged = error.code() == KafkaError._PURGE_QUEUE  # noqa: SLF001
        if purged and place > self._refused.get(partition, place):
            return AppendNotStored(
                f"{name(partition)} does not hold a record that waited behind one that the "
                f"brokers refused; append it again."
            )
        if error.code() in _DEFINITE:
            if self._reached.get(partition) == self._producer:
                self._refused.setdefault(partition, place)
            is_time = error.code() == KafkaError.INVALID_TIMESTAMP
            refusal = WRONG_CLOCK if is_time else error.str()
            return AppendRefused(f"The brokers refused a record for {name(partition)}: {refusal}.")
        why = given_up if given_up and error.code() in _PURGED else error.str()
        return unknown(partition, why).error

    def _lacks_write(self, partition: TopicPartition) -> AppendNotAuthorized:
        return AppendNotAuthorized(self._access.lacking("Write", "topic", partition.topic))


def is_fatal(error: Any) -> bool:
    """Return whether librdkafka's producer has failed for good."""
    return bool(error.fatal() or error.code() == KafkaError._FATAL)  # noqa: SLF001


def unknown(partition: TopicPartition, why: str) -> AppendFailed:
    """Return the outcome of a record that is stored, or may still be stored."""
    return AppendFailed(
        AppendUnknown(f"It is unknown whether {name(partition)} holds the record: {why}.")
    )


def not_sent(partition: TopicPartition, why: str) -> AppendFailed:
    """Return the outcome of a record that was never sent: the log certainly does not hold it."""
    return AppendFailed(AppendRefused(f"A record for {name(partition)} was not sent: {why}."))


def name(partition: TopicPartition) -> str:
    """Return the usual text for a Kafka partition: TOPIC/NUMBER."""
    return f"{partition.topic}/{partition.partition}"
