"""Simulated receipts: the product's follower of the order streams says what is ordered.

A turn asks for the first offset of a log that nothing has ordered yet. Nobody else runs meanwhile,
so the follower, which may read late and little, must not say that it is ordered. An outage must
not end a follower. At rest each of them, and a new one, says so of exactly what is ordered, and of
what is stated to be lost none says anything else.

    ordered     the stream of the log's top orders the offset, or a log without one has it
"""

from __future__ import annotations

from bench.simulation.clients import WorldDriver
from bench.simulation.collectors import AMOUNTS
from bench.simulation.judge import Violation
from bench.simulation.trees import TOPIC
from bench.simulation.world import READ_ALL, World
from multicast.control import ControlState, log_partition
from multicast.errors import (
    AmcastError,
    ClusterUnreachable,
    TopicChanged,
    Trimmed,
    Truncated,
    UnknownVersion,
)
from multicast.producing.order_follower import OrderFollower
from topology.tree import Log

_WAIT_S = 0.3  # of a turn: longer than between two looks at the control topic
_LONG_S = 5.0  # at rest: all is read by then, even after an error
_FAR = 2**40  # an offset that no log has
_FOLLOWERS_MAX = 2
# Somebody has to act, or to begin anew, before the follower can go on.
_LASTING = (TopicChanged, Trimmed, Truncated, UnknownVersion)


class Followers:
    """All followers; the first turn opens one."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._living: list[tuple[WorldDriver, OrderFollower]] = []
        self.violation: Violation | None = None

    def turn(self, bits: int) -> None:
        """Wait for a receipt; perhaps open another follower first."""
        world = self._world
        if not self._living or (bits & 3 == 0 and len(self._living) < _FOLLOWERS_MAX):
            try:
                self._open()
            except ClusterUnreachable:
                return
        driver, follower = self._living[(bits >> 2) % len(self._living)]
        driver.amount = AMOUNTS[bits >> 4 & 3]
        state = world.view().state
        logs = state.plan(state.begun_epoch).logs
        log = logs[(bits >> 6) % len(logs)]
        first = self._first_unordered(state, log)
        if first is None:
            first = world.next_offset(log_partition(log))
            self._wait(follower, log, first, _WAIT_S)
        elif self._wait(follower, log, first, _WAIT_S) and not world.schedule.loses:
            self._violated("a receipt", log, first, "is ordered, which nothing orders")

    def verdict(self, *, harsh: bool) -> Violation | None:
        """Judge, now that all is at rest; where records are gone only what is stated of that."""
        world = self._world
        if self._living and not (harsh and not world.schedule.loses):
            self._open()
            state = world.view().state
            for driver, follower in self._living:
                driver.amount = READ_ALL
                logs = state.plan(state.begun_epoch).logs
                self._wait(follower, logs[0], _FAR, 0.0)  # it looks at the control topic
                for log in logs:
                    self._wait(follower, log, _FAR, _LONG_S)
                    self._judge(state, follower, log, harsh=harsh)
        return self.violation

    # -- inside -----------------------------------------------------------------------------

    def _open(self) -> None:
        driver = WorldDriver(self._world)
        self._living.append((driver, OrderFollower(driver, TOPIC)))
        self._world.fault("follower opened")

    def _wait(
        self, follower: OrderFollower, log: Log, offset: int, timeout_s: float
    ) -> bool | None:
        """Wait for an offset; None: it is lost, or the follower cannot go on."""
        try:
            return follower.wait(log.name, offset, timeout_s)
        except _LASTING as error:
            self._world.fault(f"receipt failed: {type(error).__name__}")
            return None

    def _judge(
        self, state: ControlState, follower: OrderFollower, log: Log, *, harsh: bool
    ) -> None:
        top = state.plan(state.begun_epoch).top(log.name)
        end = self._world.end(log_partition(log))
        if harsh:
            lost = state.loss_of(state.begun_epoch, log.name)
            if lost is not None and self._wait(follower, log, lost, _LONG_S) is not None:
                self._violated("a receipt", log, lost, "is not lost, as is stated")
            return
        if end and not self._wait(follower, log, end - 1, 0.0):
            self._violated("a receipt", log, end - 1, "is not ordered")
        elif top is not None and self._wait(follower, log, end, 0.0):
            self._violated("a receipt", log, end, "is ordered, where there is no message")

    def _first_unordered(self, state: ControlState, log: Log) -> int | None:
        """Give a log's position; None if that is unknown, or it has had no collector."""
        plan = state.plan(state.begun_epoch)
        tops = [each.top(log.name) for each in state.plans[: plan.epoch] if each.has_log(log.name)]
        top = tops[-1]
        if top is None or None in tops:
            return None
        try:
            stream = self._world.whole(state, plan.epoch, top.name)
        except AmcastError:
            return None
        return stream.state.positions[stream.plan.number(log.name)]

    def _violated(self, who: str, log: Log, offset: int, what: str) -> None:
        witness = f"{who} says that {log.name}:{offset} {what}"
        self.violation = self.violation or Violation("receipts", witness)
