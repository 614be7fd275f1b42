"""The librdkafka driver: appenders and readers; questions go to the driver that is handed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from multicast.drivers.librdkafka.appender import LibrdkafkaAppender
from multicast.drivers.librdkafka.reader import LibrdkafkaReader
from multicast.drivers.librdkafka.settings import MESSAGE_BYTES_MAX, librdkafka_settings
from multicast.drivers.protocol import DirectAppender, Driver, TopicPartition, Watcher


class LibrdkafkaDriver:
    """A way to one cluster; `questions` is a driver to the same cluster, and is closed with it."""

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        *,
        questions: Driver,
        request_timeout_s: float = 10.0,
        delivery_timeout_s: float = 30.0,
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = librdkafka_settings(bootstrap, client or {}, timeout_s=request_timeout_s)
        self._questions = questions
        self._timeout_s = request_timeout_s
        self._delivery_timeout_s = delivery_timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The driver's name."""
        return "librdkafka"

    def appender(
        self,
        *,
        linger_ms: int = 0,
        in_flight_max: int = 100_000,
        in_flight_bytes_max: int = 64 * 1024 * 1024,
    ) -> LibrdkafkaAppender:
        """Open a writer of its own; a linger trades latency for larger batches."""
        return LibrdkafkaAppender(
            {
                **self._settings,
                "acks": "all",
                "enable.idempotence": True,
                # Whatever makes librdkafka bump its producer's epoch makes it send again what the
                # brokers may have stored: a time-out of its own, a record that is refused ...
                "message.timeout.ms": 0,
                "enable.gapless.guarantee": True,
                # ... and a request that was sent behind one which is then refused for a while.
                # A broker serves one request of a connection after the other in any case.
                "max.in.flight.requests.per.connection": 1,
                "linger.ms": linger_ms,
                "request.timeout.ms": int(self._timeout_s * 1000),
                "retry.backoff.ms": 20,
                "message.max.bytes": MESSAGE_BYTES_MAX,
                "queue.buffering.max.messages": in_flight_max,
                "queue.buffering.max.kbytes": max(1, in_flight_bytes_max // 1024),
            },
            delivery_timeout_s=self._delivery_timeout_s,
        )

    def reader(self, starts: Mapping[TopicPartition, int]) -> LibrdkafkaReader:
        """Open a reader of its own."""
        settings = {
            **self._settings,
            "group.id": "amcast-unjoined",  # asked for, never joined
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "check.crcs": True,
            # What is added or resumed waits for the long poll that is outstanding.
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 20,
            "fetch.queue.backoff.ms": 2,
            "fetch.max.bytes": 16 * 1024 * 1024,
            "queued.max.messages.kbytes": 32 * 1024,
            # Of each Kafka partition; small messages take librdkafka some 400 bytes more, each.
            "queued.min.messages": 20_000,
            "receive.message.max.bytes": 2 * MESSAGE_BYTES_MAX,
        }
        return LibrdkafkaReader(settings, starts, self._questions, timeout_s=self._timeout_s)

    def watcher(
        self, starts: Mapping[TopicPartition, int], *, sentinel_topic: str | None = None
    ) -> Watcher:
        """Open a watcher, the other driver's."""
        return self._questions.watcher(starts, sentinel_topic=sentinel_topic)

    def direct_appender(self) -> DirectAppender | None:
        """Open what appends without a detour, the other driver's."""
        return self._questions.direct_appender()

    def log_start_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for the oldest retained offsets."""
        return self._questions.log_start_offsets(partitions)

    def last_stable_offsets(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Ask for the last stable offsets."""
        return self._questions.last_stable_offsets(partitions)

    def high_watermarks(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for the offsets that the next appends will get."""
        return self._questions.high_watermarks(partitions)

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Ask for the first offsets at or after that time; the end where there is none."""
        return self._questions.offsets_at(partitions, timestamp_ms)

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Give the ids of those topics that exist."""
        return self._questions.topic_ids(topics)

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Store offsets and texts as a consumer group that nobody has joined."""
        self._questions.commit(group, offsets)

    def committed(
        self, group: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, str]]:
        """Read back what `commit` stored."""
        return self._questions.committed(group, partitions)

    def close(self) -> None:
        """Close the driver that questions go to."""
        self._questions.close()
