"""The simulated cluster: Kafka partitions in memory, and the faults of appends to them.

Each append has a fate that the schedule drew: the record is stored at once, later, twice or never,
and the writer learns the outcome, or that it is unknown. Time is virtual, in milliseconds: who
drives the world lets it pass, turn by turn or event by event. Readers see what a real cluster
shows: `Trimmed` below the log start, nothing beyond an open transaction.

    late        events that are still in the network, by the time at which they arrive
    telling     of a stored record: not one of those that collectors write for ever, as checkpoints
    view        the state of the control topics up to some record; a process may hold an old one
    trace       every event in order; equal schedules have equal traces
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Condition

from bench.simulation.appends import FatedAppender, PendingAppend
from bench.simulation.schedule import Fate, Schedule
from bench.simulation.trees import STREAMS, TOPIC
from multicast.control import (
    ControlState,
    collectors_partition,
    control_partition,
    groups_topic,
    order_topic,
)
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.memory.logs import MemoryTransaction
from multicast.drivers.protocol import (
    Appender,
    AppendFailed,
    AppendOutcome,
    Fetched,
    Headers,
    TopicPartition,
)
from multicast.errors import AppendRefused, AppendUnknown, Truncated
from multicast.order.records import Kind
from topology.tree import Log

CONTROL, COLLECTORS = control_partition(TOPIC), collectors_partition(TOPIC)
GROUPS_MAX = 8  # partitions of the groups topic: at most 3 + 1 + 1 declared sets in three epochs
READ_ALL = 1_000_000  # records of one read: more than any schedule writes
_KIND_AT, _EMPTY_RELAY_BYTES = 19, 26  # docs/protocol.md has the bytes
Event = tuple[object, ...]


class ControlViews:
    """The control state after each record of the control topics, read once and shared by all.

    What collectors state is read first, as the worst reader might: checkpoints before their plans.
    """

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.positions = {COLLECTORS: 0, CONTROL: 0}
        self.states = [ControlState(TOPIC)]
        self.reached = [self.positions.copy()]  # by state
        self.after: ControlViews | None = None  # what stands there since an end was lost

    def newest(self) -> int:
        """Read on; return the number of the newest prefix."""
        for partition, position in list(self.positions.items()):
            fetched = self._log.read(partition, position, READ_ALL)
            if fetched is not None:
                for record in fetched.records:
                    state = self.states[-1].copy()
                    state.read_from(partition, record)
                    self.states.append(state)
                    self.reached.append({**self.reached[-1], partition: record.offset + 1})
                self.positions[partition] = fetched.position
        return len(self.states) - 1


@dataclass(slots=True)
class View:
    """One process's knowledge of the control topics: its state after `number` records."""

    views: ControlViews
    number: int
    is_told: bool = True  # of a loss; else it is that of a process that begins anew then

    @property
    def state(self) -> ControlState:
        """The state after the records that this process has read."""
        return self.views.states[self.number]

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The ends of the control topics, if this view is the newest one."""
        assert self.number == len(self.views.states) - 1
        return self.views.positions

    def refresh(self) -> ControlState:
        """Read to the control topics' ends; raises `Truncated` as `ControlReader` does."""
        after = self.views
        while after.after is not None:
            after = after.after
        if after is not self.views:
            reached = self.views.reached[self.number]
            after.newest()
            known = bisect_right(after.reached, reached[CONTROL], key=_stated)
            is_short = any(after.positions[each] < reached[each] for each in reached)
            is_other = after.states[known - 1].previous != self.state.previous
            if self.is_told and (is_short or is_other):
                raise Truncated("a control topic has lost its end")
            self.views = after
        self.number = self.views.newest()
        return self.views.states[self.number]


@dataclass(slots=True)
class Stats:
    """Counts of one run."""

    multicasts: int = 0
    deliveries: int = 0
    void: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class WorldClock:
    """The time of the world, for clients in memory. Nobody waits: who drives the world goes on.

    With `waits` time passes for those who would wait, though for nobody else.
    """

    threads = False

    def __init__(self, world: World, *, waits: bool = False) -> None:
        self._world, self._waits = world, waits
        self._waited_s = 0.0
        self.parties: list[Callable[[], bool]] = []

    def monotonic(self) -> float:
        """Give the time in seconds."""
        return self._world.now / 1000 + self._waited_s

    def writer(self) -> bytes:
        """Give the next number."""
        return self._world.writer()

    def wait_for(
        self,
        changed: Condition,  # noqa: ARG002 - nobody else runs meanwhile
        ready: Callable[[], bool],
        timeout_s: float,
    ) -> bool:
        """Give the present answer."""
        self._waited_s += timeout_s if self._waits else 0.0
        return ready()


