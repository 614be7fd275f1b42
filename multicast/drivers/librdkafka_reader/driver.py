"""The librdkafka driver: opens readers; all other calls are those of a delegate."""

from __future__ import annotations

from collections.abc import Mapping

from multicast.drivers.client_settings import MESSAGE_BYTES_MAX, REQUEST_TIMEOUT_S, RETRY_BACKOFF_MS
from multicast.drivers.closing import ClosedAtEnd
from multicast.drivers.librdkafka_reader.client import librdkafka_settings
from multicast.drivers.librdkafka_reader.reader import LibrdkafkaReader
from multicast.drivers.protocol import Driver, Reader, TopicPartition


class LibrdkafkaDriver(ClosedAtEnd):
    """Access to one cluster; `delegate` is a driver to the same cluster, and is closed with it.

    `request_timeout_s` bounds each request; that of the delegate should be the same.
    """

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        *,
        delegate: Driver,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._settings = librdkafka_settings(bootstrap, client or {}, timeout_s=request_timeout_s)
        self._delegate = delegate
        self._timeout_s = request_timeout_s
        # Columns too, as librdkafka gives an object for each message; and it sends the records of
        # each partition by a request of their own.
        self.appender = delegate.appender
        self.column_reader = delegate.column_reader
        self.watcher = delegate.watcher
        self.log_start_offsets = delegate.log_start_offsets
        self.last_stable_offsets = delegate.last_stable_offsets
        self.high_watermarks = delegate.high_watermarks
        self.leader_ends = delegate.leader_ends
        self.epoch_ends = delegate.epoch_ends
        self.offsets_at = delegate.offsets_at
        self.topic_ids = delegate.topic_ids
        self.partition_counts = delegate.partition_counts
        self.commit = delegate.commit
        self.committed = delegate.committed
        self.member = delegate.member

    @property
    def name(self) -> str:
        """Return the driver's name."""
        return "librdkafka"

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

    def close(self) -> None:
        """Close the delegate."""
        self._delegate.close()
