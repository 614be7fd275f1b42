"""The simulated cluster: Kafka partitions in memory, and the faults of appends to them.

Each append has a fate that the schedule drew: the record is stored at once, later, twice or never,
and the writer learns the outcome, or that it is unknown. Virtual time is the number of turns so
far. Readers see what a real cluster shows: `Trimmed` below the log start, nothing beyond an open
transaction.

    late        events that are still in the network, by the turn at which they arrive
    view        the state of the control topic up to some record; a process may hold an old one
    trace       every event in order; equal schedules have equal traces
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.simulation.schedule import Fate, Schedule
from bench.simulation.trees import STREAMS, TOPIC
from multicast.control import (
    ControlState,
    control_partition,
    groups_topic,
    log_partition,
    order_topic,
)
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog, PendingAppend
from multicast.drivers.memory.logs import MemoryTransaction
from multicast.drivers.protocol import AppendFailed, AppendOutcome, Fetched, Headers, TopicPartition
from multicast.errors import AppendRefused, AppendUnknown
from multicast.messages import skip_header
from topology.tree import Log

CONTROL = control_partition(TOPIC)
GROUPS_MAX = 8  # partitions of the groups topic: at most 3 + 1 + 1 declared sets in three epochs
READ_ALL = 1_000_000  # records of one read: more than any schedule writes
Event = tuple[object, ...]


class ControlViews:
    """The control state after each record of the control topic, read once and shared by all."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._position = 0
        self.states = [ControlState(TOPIC)]

    def newest(self) -> int:
        """Read on; return the number of the newest prefix."""
        fetched = self._log.read(CONTROL, self._position, READ_ALL)
        if fetched is not None:
            for record in fetched.records:
                state = self.states[-1].copy()
                state.read(record)
                self.states.append(state)
            self._position = fetched.position
        return len(self.states) - 1


@dataclass(slots=True)
class View:
    """One process's knowledge of the control topic: its state after `number` records."""

    views: ControlViews
    number: int

    @property
    def state(self) -> ControlState:
        """The state after the records that this process has read."""
        return self.views.states[self.number]

    def refresh(self) -> ControlState:
        """Read to the control topic's end."""
        self.number = self.views.newest()
        return self.views.states[self.number]


@dataclass(slots=True)
class Stats:
    """Counts of one run."""

    multicasts: int = 0
    deliveries: int = 0
    void: int = 0
    faults: Counter[str] = field(default_factory=Counter)


