"""A collector's own order stream: its appends, their acknowledgements, and what is read back.

    ack     of an append: the record, and the offset that Kafka gave it. A thread of a client queues
            it (`done` of an append); `take_ack` gives it to the core

`done` of an append may run while its own thread holds the core's lock, where the client knows the
outcome at once. So it only notes a failure, or queues the ack and calls `acked`, which must never
wait for the lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from collectors.core.collector import Collector
from collectors.engine.engine import Engine
from collectors.engine.skips import is_lasting
from collectors.engine.stream_loop import StreamBatch
from multicast.drivers.protocol import AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import AmcastError
from multicast.metrics.families import LatencyCounts


class OwnStream:
    """Appends to one order stream and tells the core which records stand in it.

    Unless they say otherwise, methods are called with the core's lock held.
    """

    def __init__(self, engine: Engine, partition: TopicPartition) -> None:
        self.appended = 0
        self.latencies = LatencyCounts()  # from the call of an append to its acknowledgement
        self._engine = engine
        self._partition = partition
        self._acks: deque[tuple[bytes, int]] = deque()
        self._failed = threading.Event()
        self._refused: AmcastError | None = None  # an append, and waiting does not help

    @property
    def has_acks(self) -> bool:
        """Whether an ack waits for `take_ack`. Safe from any thread."""
        return bool(self._acks)

    @property
    def has_failed(self) -> bool:
        """Whether an append has failed since the last `restart_if_failed`."""
        return self._failed.is_set()

    def append(self, raw: bytes, *, writer: int, acked: Callable[[], None]) -> None:
        """Start an append; `acked` is called, from any thread, once its ack is queued.

        After a failure it is not called: `restart_if_failed` reports that at the next event.
        """
        began = time.monotonic()

        def done(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendFailed):
                if is_lasting(outcome.error):
                    self._refused = outcome.error
                # The next event or tick sees it: to append again at once would chase failures.
                self._failed.set()
                return
            self.latencies.observe(time.monotonic() - began)
            self._acks.append((raw, outcome.offset))
            acked()

        self.appended += 1
        if not self._engine.append(self._partition, raw, writer=writer, done=done):
            self._failed.set()

    def restart_if_failed(self, core: Collector) -> None:
        """Tell the core that appends have failed; raises the error where Kafka refused one."""
        if not self._failed.is_set():
            return
        self._failed.clear()
        if self._refused is not None:
            raise self._refused
        core.append_failed()

    def take_ack(self, core: Collector | None) -> None:
        """Give the oldest ack to the core as a record read back; a core of None drops it.

        If the core has not read every record before it, reading the stream brings those and this
        one. If the core has read this record already, the ack is dropped.
        """
        raw, offset = self._acks.popleft()
        if core is not None and offset == core.own.offset_next:
            core.own_read(offset, raw)

    def take_records(self, core: Collector, batch: StreamBatch) -> None:
        """Give fetched records to the core, without those that it has from their acks."""
        now_ms = time.time_ns() // 1_000_000
        for record in batch.records:
            if record.offset >= core.own.offset_next:
                core.own_read(record.offset, record.value, now_ms - record.timestamp_ms)
        core.own_passed(batch.position)
