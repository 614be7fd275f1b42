"""Schedules of the third kind: months of little traffic, and what grows with them.

The plan, the processes and the brokers are those of `waits.py`. Each hour of virtual time brings
a message for each log. No instance of a collector lives longer than some hours; retention removes
what is older than a week of the order streams, and now and then the control topic is compacted.

    young     the newest checkpoint of each stream is never older than its time and two hours
    bounded   what a standby keeps for its takeover, and what a reader reads that opens a stream: no
              more after months than after weeks. Of the checkpoints that the control topic names,
              each doubling of the time adds `SLOTS` at most
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.simulation.collectors import SimulatedInstance
from bench.simulation.judge import Violation
from bench.simulation.waits import Incident, WaitSchedule, WaitSimulation
from bench.simulation.world import COLLECTORS
from collectors.core.collector import LIMITS
from multicast.control import stream_partition
from multicast.control.checkpoints import SLOTS
from multicast.order.stream import StreamCheckpoint

HOUR_MS = 3_600_000
LIVES_HOURS = 5  # of an instance: below the time after which a checkpoint is due
KEPT_HOURS = 7 * 24
COMPACTED_HOURS = 50
WEEKS_HOURS = 3 * 7 * 24  # after which nothing may grow any more, but by a few
_TICKS = 6


@dataclass(frozen=True, slots=True)
class Size:
    """What may not grow: checkpoints of a collector, a standby's actions, records that are read."""

    checkpoints: int
    kept: int
    read: int


class MonthSimulation(WaitSimulation):
    """One schedule of so many days."""

    def __init__(self, seed: int, days: int) -> None:
        super().__init__(WaitSchedule(seed, Incident.NOTHING, 1, 1, "even", 1, 1))
        self._hours = days * 24
        self._nodes = self.plan.collectors
        self._sender = self._producer()
        self._begun: dict[SimulatedInstance, int] = dict.fromkeys(self.collectors, 0)
        self._ends_by_hour: list[dict[str, int]] = []

    def live(self) -> tuple[Size, Size, Violation | None]:
        """Run; give the sizes after weeks and at the end, and the first violation."""
        weeks = self._size()
        for hour in range(self._hours):
            self._pass_hour(hour)
            violation = self._too_old(hour)
            if violation is not None:
                return weeks, self._size(), violation
            if hour == WEEKS_HOURS:
                weeks = self._size()
        months, violation = self._size(), None
        doublings = (self._hours // WEEKS_HOURS).bit_length()
        if (
            months.checkpoints > weeks.checkpoints + doublings * SLOTS
            or months.kept > weeks.kept + 1
            or months.read > 2 * weeks.read
        ):
            violation = Violation("bounded", f"after weeks {weeks}, after months {months}")
        return weeks, months, violation

    def _pass_hour(self, hour: int) -> None:
        world = self.world
        world.pass_time(HOUR_MS - 10_000)
        for place, instance in enumerate(self.collectors):
            if hour - self._begun[instance] >= LIVES_HOURS - (place & 1):
                self._restart(place, instance, hour)
        for log in self.plan.logs:
            self._send(self._sender, log.name)
        for _ in range(_TICKS):
            self._work()
        streams = {node.name: stream_partition(self.plan, node.name) for node in self._nodes}
        self._ends_by_hour.append({name: world.end(place) for name, place in streams.items()})
        if hour >= KEPT_HOURS:
            for name, partition in streams.items():
                world.log.trim(partition, self._ends_by_hour[hour - KEPT_HOURS][name])
        if hour % COMPACTED_HOURS == 0:
            world.log.compact(COLLECTORS)

    def _work(self) -> None:
        """Let each process do what it does in half a second."""
        self.world.pass_time(500)
        for process in self.processes:
            self._read(process)
        for instance in self.collectors:
            instance.view.refresh()
            for partition, number in instance.assignment.logs.items():
                instance.core.log_end(number, self.world.end(partition))
            instance.tick()
            self._act(instance)

    def _restart(self, place: int, old: SimulatedInstance, hour: int) -> None:
        primary = old.role.primary
        new = SimulatedInstance(
            self.world, 1, old.name, 100 + hour * 10 + place, choice=1, primary=primary
        )
        self.collectors[place] = new
        self._begun[new] = hour

    def _checkpoints(self, name: str) -> list[StreamCheckpoint]:
        named = self.world.view().state.checkpoints(1, name)
        return [point for point in named if isinstance(point, StreamCheckpoint)]

    def _too_old(self, hour: int) -> Violation | None:
        for node in self._nodes:
            written = sum(
                point.offset >= self._ends_by_hour[max(0, hour - _YOUNG_HOURS)][node.name]
                for point in self._checkpoints(node.name)
            )
            if hour > _YOUNG_HOURS and not written:
                days = hour // 24
                return Violation("young", f"day {days}: {node.name} has no checkpoint of late")
        return None

    def _size(self) -> Size:
        view = self.world.view().state
        checkpoints = max(len(self._checkpoints(node.name)) for node in self._nodes)
        kept = max(len(instance.core._peeked) for instance in self.collectors)
        read = 0
        for node in self._nodes:
            partition = stream_partition(self.plan, node.name)
            end = self.world.end(partition)
            read = max(read, end - view.stream(1, node.name, below=end).offset_next)
        return Size(checkpoints, kept, read)


_YOUNG_HOURS = LIMITS.checkpoint_time // HOUR_MS + 2