class World:
    """One cluster, its network and its clock."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.turn = 0
        self.calm = False
        self.stats = Stats()
        self.trace: list[Event] = []
        self.moves = 0  # stores and reads; while it rises, the system is not at rest
        self.log = MemoryLog(
            {
                TOPIC: len(schedule.scene.partitions),
                groups_topic(TOPIC): GROUPS_MAX,
                order_topic(TOPIC): 2 * STREAMS,  # a recovery moves streams to free ones
                CONTROL.topic: 1,
            },
            now_ms=self._now_ms,
        )
        self.transactions: list[tuple[MemoryTransaction, list[tuple[Log, int]]]] = []  # open
        self.topic_ids = self.log.topic_ids((TOPIC, groups_topic(TOPIC)))
        self.filled_wrongly = ""  # a log that was filled after its topic was recreated
        self.work: dict[tuple[str, str], int] = {}
        self._views = ControlViews(self.log)
        self._late: list[tuple[int, int, Callable[[], None]]] = []
        self._lates = 0
        self._fate = Fate.STORED
        self._delay = 0
        self._appender = MemoryDriver(self.log, step=self._carry).appender()

    def _now_ms(self) -> int:
        return self.turn

    # -- time -------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let one turn pass: events that are due arrive."""
        self.turn += 1
        while self._late and self._late[0][0] <= self.turn:
            heapq.heappop(self._late)[2]()

    def settle(self) -> None:
        """Deliver all late events and abort all open transactions; no faults from now on."""
        self.calm = True
        while self._late:
            heapq.heappop(self._late)[2]()
        for transaction, _ in self.transactions:
            transaction.abort()
        self.transactions.clear()

    def note(self, *event: object) -> None:
        """Add an event to the trace."""
        self.trace.append((self.turn, *event))

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
        self._fate = Fate.STORED if self.calm else self.schedule.fates[bits & 15]
        if partition == CONTROL and self._fate is Fate.DOUBLED:
            self._fate = Fate.STORED  # an idempotent producer writes it
        self._delay = 1 + (bits >> 4) % self.schedule.delay_max
        self._appender.append(partition, value, key=key, headers=headers, done=done)
        return self._fate

    def put(self, partition: TopicPartition, value: bytes | None, headers: Headers = ()) -> int:
        """Store a record at once, as a foreign client would."""
        offset = self.log.write(partition, value, headers=headers)
        self._stored(partition, offset)
        return offset

    def _carry(self, append: PendingAppend) -> None:
        """Carry out one append with the fate that `append` chose."""
        fate = self._fate
        if fate is Fate.STORED:
            append.settle(self._store(append))
            return
        self.fault(fate.name.lower())
        unknown = AppendFailed(AppendUnknown("nobody knows"))
        match fate:
            case Fate.HEARD_LATE:
                outcome = self._store(append)
                self.later(self._delay, lambda: append.settle(outcome))
            case Fate.LATE:
                self.later(self._delay, lambda: append.settle(self._store(append)))
            case Fate.LOST:
                self.later(self._delay, lambda: append.settle(unknown))
            case Fate.UNHEARD:
                self._store(append)
                self.later(self._delay, lambda: append.settle(unknown))
            case Fate.GHOST:
                append.settle(unknown)
                self.later(self._delay, lambda: self._store(append))
            case Fate.DOUBLED:
                append.settle(self._store(append))
                self.later(self._delay, lambda: self._store(append))
            case Fate.REFUSED:
                append.settle(AppendFailed(AppendRefused("refused")))

    def later(self, turns: int, what: Callable[[], object]) -> None:
        """Call `what` after a number of turns."""
        self._lates += 1
        heapq.heappush(self._late, (self.turn + turns, self._lates, lambda: (what(), None)[1]))

    def _store(self, append: PendingAppend) -> AppendOutcome:
        outcome = append.store()
        assert not isinstance(outcome, AppendFailed), outcome.error
        self._stored(append.partition, outcome.offset)
        return outcome

    def _stored(self, partition: TopicPartition, offset: int) -> None:
        self.moves += 1
        self.trace.append((self.turn, "stored", partition.topic, partition.partition, offset))

    def worked(self, process: str, log: str) -> None:
        """Count that a process looked at a log once more, for the check of genuineness."""
        self.work[process, log] = self.work.get((process, log), 0) + 1

    def append_skip(
        self, log: Log, *, bits: int, done: Callable[[AppendOutcome], None] | None
    ) -> None:
        """Append a skip, which fills a hole of a log; without `done` it is stored at once."""
        partition = log_partition(log)
        self.fault("hole filled")
        if not self.same_topic(partition.topic):
            self.filled_wrongly = log.name
        if done is None:
            self.put(partition, b"", (skip_header(log.name),))
        else:
            self.append(partition, b"", headers=(skip_header(log.name),), bits=bits, done=done)

    def same_topic(self, topic: str) -> bool:
        """Whether a topic with messages is still the one that the run began with."""
        return self.log.topic_ids((topic,)) == {topic: self.topic_ids[topic]}

    # -- reading ----------------------------------------------------------------------------

    def read(self, partition: TopicPartition, position: int, amount: int) -> Fetched | None:
        """Read as a reader of `MemoryDriver` does, and count it as a move."""
        fetched = self.log.read(partition, position, amount)
        if fetched is not None:
            self.moves += 1
        return fetched

    def next_offset(self, partition: TopicPartition) -> int:
        """Return the offset that the next append gets."""
        return self.log.high_watermarks((partition,))[partition]

    def end(self, partition: TopicPartition) -> int:
        """Return a Kafka partition's last stable offset."""
        return self.log.last_stable_offsets((partition,))[partition]

    def view(self) -> View:
        """Read the control topic from its start to its end."""
        return View(self._views, self._views.newest())

    def compact(self) -> None:
        """Compact the control topic: from now on, a reader from its start reads fewer records."""
        self.log.compact(CONTROL)
        self._views = ControlViews(self.log)

    def trim(self, partition: TopicPartition, offset: int) -> None:
        """Let retention delete all records below an offset."""
        self.log.trim(partition, offset)
        self.fault("trimmed")
        self.note("trimmed", partition.topic, partition.partition, offset)