class _Driver(MemoryDriver):
    clock: WorldClock


class World:
    """One cluster, its network and its clock."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.now = 0  # ms
        self.calm = False
        self._writers = 0
        self.stats = Stats()
        self.trace: list[Event] = []
        self.stores = 0  # all records, and what ends a transaction: else readers find nothing new
        self.moves = 0  # telling records stored; while it rises, the system is not at rest
        self.log = MemoryLog(
            {
                TOPIC: len(schedule.scene.partitions),
                groups_topic(TOPIC): GROUPS_MAX,
                order_topic(TOPIC): 2 * STREAMS,  # a recovery moves streams to free ones
                CONTROL.topic: 1,
                COLLECTORS.topic: 1,
            },
            clock=WorldClock(self),
            now_ms=self.now_ms,
        )
        # Of who only reads, and of steps without faults.
        driver = _Driver(self.log)
        self.driver: MemoryDriver = driver
        driver.clock = WorldClock(self, waits=True)
        self.transactions: list[tuple[MemoryTransaction, list[tuple[Log, int]]]] = []  # open
        self.topic_ids = self.log.topic_ids((TOPIC, groups_topic(TOPIC)))
        self.work: dict[tuple[str, str], int] = {}
        self.overtaken: list[str] = []  # collectors that need what retention has removed
        self._orders = (order_topic(TOPIC), CONTROL.topic, COLLECTORS.topic)
        self._views = ControlViews(self.log)
        self._older = [self._views]  # all since the last loss
        self._late: list[tuple[int, int, Callable[[], None]]] = []
        self._lates = 0
        self._bits = 0
        self._appender = self.appender(lambda: self._bits)

    def now_ms(self) -> int:
        """Give the time."""
        return self.now

    @property
    def stated_ms(self) -> int:
        """What statements of checkpoints give as their time: a thousand times faster.

        So those of a schedule of seconds are spread over slots, as those of hours are.
        """
        return self.now << 10

    # -- time -------------------------------------------------------------------------------

    def pass_time(self, ms: int) -> None:
        """Let time pass: events that are due arrive, each at its time."""
        end = self.now + ms
        while self._late and self._late[0][0] <= end:
            self.now = max(self.now, self._late[0][0])
            heapq.heappop(self._late)[2]()
        self.now = end

    @property
    def next_event(self) -> int | None:
        """The time of the next event of the network; None if nothing is on its way."""
        return self._late[0][0] if self._late else None

    def settle(self) -> None:
        """Deliver all late events and abort all open transactions; no faults from now on."""
        self.calm = True
        while self._late:
            self.pass_time(max(0, self._late[0][0] - self.now))
        for transaction, _ in self.transactions:
            transaction.abort()
        self.transactions.clear()

    def note(self, *event: object) -> None:
        """Add an event to the trace."""
        self.trace.append((self.now, *event))

    def fault(self, kind: str) -> None:
        """Count a fault."""
        self.stats.faults[kind] += 1

    # -- writing ----------------------------------------------------------------------------

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        bits: int = 0,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> Fate:
        """Append with the fate that the bits choose; once the world is calm, it is stored."""
        self._bits = bits
        self._appender.append(partition, value, key=key, headers=headers, done=done)
        return self.fate(bits)

    def appender(self, bits: Callable[[], int]) -> Appender:
        """Open an appender each of whose appends has the fate that the next bits choose."""
        return FatedAppender(self.log, step=lambda append: self.carry(append, bits()))

    def fate(self, bits: int) -> Fate:
        """Choose a fate; once the world is calm, every record is stored."""
        return Fate.STORED if self.calm else self.schedule.fates[bits & 15]

    def delay(self, bits: int) -> int:
        """Choose how many milliseconds late something is."""
        return 1 + (bits >> 4 & 0xFFF) % self.schedule.delay_max

    def put(self, partition: TopicPartition, value: bytes | None, headers: Headers = ()) -> int:
        """Store a record at once, as a foreign client would."""
        offset = self.log.write(partition, value, headers=headers)
        self.stored(partition, offset, value)
        return offset

    def carry(self, append: PendingAppend, bits: int) -> None:
        """Carry out one append with the fate that the bits choose."""
        fate, delay = self.fate(bits), self.delay(bits)
        if append.partition in (CONTROL, COLLECTORS) and fate is Fate.DOUBLED:
            fate = Fate.STORED  # an idempotent producer writes it
        if fate is Fate.STORED:
            append.settle(self._store(append))
            return
        self.fault(fate.name.lower())
        unknown = AppendFailed(AppendUnknown("nobody knows"))
        match fate:
            case Fate.HEARD_LATE:
                outcome = self._store(append)
                self.later(delay, lambda: append.settle(outcome))
            case Fate.LATE:
                self.later(delay, lambda: append.settle(self._store(append)))
            case Fate.LOST:
                self.later(delay, lambda: append.settle(unknown))
            case Fate.UNHEARD:
                self._store(append)
                self.later(delay, lambda: append.settle(unknown))
            case Fate.GHOST:
                append.settle(unknown)
                self.later(delay, lambda: self._store(append))
            case Fate.DOUBLED:
                append.settle(self._store(append))
                self.later(delay, lambda: self._store(append))
            case Fate.REFUSED:
                append.settle(AppendFailed(AppendRefused("refused")))

    def later(self, ms: int, what: Callable[[], object]) -> None:
        """Call `what` after a number of milliseconds; of those at one time, the earlier first."""
        self._lates += 1
        heapq.heappush(self._late, (self.now + ms, self._lates, lambda: (what(), None)[1]))

    def _store(self, append: PendingAppend) -> AppendOutcome:
        outcome = append.store()
        assert not isinstance(outcome, AppendFailed), outcome.error
        self.stored(append.partition, outcome.offset, append.value)
        return outcome

    def stored(self, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        """Note a record that was stored."""
        self.stores += 1
        if partition.topic not in self._orders or _tells(value or b""):
            self.moves += 1
        self.trace.append((self.now, "stored", partition.topic, partition.partition, offset))

    def worked(self, process: str, log: str) -> None:
        """Count that a process looked at a log once more, for the check of genuineness."""
        self.work[process, log] = self.work.get((process, log), 0) + 1

    def same_topic(self, topic: str) -> bool:
        """Whether a topic with messages is still the one that the run began with."""
        return self.log.topic_ids((topic,)) == {topic: self.topic_ids[topic]}

    # -- reading ----------------------------------------------------------------------------

    def writer(self) -> bytes:
        """Give what the next writer of order records has for a key."""
        self._writers += 1
        return self._writers.to_bytes(8, "big")

    def read(self, partition: TopicPartition, position: int, amount: int) -> Fetched | None:
        """Read as a reader of `MemoryDriver` does."""
        return self.log.read(partition, position, amount)

    def next_offset(self, partition: TopicPartition) -> int:
        """Return the offset that the next append gets."""
        return self.log.high_watermarks((partition,))[partition]

    def end(self, partition: TopicPartition) -> int:
        """Return a Kafka partition's last stable offset."""
        return self.log.last_stable_offsets((partition,))[partition]

    def view(self, *, is_told: bool = True) -> View:
        """Read the control topics from their starts to their ends."""
        return View(self._views, self._views.newest(), is_told)

    def compact(self) -> None:
        """Compact the control topics: from now on, a reader from the start reads fewer records."""
        self.log.compact(CONTROL)
        self.log.compact(COLLECTORS)
        self._views = ControlViews(self.log)
        self._older.append(self._views)

    def lose(self, partition: TopicPartition, first: int) -> None:
        """Lose all records from an offset on; other records get their offsets."""
        for transaction, _ in self.transactions:  # one that has lost its records cannot end
            transaction.abort()
        self.transactions.clear()
        self.log.lose(partition, first)
        if partition in (CONTROL, COLLECTORS):
            self._views = after = ControlViews(self.log)
            for before in self._older:
                before.after = after
            self._older = [after]
        self.stores += 1
        self.fault("lost tail")
        self.note("lost tail", partition.topic, partition.partition, first)

    def trim(self, partition: TopicPartition, offset: int) -> None:
        """Let retention delete all records below an offset."""
        self.log.trim(partition, offset)
        self.fault("trimmed")
        self.note("trimmed", partition.topic, partition.partition, offset)


def _stated(reached: dict[TopicPartition, int]) -> int:
    return reached[CONTROL]


def _tells(raw: bytes) -> bool:
    """Whether a record says something: no checkpoint, no empty relay, no statement of one."""
    if raw.startswith(b"{"):
        return b'"record":' not in raw
    kind, content = raw[_KIND_AT : _KIND_AT + 1], raw[_KIND_AT + 1 :]
    empty = kind == bytes([Kind.RELAY]) and len(content) == _EMPTY_RELAY_BYTES
    return kind != bytes([Kind.CHECKPOINT]) and not empty
