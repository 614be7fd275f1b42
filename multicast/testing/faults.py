"""The test double's cluster: logs in memory, and what happens to appends on their way to them.

    next     the fates of the next appends to a Kafka partition, in their order
    stopped  Kafka partitions without a leader: nothing is stored in them and nothing is read
    queue    appends of one appender to one partition that wait for an earlier one: an appender
             keeps the order of its appends

Invariant: every append is stored, lost or waits in a queue, and is settled once.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from multicast.drivers.memory.driver import MemoryDriver, PendingAppend
from multicast.drivers.memory.logs import MemoryLog, name
from multicast.drivers.protocol import (
    AppendFailed,
    Fetched,
    Headers,
    TopicPartition,
)
from multicast.errors import AppendRefused, AppendUnknown
from multicast.testing.clock import VirtualClock
from multicast.verification.observer import Observe

# When a writer learns that an outcome is unknown, in virtual time. On a real cluster that takes up
# to 30 s; nothing here depends on the figure.
_UNKNOWN_AFTER_S = 1.0
# The virtual time 0 as a timestamp of Kafka: 1 January 2026, so that no run depends on the date.
EPOCH_MS = 1_767_225_600_000


class AppendFate(enum.Enum):
    """What becomes of one append; without a fate it is stored and acknowledged at once."""

    LOST = "lost"  # not stored; the writer learns that the outcome is unknown
    UNACKNOWLEDGED = "unacknowledged"  # stored; the writer learns that the outcome is unknown
    DUPLICATED = "duplicated"  # stored twice, acknowledged once
    DELAYED = "delayed"  # stored and acknowledged later; later appends of its appender wait for it
    REFUSED = "refused"  # certainly not stored


@dataclass(frozen=True, slots=True)
class _Planned:
    fate: AppendFate
    seconds: float


class FaultyLog(MemoryLog):
    """The logs, which note every record that is stored."""

    def __init__(self, clock: VirtualClock, note: Callable[[str], None]) -> None:
        super().__init__(clock=clock, now_ms=lambda: EPOCH_MS + clock.now_us // 1000)
        self.stopped: dict[TopicPartition, None] = {}
        self.readable = False  # stopped logs, for the check
        self._note = note

    def write(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> int:
        """Store one record and return its offset."""
        offset = super().write(partition, value, key=key, headers=headers)
        content = repr((key, value, list(headers))).encode()
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        self._note(f"stored {name(partition)}:{offset} {digest}")
        return offset

    def read(
        self, topic_partition: TopicPartition, position: int, records_max: int
    ) -> Fetched | None:
        """Return records as `MemoryLog.read`; none of a stopped log."""
        if topic_partition in self.stopped and not self.readable:
            return None
        return super().read(topic_partition, position, records_max)


class FaultyNetwork:
    """Carries appends to the logs, each with its fate."""

    def __init__(self, clock: VirtualClock, log: FaultyLog, note: Callable[[str], None]) -> None:
        self._clock = clock
        self._log = log
        self._note = note
        self._next: dict[TopicPartition, deque[_Planned]] = {}
        self._queues: dict[tuple[int, TopicPartition], deque[PendingAppend]] = {}
        self._appenders = 0
        self._busy: dict[tuple[int, TopicPartition], None] = {}  # an append of it is delayed

    def plan(
        self, partition: TopicPartition, fate: AppendFate, count: int, *, seconds: float = 0.0
    ) -> None:
        """Give the next `count` appends to a Kafka partition, after those planned, this fate."""
        self._next.setdefault(partition, deque()).extend([_Planned(fate, seconds)] * count)

    @property
    def unmet(self) -> dict[TopicPartition, int]:
        """Count, by Kafka partition, the planned fates that no append has met yet."""
        return {partition: len(planned) for partition, planned in self._next.items() if planned}

    def stop(self, partition: TopicPartition) -> None:
        """Take a Kafka partition away: appends to it wait, and readers get nothing of it."""
        self._log.stopped[partition] = None

    def start(self, partition: TopicPartition) -> None:
        """Bring it back; the waiting appends arrive, those of each appender in their order."""
        self._log.stopped.pop(partition, None)
        for queue in [queue for queue in self._queues if queue[1] == partition]:
            self._serve(queue)

    def new_appender(self) -> int:
        """Give the number of a new appender, for `carry`."""
        self._appenders += 1
        return self._appenders

    def carry(self, appender: int, append: PendingAppend) -> None:
        """Take an append of that appender."""
        queue = (appender, append.partition)
        self._queues.setdefault(queue, deque()).append(append)
        self._serve(queue)

    def _serve(self, queue: tuple[int, TopicPartition]) -> None:
        waiting = self._queues[queue]
        while waiting and queue not in self._busy and queue[1] not in self._log.stopped:
            self._meet(queue, waiting.popleft())

    def _meet(self, queue: tuple[int, TopicPartition], append: PendingAppend) -> None:
        fates = self._next.get(append.partition)
        if not fates:
            append.settle(append.store())
            return
        planned = fates.popleft()
        self._note(f"{planned.fate.value}: an append to {name(append.partition)}")
        match planned.fate:
            case AppendFate.LOST:
                self._clock.later(_UNKNOWN_AFTER_S, partial(append.settle, _unknown(append)))
            case AppendFate.UNACKNOWLEDGED:
                append.store()
                self._clock.later(_UNKNOWN_AFTER_S, partial(append.settle, _unknown(append)))
            case AppendFate.DUPLICATED:
                outcome = append.store()
                append.store()
                append.settle(outcome)
            case AppendFate.DELAYED:
                self._busy[queue] = None
                self._clock.later(planned.seconds, partial(self._arrive, queue, append))
            case AppendFate.REFUSED:
                text = f"The test double refused an append to {name(append.partition)}."
                append.settle(AppendFailed(AppendRefused(text)))

    def _arrive(self, queue: tuple[int, TopicPartition], append: PendingAppend) -> None:
        if queue[1] in self._log.stopped:  # it is late, and now its log is away
            self._queues[queue].appendleft(append)
            self._busy.pop(queue, None)
            return
        append.settle(append.store())
        self._busy.pop(queue, None)
        self._serve(queue)


def _unknown(append: PendingAppend) -> AppendFailed:
    return AppendFailed(
        AppendUnknown(f"It is unknown whether {name(append.partition)} holds the record.")
    )


class DoubleDriver(MemoryDriver):
    """The in-memory driver in virtual time: its waits run the system, its appends meet fates."""

    def __init__(
        self, log: FaultyLog, network: FaultyNetwork, clock: VirtualClock, observe: Observe | None
    ) -> None:
        super().__init__(log)
        self.clock = clock
        self._network = network
        if observe is not None:
            self.observe = observe

    def _step_of_appender(self) -> Callable[[PendingAppend], None]:
        return partial(self._network.carry, self._network.new_appender())
