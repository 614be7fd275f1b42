"""The simulated cluster: Kafka partitions in memory, and the faults of appends to them.

Each append has a fate that the schedule drew: the record is stored at once, later, twice or never,
and the writer learns the outcome, or that it is unknown. Time is virtual, in milliseconds: who
drives the world lets it pass, turn by turn or event by event. Readers see what a real cluster
shows: `Trimmed` below the log start, nothing beyond an open transaction.

    late        events that are still in the network, by the time at which they arrive
    telling     of a stored record: not one of those that collectors write for ever, as checkpoints
    away        a Kafka partition whose leader answers nothing for a time. Readers get no records,
                requests fail, and an append is refused, or of unknown outcome: then it may still be
                stored once the leader is back
    view        the state of the control topics up to some record; a process may hold an old one
    trace       every event in order; equal schedules have equal traces
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
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
    stream_partition,
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
from multicast.order.rule import NotCounted
from multicast.order.stream import OrderStream
from topology.tree import Log

CONTROL, COLLECTORS = control_partition(TOPIC), collectors_partition(TOPIC)
GROUPS_MAX = 8  # partitions of the groups topic: at most 3 + 1 + 1 declared sets in three epochs
READ_ALL = 1_000_000  # records of one read: more than any schedule writes
# What becomes of appends to a partition that is away.
_AWAY = (Fate.LATE, Fate.GHOST, Fate.LOST, Fate.REFUSED)
_KIND_AT, _EMPTY_RELAY_BYTES = 19, 26  # docs/protocol.md has the bytes
Event = tuple[object, ...]


class ControlViews:
    """The control state after each record of the control topics, read once and shared by all.

    What collectors state is read first, as the worst reader might: checkpoints before their plans.
    """

    def __init__(self, log: MemoryLog, is_away: Callable[[TopicPartition], bool]) -> None:
        self._log = log
        self._is_away = is_away
        self.positions = {COLLECTORS: 0, CONTROL: 0}
        self.states = [ControlState(TOPIC)]
        self.reached = [self.positions.copy()]  # by state
        self.after: ControlViews | None = None  # what stands there since an end was lost

    def newest(self) -> int:
        """Read on; return the number of the newest prefix."""
        is_new = len(self.states) == 1  # somebody has read all that
        for partition, position in list(self.positions.items()):
            if self._is_away(partition) and not is_new:
                continue
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

    def wait(self, timeout_s: float) -> None:
        """Let time pass for who waits."""
        self._waited_s += timeout_s if self._waits else 0.0

    def read_nothing(self, timeout_s: float) -> None:
        """Wait for a record."""
        self.wait(timeout_s)

    def wait_for(
        self,
        changed: Condition,  # noqa: ARG002 - nobody else runs meanwhile
        ready: Callable[[], bool],
        timeout_s: float,
    ) -> bool:
        """Give the present answer; if that is no, the time of who waits is over."""
        is_ready = ready()
        self.wait(0.0 if is_ready else timeout_s)
        return is_ready


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
        self._away: dict[TopicPartition, int] = {}  # until when
        # Of who only reads, and of steps without faults; who drives the world gives it its own.
        self.driver = MemoryDriver(self.log)
        self.transactions: list[tuple[MemoryTransaction, list[tuple[Log, int]]]] = []  # open
        self.topic_ids = self.log.topic_ids((TOPIC, groups_topic(TOPIC)))
        self.false: set[bytes | None] = set()  # checkpoints that a wrong program wrote
        self.work: dict[tuple[str, str], int] = {}
        self.overtaken: list[str] = []  # collectors that need what retention has removed
        self._orders = (order_topic(TOPIC), CONTROL.topic, COLLECTORS.topic)
        self._views = ControlViews(self.log, self.is_away)
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
        self._away.clear()
        while self._late:
            self.pass_time(max(0, self._late[0][0] - self.now))
        for transaction, _ in self.transactions:
            transaction.abort()
        self.transactions.clear()

    def send_away(self, partition: TopicPartition, ms: int) -> None:
        """Let a Kafka partition's leader answer nothing for a time."""
        self._away[partition] = self.now + ms
        self.fault("partition away")
        self.note("away", partition.topic, partition.partition, ms)

    def is_away(self, partition: TopicPartition) -> bool:
        """Whether a Kafka partition's leader answers nothing now."""
        return bool(self._away) and self._away.get(partition, 0) > self.now

    @property
    def some_away(self) -> bool:
        """Whether any leader answers nothing."""
        return any(until > self.now for until in self._away.values())

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
        return self.fate(bits, partition)

    def appender(self, bits: Callable[[], int]) -> Appender:
        """Open an appender each of whose appends has the fate that the next bits choose."""
        return FatedAppender(self.log, step=lambda append: self.carry(append, bits()))

    def fate(self, bits: int, *partitions: TopicPartition) -> Fate:
        """Choose a fate of what goes there; once the world is calm, every record is stored."""
        if any(map(self.is_away, partitions)):
            return _AWAY[bits & 3]
        return Fate.STORED if self.calm else self.schedule.fates[bits & 15]

    def delay(self, bits: int, *partitions: TopicPartition) -> int:
        """Choose how many milliseconds late something is: not before the leaders are back."""
        back = max([self._away.get(each, 0) for each in partitions], default=0)
        return max(0, back - self.now) + 1 + (bits >> 4 & 0xFFF) % self.schedule.delay_max

    def put(self, partition: TopicPartition, value: bytes | None, headers: Headers = ()) -> int:
        """Store a record at once, as a foreign client would."""
        offset = self.log.write(partition, value, headers=headers)
        self.stored(partition, offset, value)
        return offset

    def carry(self, append: PendingAppend, bits: int) -> None:
        """Carry out one append with the fate that the bits choose."""
        fate, delay = self.fate(bits, append.partition), self.delay(bits, append.partition)
        if append.partition in (CONTROL, COLLECTORS) and fate is Fate.DOUBLED:
            fate = Fate.STORED  # an idempotent producer writes it
        settle = partial(partial, append.settle)
        self.meet(
            fate,
            delay,
            store=lambda: settle(self._store(append)),
            lose=settle(AppendFailed(AppendUnknown("nobody knows"))),
            refuse=settle(AppendFailed(AppendRefused("refused"))),
        )

    def meet(
        self,
        fate: Fate,
        delay: int,
        *,
        store: Callable[[], Callable[[], object]],
        lose: Callable[[], object],
        refuse: Callable[[], object],
        again: Callable[[], object] | None = None,
    ) -> None:
        """Let an append or a request meet its fate; `store` gives what tells the writer of it."""
        if fate is not Fate.STORED:
            self.fault(fate.name.lower())
        match fate:
            case Fate.STORED:
                store()()
            case Fate.HEARD_LATE:
                self.later(delay, store())
            case Fate.LATE:
                self.later(delay, partial(_call_twice, store))
            case Fate.LOST:
                self.later(delay, lose)
            case Fate.UNHEARD:
                store()
                self.later(delay, lose)
            case Fate.GHOST:
                lose()
                self.later(delay, store)
            case Fate.DOUBLED:
                store()()
                self.later(delay, again or store)
            case Fate.REFUSED:
                refuse()

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
        """Read as a reader does."""
        return None if self.is_away(partition) else self.log.read(partition, position, amount)

    def whole(self, state: ControlState, epoch: int, name: str) -> OrderStream:
        """Read a collector's stream from its start to its end."""
        return self.read_on(state.opened(state.first_epoch(epoch, name), name))

    def read_on(
        self, stream: OrderStream, end: int | None = None, *, strict: bool = False
    ) -> OrderStream:
        """Read a stream up to an offset, by default its end, whoever is away."""
        partition = stream_partition(stream.plan, stream.collector)
        end = self.end(partition) if end is None else end
        fetched = self.log.read(partition, stream.offset_next, READ_ALL)
        for record in () if fetched is None else fetched.records:
            if record.offset >= end:
                break
            judged = stream.read(record.offset, record.value)
            is_false = strict and judged is NotCounted.FALSE
            assert not is_false or record.value in self.false, "a checkpoint names a wrong state"
        stream.passed(end)
        return stream

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
        self._views = ControlViews(self.log, self.is_away)
        self._older.append(self._views)

    def lose(self, partition: TopicPartition, first: int) -> None:
        """Lose all records from an offset on; other records get their offsets."""
        for transaction, _ in self.transactions:  # one that has lost its records cannot end
            transaction.abort()
        self.transactions.clear()
        self.log.lose(partition, first)
        if partition in (CONTROL, COLLECTORS):
            self._views = after = ControlViews(self.log, self.is_away)
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


def _call_twice(store: Callable[[], Callable[[], object]]) -> None:
    store()()


def _stated(reached: dict[TopicPartition, int]) -> int:
    return reached[CONTROL]


def _tells(raw: bytes) -> bool:
    """Whether a record says something: no checkpoint, no empty relay, no statement of one."""
    if raw.startswith(b"{"):
        return b'"record":' not in raw
    kind, content = raw[_KIND_AT : _KIND_AT + 1], raw[_KIND_AT + 1 :]
    empty = kind == bytes([Kind.RELAY]) and len(content) == _EMPTY_RELAY_BYTES
    return kind != bytes([Kind.CHECKPOINT]) and not empty
