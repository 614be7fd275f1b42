"""The librdkafka driver: opens appenders and readers, and passes other calls to a delegate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from multicast.drivers.client_settings import (
    DELIVERY_TIMEOUT_S,
    MESSAGE_BYTES_MAX,
    REQUEST_TIMEOUT_S,
    RETRY_BACKOFF_MS,
    check_linger,
)
from multicast.drivers.librdkafka.appender import LibrdkafkaAppender
from multicast.drivers.librdkafka.reader import LibrdkafkaReader
from multicast.drivers.librdkafka.settings import librdkafka_settings
from multicast.drivers.protocol import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    Appender,
    Beside,
    DirectAppender,
    Driver,
    Reader,
    TopicPartition,
    Watcher,
)

_BATCH_BYTES_MAX = 1_000_000  # librdkafka's default; just below that of max.message.bytes


class LibrdkafkaDriver:
    """Access to one cluster; `delegate` is a driver to the same cluster, and is closed with it.

    `request_timeout_s` bounds each request, `delivery_timeout_s` the time to an append's outcome;
    the delegate should have the same two.
    """

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        *,
        delegate: Driver,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
        delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = librdkafka_settings(bootstrap, client or {}, timeout_s=request_timeout_s)
        self._delegate = delegate
        self._timeout_s = request_timeout_s
        self._delivery_timeout_s = delivery_timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """Return the driver's name."""
        return "librdkafka"

    def appender(
        self,
        *,
        linger_ms: int = 0,
        compression: str = "none",
        batch_bytes: int | None = None,
        topics: Sequence[str] = (),
        in_flight_max: int = IN_FLIGHT_MAX,
        in_flight_bytes_max: int = IN_FLIGHT_BYTES_MAX,
    ) -> LibrdkafkaAppender:
        """Open an appender with its own producer; see `Driver.appender`.

        The limits bound the memory of appends in flight: above them `append` raises `BufferFull`.
        """
        check_linger(linger_ms, self._delivery_timeout_s)
        # A broker refuses a batch that is too large, and librdkafka then refuses all its records.
        batch_bytes = _BATCH_BYTES_MAX if batch_bytes is None else batch_bytes
        accepted = self.message_bytes_max(topics)
        return LibrdkafkaAppender(
            {
                **self._settings,
                "acks": "all",
                "enable.idempotence": True,
                # When librdkafka bumps its producer's epoch, it sends again what the brokers may
                # have stored. It does so after its own time-out, after a refused record ...
                "message.timeout.ms": 0,
                "enable.gapless.guarantee": True,
                # ... and after a temporary refusal of a request that others followed. A broker
                # serves the requests of one connection in order in any case.
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": linger_ms,
                "compression.type": compression,
                "batch.size": batch_bytes if accepted is None else min(batch_bytes, accepted),
                "request.timeout.ms": int(self._timeout_s * 1000),
                "retry.backoff.ms": RETRY_BACKOFF_MS,
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "queue.buffering.max.messages": in_flight_max,
                "queue.buffering.max.kbytes": max(1, in_flight_bytes_max // 1024),
            },
            delivery_timeout_s=self._delivery_timeout_s,
        )

    def reader(
        self, starts: Mapping[TopicPartition, int], *, wait_s: float | None = None
    ) -> Reader:
        """Open a reader with its own consumer; with `wait_s` one of the delegate."""
        if wait_s is not None:  # librdkafka's threads fetch whether somebody polls or not
            return self._delegate.reader(starts, wait_s=wait_s)
        settings = {
            **self._settings,
            "group.id": "amcast-unjoined",  # a setting that librdkafka requires; never joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            # A partition that is added or resumed waits for the outstanding long poll to end.
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": RETRY_BACKOFF_MS,
            # The pause of fetching while the queue is full; the default of 1 s would stall readers.
            "fetch.queue.backoff.ms": 2,
            # These two bound the memory of a reader: one response, and all queued messages.
            "fetch.max.bytes": 16 * 1024 * 1024,
            "queued.max.messages.kbytes": 32 * 1024,
            # For each Kafka partition; librdkafka adds some 400 bytes to each small message.
            "queued.min.messages": 20_000,
            "receive.message.max.bytes": 2 * MESSAGE_BYTES_MAX,
        }
        return LibrdkafkaReader(settings, starts, self._delegate, timeout_s=self._timeout_s)

    def column_reader(self, starts: Mapping[TopicPartition, int]) -> Reader:
        """Open a column reader of the delegate, as librdkafka gives an object for each message."""
        return self._delegate.column_reader(starts)

    def watcher(
        self, starts: Mapping[TopicPartition, int], *, sentinel_topic: str | None = None
    ) -> Watcher:
        """Open a watcher of the delegate."""
        return self._delegate.watcher(starts, sentinel_topic=sentinel_topic)

    def direct_appender(self) -> DirectAppender | None:
        """Open a direct appender of the delegate."""
        return self._delegate.direct_appender()

    def joint_appender(
        self,
        *,
        beside: Beside | None = None,
        linger_ms: int = 0,
        compression: str = "none",
        batch_bytes: int | None = None,
    ) -> Appender:
        """Open a joint appender of the delegate: librdkafka sends each partition by itself."""
        return self._delegate.joint_appender(
            beside=beside, linger_ms=linger_ms, compression=compression, batch_bytes=batch_bytes
        )

    def log_start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the oldest retained offsets."""
        return self._delegate.log_start_offsets(partitions)

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets."""
        return self._delegate.last_stable_offsets(partitions)

    def high_watermarks(
        self, partitions: Sequence[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offsets below which all in-sync replicas store the log."""
        return self._delegate.high_watermarks(partitions, timeout_s=timeout_s)

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offsets with a timestamp at or after that time, else the ends."""
        return self._delegate.offsets_at(partitions, timestamp_ms)

    def topic_ids(self, topics: Sequence[str], *, timeout_s: float | None = None) -> dict[str, str]:
        """Return the IDs of the topics that exist."""
        return self._delegate.topic_ids(topics, timeout_s=timeout_s)

    def partition_counts(self, topics: Sequence[str]) -> dict[str, int]:
        """Return how many Kafka partitions each topic has."""
        return self._delegate.partition_counts(topics)

    def message_bytes_max(self, topics: Sequence[str]) -> int | None:
        """Return the most bytes that a batch may have in each of these topics; None: hidden."""
        return self._delegate.message_bytes_max(topics)

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Store offsets and texts under a consumer group that has no members."""
        self._delegate.commit(group, offsets)

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Return what `commit` stored."""
        return self._delegate.committed(group, partitions)

    def close(self) -> None:
        """Close the delegate."""
        self._delegate.close()
