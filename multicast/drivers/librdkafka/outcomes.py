"""What librdkafka's errors say about an append: refused for good, or unknown.

    definite    the brokers or the client refused the record: it does not stand in the log
    unknown     anything else, above all where the client gave up waiting
    stored      the record stands in the log, but the client does not know where: unknown, too

The package tells no message's persistence (`rd_kafka_message_status`), so a code must do.
"""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError

from multicast.drivers.access import Access
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import AmcastError, AppendNotAuthorized, AppendRefused, AppendUnknown

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
_PURGED = frozenset({KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE})  # noqa: SLF001
_UNSENT = frozenset({KafkaError._FATAL, KafkaError._PURGE_QUEUE})  # noqa: SLF001


class Outcomes:
    """Says what became of a record; remembers which Kafka partitions were there.

    `denied` is set while the producer gets no id, because the user may write nowhere.
    """

    def __init__(self, bootstrap: str, access: Access) -> None:
        self.denied = False
        self._bootstrap = bootstrap
        self._access = access
        self._reached: set[TopicPartition] = set()  # a log that was there may be there again

    def stored(self, partition: TopicPartition, offset: int) -> AppendOutcome:
        """Say where a record stands."""
        self.denied = False
        self._reached.add(partition)
        if offset < 0:
            # librdkafka concludes from the acknowledgement of a later record that this one is
            # stored, or a broker says that it stored it some time ago.
            return AppendFailed(
                AppendUnknown(f"{name(partition)} holds the record, at an offset that nobody told.")
            )
        return Appended(offset)

    def not_taken(self, partition: TopicPartition, error: Any) -> AppendFailed:
        """Say why the client did not take a record: it certainly does not stand in the log."""
        of_topic = error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        if of_topic or (self.denied and error.code() in _UNSENT):
            return AppendFailed(self._lacks_write(partition))
        return not_sent(partition, error.str())

    def failed(self, partition: TopicPartition, error: Any, given_up: str) -> AppendFailed:
        """Say why a record was not acknowledged; `given_up` is why the client purged it."""
        return AppendFailed(self._explained(partition, error, given_up))

    def breaks(self, partition: TopicPartition, error: Any) -> bool:
        """Say whether the producer that reports this error may be used no longer.

        Only a record for a Kafka partition that never was there fails without having had a place
        in the producer's sequence. Any other one leaves a gap there.
        """
        return error.code() not in _UNKNOWN_TOPIC or partition in self._reached

    def _explained(self, partition: TopicPartition, error: Any, given_up: str) -> AmcastError:
        if error.code() in _UNKNOWN_TOPIC and partition not in self._reached:
            return AppendRefused(f"{name(partition)} does not exist at {self._bootstrap}.")
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return self._lacks_write(partition)
        if self.denied and error.code() in _UNSENT:
            # Without an id nothing is sent. Of one that had an id before, nobody knows.
            lacks = self._lacks_write(partition)
            return AppendUnknown(str(lacks)) if self._reached else lacks
        if error.code() in _DEFINITE:
            return AppendRefused(f"The record for {name(partition)} was refused: {error.str()}.")
        why = given_up if given_up and error.code() in _PURGED else error.str()
        return unknown(partition, why).error

    def _lacks_write(self, partition: TopicPartition) -> AppendNotAuthorized:
        return AppendNotAuthorized(self._access.lacking("Write", "topic", partition.topic))


def unknown(partition: TopicPartition, why: str) -> AppendFailed:
    """Say that a record may stand in the log, or come to."""
    return AppendFailed(
        AppendUnknown(f"Whether {name(partition)} holds the record is unknown: {why}.")
    )


def not_sent(partition: TopicPartition, why: str) -> AppendFailed:
    """Say that a record never reached the client: it certainly does not stand in the log."""
    return AppendFailed(AppendRefused(f"A record for {name(partition)} was not sent: {why}."))


def name(partition: TopicPartition) -> str:
    """Name a Kafka partition as the user does."""
    return f"{partition.topic}/{partition.partition}"
