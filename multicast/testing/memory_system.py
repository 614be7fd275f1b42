"""A whole system in memory, for tests of code that multicasts and delivers: no broker, no thread.

`system(interests)` plans the tree and applies it. Producers and consumers are the product's; so are
the plan, the control topic, the cores of the collectors, the drain between epochs, and the checks.
In place of Kafka stands the in-memory driver, which passes the contract tests of all drivers. In
place of processes the collectors work in turns, whenever somebody waits (`clock.py`). So a run
depends on the seed and on the calls of the test only; time is virtual, and no wait takes long.

Producers write tickets, as on a cluster; each log and stream has a broker of its own. Not doubled:
brokers' time-outs, retention, access rights.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from random import Random
from typing import overload

from multicast.consuming.activity import choose
from multicast.consuming.consumer import Consumer
from multicast.consuming.group_positions import kafka_group
from multicast.control import ControlReader, control_topics, log_partition, stream_partition
from multicast.drivers.memory.groups import MemoryMember
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import UsageError
from multicast.properties import OrderViolation, Report
from multicast.testing.clients import TopicClients
from multicast.testing.clock import VirtualClock
from multicast.testing.faults import EPOCH_MS, AppendFate, DoubleDriver, FaultyBrokers, FaultyLog
from multicast.testing.interests import Interests, plan_for
from multicast.testing.parties import load
from multicast.testing.recorder import Recorder, judge
from topology.tree import Plan, log_name

# In virtual time: far more than any step takes, so only a step that cannot end runs into it.
_PATIENCE_S = 60.0
_CHECK_S = 1.0  # the check runs while nothing moves, so what is not there at once never comes
# The seed's part in a run: another one makes collectors see and order logs in other turns.
_SEED = 0


class MemorySystem(TopicClients):
    """A topic with a plan, and its collectors, in memory. Use it as a context manager.

    At the end of the block all clients are closed and, unless the block raised, `check` runs.
    `driver` is for code under test that opens its own `Producer(topic=…, driver=…)` or `Consumer`.
    """

    def __init__(self, interests: Interests, *, seed: int = _SEED) -> None:
        plan = plan_for(interests)
        self.seed = seed
        self.random = Random(seed)  # noqa: S311 - it chooses turns, no secrets
        self._events: list[str] = []
        self._clock = VirtualClock()
        self.later = self._clock.later
        self._recorder = Recorder()
        self.log = FaultyLog(self._clock, self.note)
        self._brokers = FaultyBrokers(self._clock, self.log, self.note)
        driver = DoubleDriver(self._brokers, self._clock, self._recorder.observe)
        super().__init__(plan.topic, driver)
        self._unwatched: Driver = DoubleDriver(self._brokers, self._clock, None)
        for name in control_topics(self.topic):
            self.log.create(name, 1)
        self._control = ControlReader(self._unwatched, self.topic)
        self.collectors = load("collectors")(self)
        self._clock.parties.append(self.collectors.turn)
        self._apply(plan)

    def close(self) -> None:
        """Close all clients without a check; whatever is on its way is lost."""
        self.close_clients(self._clock.paused)

    # -- time ---------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let everything happen that is due, now or later: then the system is at rest.

        What a fault holds back stays so: messages to a stopped log, the order of a collector that
        is down. Raises `TimedOut` if it never comes to rest.
        """
        self._clock.settle(_PATIENCE_S)

    def run(self, seconds: float) -> None:
        """Let so many seconds of virtual time pass."""
        self._clock.run_for(seconds)

    @property
    def now(self) -> datetime:
        """The virtual time, as the timestamps of messages have it."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def now_ms(self) -> int:
        """Give the virtual time as a timestamp of Kafka."""
        return EPOCH_MS + self._clock.now_us // 1000

    # -- faults: what happens to appends --------------------------------------------------------

    def lose(self, target: str | Iterable[str], *, count: int = 1) -> None:
        """Lose the next appends: nothing is stored, and the writer learns `AppendUnknown`.

        The target is a log, by its name ("P1+P3") or its destination set, or a collector by its
        name: then the appends are those to its stream, producers' tickets and order records. The
        writer's later appends to the target wait for that, here and in the faults below.
        """
        self._fate(target, AppendFate.LOST, count)

    def lose_acknowledgement(self, target: str | Iterable[str], *, count: int = 1) -> None:
        """Store the next appends, but let the writer learn `AppendUnknown`."""
        self._fate(target, AppendFate.UNACKNOWLEDGED, count)

    def duplicate(self, target: str | Iterable[str], *, count: int = 1) -> None:
        """Store the next appends twice. In a log these are two messages with two IDs.

        In a stream a ticket counts twice; a skip fills the place of the message that never comes.
        """
        self._fate(target, AppendFate.DUPLICATED, count)

    def delay(self, target: str | Iterable[str], seconds: float, *, count: int = 1) -> None:
        """Store the next appends so much later; later appends of the same client wait for them."""
        if seconds < 0:
            raise UsageError(f"a delay is {seconds!r} seconds; give 0 or more")
        self._fate(target, AppendFate.DELAYED, count, seconds=seconds)

    def refuse(self, target: str | Iterable[str], *, count: int = 1) -> None:
        """Refuse the next appends: the writer learns `AppendRefused`."""
        self._fate(target, AppendFate.REFUSED, count)

    @property
    def faults_left(self) -> int:
        """The number of planned fates that no append has met yet."""
        return sum(self._brokers.unmet.values())

    def stop_log(self, target: str | Iterable[str]) -> None:
        """Take a log (or a collector's stream) away, as if no broker had it."""
        self.note(f"stopped {self._name(target)}")
        self._brokers.stop(self._partition(target))

    def start_log(self, target: str | Iterable[str]) -> None:
        """Bring a stopped log back."""
        self.note(f"started {self._name(target)}")
        self._brokers.start(self._partition(target))

    # -- faults: processes ----------------------------------------------------------------------

    def crash(self, process: str | Consumer) -> None:
        """End a collector, by its name, or a consumer, at once: it commits nothing any more."""
        if isinstance(process, Consumer):
            self.note("crashed a consumer")
            process.close()
        else:
            self.collectors.crash(self._collector(process))

    @overload
    def restart(self, process: str) -> None: ...
    @overload
    def restart(self, process: Consumer) -> Consumer: ...
    def restart(self, process: str | Consumer) -> Consumer | None:
        """Start a collector again; or open a consumer with the options of one that crashed."""
        if isinstance(process, Consumer):
            return self.reopened(process)
        self.collectors.restart(self._collector(process))
        return None

    def fail_over(self, collector: str) -> None:
        """Let another instance take a collector over while the old one still works for a while.

        That is what a false alarm does on a real cluster: two instances append to one stream.
        """
        self.collectors.fail_over(self._collector(collector))

    def pause_active(self, group: str) -> None:
        """Pause the active exclusive consumer of a group for longer than its session time-out.

        It wakes up once another one is active. Both are `consumer(…, exclusive=True)`, and `group`
        is their name, or what `group=` says.
        """
        members = self.log.group(kafka_group(self.topic, group))
        paused = members.pause()
        if not paused:
            raise UsageError(f"no exclusive consumer of group {group} is active")
        self.note(f"paused a member of {group}")
        self.run(MemoryMember.session_s)
        members.leave(paused, choose)

    # -- plans ----------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self._control.refresh().plan()

    def replan(self, interests: Interests, *, uncovered: bool = False) -> Plan:
        """Make a new plan the next epoch, while producers and consumers go on; return the plan.

        The running plan's logs stay. Raises `TimedOut` if the running epoch cannot end, for example
        because one of its collectors is down, and (without `uncovered`) `UsageError` for a plan
        that leaves out a consumer of the running plan.
        """
        plan = plan_for(interests, topic=self.topic, running=self.plan)
        self._apply(plan, uncovered=uncovered)
        return self.plan

    # -- the check --------------------------------------------------------------------------------

    def check(self) -> Report:
        """Check all guarantees over what consumers have handed out; nothing moves meanwhile.

        Raises `OrderViolation`, whose text says what happened. Also each consumer of the plan is
        read again from its start, so that a wrong order is found that no consumer has met yet.
        """
        with self._clock.paused():
            self.log.readable = True
            try:
                return judge(self._unwatched, self.topic, self._recorder, timeout_s=_CHECK_S)
            except OrderViolation as violation:
                violation.add_note(f"system in memory with seed {self.seed}")
                raise
            finally:
                self.log.readable = False

    @property
    def trace(self) -> str:
        """What has happened, a line for each event; equal for equal seeds and calls."""
        return "".join(f"{event}\n" for event in self._events)

    def note(self, event: str) -> None:
        """Add an event to the trace."""
        self._events.append(f"{self._clock.monotonic():.3f} {event}")

    # -- inside -----------------------------------------------------------------------------------

    def _apply(self, plan: Plan, *, uncovered: bool = False) -> None:
        self.note(f"applies the plan of epoch {plan.epoch}")
        self.collectors.apply(plan, timeout_s=_PATIENCE_S, uncovered=uncovered)

    def _fate(
        self, target: str | Iterable[str], fate: AppendFate, count: int, *, seconds: float = 0.0
    ) -> None:
        if count < 1:
            raise UsageError(f"count is {count!r}; a fault meets 1 append or more")
        self._brokers.plan(self._partition(target), fate, count, seconds=seconds)

    def _name(self, target: str | Iterable[str]) -> str:
        return target if isinstance(target, str) else log_name(target)

    def _partition(self, target: str | Iterable[str]) -> TopicPartition:
        """Find a log by its name or destination set, or a collector's stream."""
        plan, name = self.plan, self._name(target)
        if plan.has_log(name):
            return log_partition(plan.log(name))
        if plan.has_collector(name):
            return stream_partition(plan, name)
        raise UsageError(
            f"{name} is neither a log nor a collector of the plan; its logs are "
            f"{', '.join(log.name for log in plan.logs)}, its collectors "
            f"{', '.join(node.name for node in plan.collectors)}"
        )

    def _collector(self, name: str) -> str:
        if not self.plan.has_collector(name):
            raise UsageError(
                f"the plan has no collector {name}; it has "
                f"{', '.join(node.name for node in self.plan.collectors) or 'none'}"
            )
        return name


def system(interests: Interests, *, seed: int = _SEED) -> MemorySystem:
    """Open a system in memory for these interests (a file's path, a mapping, or a plan).

    The same seed and the same calls give the same run, byte for byte. Another seed lets collectors
    see and order the logs in other turns: what a test must not depend on. Raises `UsageError` for
    interests that cannot be read or planned.
    """
    return MemorySystem(interests, seed=seed)
