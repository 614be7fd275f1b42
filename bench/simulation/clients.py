"""The simulated cluster as clients of the product see it: their driver, and its readers.

Of a leader that is away readers give nothing, and requests fail or leave it out. A client that
would wait has a clock of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from bench.simulation.world import World, WorldClock
from multicast.drivers.memory.driver import MemoryDriver, MemoryReader
from multicast.drivers.protocol import POLL_RECORDS_MAX, Fetched, TopicPartition
from multicast.errors import ClusterUnreachable

_LEAVING_OUT = ("leader_ends", "epoch_ends")  # these say nothing of leaders that do not answer
_FAILING = ("log_start_offsets", "last_stable_offsets", "high_watermarks", "offsets_at")


class WorldDriver(MemoryDriver):
    """The cluster as one client sees it, whose readers give at most `amount` records at once."""

    def __init__(self, world: World, clock: WorldClock | None = None) -> None:
        super().__init__(world.log)
        self.clock = clock or WorldClock(world, waits=True)
        self.amount = POLL_RECORDS_MAX
        self._world = world
        for name in (*_FAILING, *_LEAVING_OUT):
            setattr(self, name, partial(self._ask, name))

    def _ask(
        self, name: str, partitions: Iterable[TopicPartition], *words: Any, **more: Any
    ) -> Any:
        away = [each for each in partitions if self._world.is_away(each)]
        answers = getattr(self.log, name)(partitions, *words, **more)
        if away and name in _FAILING:
            raise ClusterUnreachable("the leader does not answer")
        return {each: answer for each, answer in answers.items() if each not in away}

    def reader(
        self,
        starts: Mapping[TopicPartition, int],
        *,
        wait_s: float | None = None,  # noqa: ARG002 - a parameter of the other drivers
    ) -> MemoryReader:
        """Open a reader, which waits by this client's clock."""
        return _Reader(self._world, self, starts)


class _Reader(MemoryReader):
    def __init__(
        self, world: World, driver: WorldDriver, starts: Mapping[TopicPartition, int]
    ) -> None:
        self._world, self._driver = world, driver
        super().__init__(world.log, starts)

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> list[Fetched]:
        """Read what there is; without any record, wait."""
        fetched = super().poll(timeout_s, min(records_max, self._driver.amount))
        if not fetched and timeout_s > 0:
            self._driver.clock.read_nothing(timeout_s)
        return fetched

    def _read(self, records_max: int) -> list[Fetched]:
        paused, positions = self._paused, self._positions
        self._paused = paused.union(filter(self._world.is_away, positions))
        try:
            return super()._read(records_max)
        finally:
            self._paused = paused
