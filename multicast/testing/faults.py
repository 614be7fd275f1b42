"""The test double's cluster: logs in memory, and what happens to appends on their way to them.

    next     the fates of the next appends to a Kafka partition, in their order
    stopped  Kafka partitions without a leader: nothing is stored in them and nothing is read
    doomed   batches whose outcome must stay unknown: the brokers refuse what is sent again of them

Each partition has a broker of its own, so that what happens to one delays no other, and a request
holds one record. An appender has one request to a broker in flight: later appends wait for it.
"""

from __future__ import annotations

import enum
import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from multicast.drivers.appender.dispatcher import Limits
from multicast.drivers.appender.record_batch import BATCH_BYTES
from multicast.drivers.memory.brokers import MemoryBrokers, MemoryRequest, answer_at_once
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog, name
from multicast.drivers.protocol import Fetched, Headers, TopicPartition
from multicast.testing.clock import VirtualClock
from multicast.verification.observer import Observe

# When a writer learns that an outcome is unknown, in virtual time. On a real cluster that takes up
# to 30 s; nothing here depends on the figure.
_UNKNOWN_AFTER_S = 1.0
# The virtual time 0 as a timestamp of Kafka: 1 January 2026, so that no run depends on the date.
EPOCH_MS = 1_767_225_600_000
# A batch holds one record, and nothing is given up: no fate meets more than one append.
_LIMITS = Limits(inf, inf, requests_max=1, batch_bytes_max=BATCH_BYTES + 1)
_REFUSED = 44  # Kafka's error code for what a policy refuses


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


class FaultyBrokers(MemoryBrokers):
    """Carry requests to the logs, each with its fate."""

    def __init__(self, clock: VirtualClock, log: FaultyLog, note: Callable[[str], None]) -> None:
        super().__init__(log, carry=self._carry)
        self._clock = clock
        self._stopped = log.stopped
        self._note = note
        self._next: dict[TopicPartition, deque[_Planned]] = {}
        self._nodes: dict[TopicPartition, int] = {}
        self._doomed: set[tuple[object, ...]] = set()

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
        self._stopped[partition] = None

    def start(self, partition: TopicPartition) -> None:
        """Bring it back; the waiting appends arrive, those of each appender in their order."""
        self._stopped.pop(partition, None)
        self.turn()

    def leader(self, partition: TopicPartition) -> int | None:
        """Return a partition's own broker, None while the partition is stopped."""
        if partition in self._stopped:
            return None
        return self._nodes.setdefault(partition, len(self._nodes))

    def why(self, code: int) -> str:
        """Say that the double refuses it."""
        return "the test double refuses it" if code == _REFUSED else super().why(code)

    def _carry(self, request: MemoryRequest) -> None:
        ((partition, batch),) = request.batches.items()
        number = (partition, batch.identity, batch.sequence)
        fates = self._next.get(partition)
        if number in self._doomed:
            request.store({partition: _REFUSED})
            request.answer()
        elif not fates:
            answer_at_once(request)
        else:
            planned = fates.popleft()
            self._note(f"{planned.fate.value}: an append to {name(partition)}")
            if planned.fate in (AppendFate.LOST, AppendFate.UNACKNOWLEDGED):
                self._doomed.add(number)
            self._meet(request, partition, planned)

    def _meet(self, request: MemoryRequest, partition: TopicPartition, planned: _Planned) -> None:
        match planned.fate:
            case AppendFate.LOST:
                self._clock.later(_UNKNOWN_AFTER_S, request.disconnect)
            case AppendFate.UNACKNOWLEDGED:
                request.store()
                self._clock.later(_UNKNOWN_AFTER_S, request.disconnect)
            case AppendFate.DUPLICATED:
                request.store()
                for each in request.batches[partition].records:
                    self.log.write(partition, each.value, key=each.key, headers=each.headers)
                request.answer()
            case AppendFate.DELAYED:
                self._clock.later(planned.seconds, partial(answer_at_once, request))
            case AppendFate.REFUSED:
                request.store({partition: _REFUSED})
                request.answer()


class DoubleDriver(MemoryDriver):
    """The in-memory driver in virtual time: its waits run the system, its appends meet fates."""

    def __init__(
        self, brokers: FaultyBrokers, clock: VirtualClock, observe: Observe | None
    ) -> None:
        super().__init__(brokers=brokers, limits=_LIMITS)
        self.clock = clock
        if observe is not None:
            self.observe = observe
