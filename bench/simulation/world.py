"""The cluster as the simulated processes meet it: a log in memory, and what goes wrong with it.

Appends go in with the fate that the schedule drew; records stand in the log, at once, later, twice
or never, and writers hear of it or do not. Virtual time is the number of turns so far. Processes
read what a real one would: `Trimmed` below retention, nothing beyond an open transaction.

    late        what the network still holds: stores and answers, by the turn they come
    view        what the control topic said up to some record; processes may hold an old one
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
GROUPS_MAX = 8
READ_ALL = 1_000_000
Event = tuple[object, ...]


class ControlViews:
    """All prefixes of the control topic, each read once; who reads from the start shares them."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self._position = 0
        self.states = [ControlState(TOPIC)]

    def newest(self) -> int:
        """Read on; give the number of the newest prefix."""
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
    """What one process knows of the control topic."""

    views: ControlViews
    number: int

    @property
    def state(self) -> ControlState:
        """The state after that many records."""
        return self.views.states[self.number]

    def refresh(self) -> ControlState:
        """Read to the control topic's end."""
        self.number = self.views.newest()
        return self.views.states[self.number]


@dataclass(slots=True)
class Stats:
    """What a run amounts to."""

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
        self.moves = 0  # stores and reads: while it rises, something still happens
        self.log = MemoryLog(
            {
                TOPIC: len(schedule.scene.partitions),
                groups_topic(TOPIC): GROUPS_MAX,
                order_topic(TOPIC): 2 * STREAMS,  # a recovery moves streams to free ones
                CONTROL.topic: 1,
            },
            now_ms=self._now_ms,
        )
        self.transactions: list[tuple[MemoryTransaction, list[tuple[Log, int]]]] = []
        self.topic_ids = self.log.topic_ids((TOPIC, groups_topic(TOPIC)))
        self.filled_wrongly = ""  # the log that was made again and filled all the same
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
        """Let one turn pass: what is due arrives."""
        self.turn += 1
        while self._late and self._late[0][0] <= self.turn:
            heapq.heappop(self._late)[2]()

    def settle(self) -> None:
        """Let everything arrive that is on its way, and end what is open; no faults from now on."""
        self.calm = True
        while self._late:
            heapq.heappop(self._late)[2]()
        for transaction, _ in self.transactions:
            transaction.abort()
        self.transactions.clear()

    def note(self, *event: object) -> None:
        """Put an event into the trace."""
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
        """Append with the fate that the bits choose; none is bad once the world is calm."""
        self._fate = Fate.STORED if self.calm else self.schedule.fates[bits & 15]
        if partition == CONTROL and self._fate is Fate.DOUBLED:
            self._fate = Fate.STORED  # an idempotent producer; keys tell attempts apart
        self._delay = 1 + (bits >> 4) % self.schedule.delay_max
        self._appender.append(partition, value, key=key, headers=headers, done=done)
        return self._fate

    def put(self, partition: TopicPartition, value: bytes | None, headers: Headers = ()) -> int:
        """Store a record at once, as some foreign client would."""
        offset = self.log.write(partition, value, headers=headers)
        self._stored(partition, offset)
        return offset

    def _carry(self, append: PendingAppend) -> None:
        """Do to an append what its fate says."""
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
        """Do something after so many turns."""
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
        """Note that a process handled something of a log."""
        self.work[process, log] = self.work.get((process, log), 0) + 1

    def append_skip(
        self, log: Log, *, bits: int, done: Callable[[AppendOutcome], None] | None
    ) -> None:
        """Append a skip, as a process does that has found a hole."""
        at = log_partition(log)
        self.fault("hole filled")
        if not self.same_topic(at.topic):
            self.filled_wrongly = log.name
        if done is None:
            self.put(at, b"", (skip_header(log.name),))
        else:
            self.append(at, b"", headers=(skip_header(log.name),), bits=bits, done=done)

    def same_topic(self, topic: str) -> bool:
        """Whether a topic of messages is still the one that it was when all began."""
        return self.log.topic_ids((topic,)) == {topic: self.topic_ids[topic]}

    # -- looking ----------------------------------------------------------------------------

    def read(self, partition: TopicPartition, position: int, amount: int) -> Fetched | None:
        """Read as a reader of `MemoryDriver` does; that it moved is noted."""
        fetched = self.log.read(partition, position, amount)
        if fetched is not None:
            self.moves += 1
        return fetched

    def next_offset(self, partition: TopicPartition) -> int:
        """Give the offset that the next append gets."""
        return self.log.high_watermarks((partition,))[partition]

    def end(self, partition: TopicPartition) -> int:
        """Give a Kafka partition's last stable offset."""
        return self.log.last_stable_offsets((partition,))[partition]

    def view(self) -> View:
        """Read the control topic from its start to its end."""
        return View(self._views, self._views.newest())

    def compact(self) -> None:
        """Compact the control topic: who reads it from its start from now on reads less."""
        self.log.compact(CONTROL)
        self._views = ControlViews(self.log)

    def trim(self, partition: TopicPartition, offset: int) -> None:
        """Let retention take what stands below an offset."""
        self.log.trim(partition, offset)
        self.fault("trimmed")
        self.note("trimmed", partition.topic, partition.partition, offset)
