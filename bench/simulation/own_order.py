"""Simulated producers that keep their own order, by the product's `SendingOrder`.

Where the product waits, the message is held until a later turn, and all later ones behind it. A
producer that does not know whether a log holds its message sends another one there first. At rest
nothing is held.
"""

from __future__ import annotations

from functools import partial

from bench.simulation.clients import WorldDriver
from bench.simulation.judge import Judge, Violation
from bench.simulation.requests import SimulatedBrokers
from bench.simulation.trees import TOPIC
from bench.simulation.world import CONTROL, World
from bench.simulation.writers import SimulatedProducer
from multicast.conditional.follower import DecisionFollower
from multicast.control import ControlState, log_partition
from multicast.drivers.protocol import AppendOutcome
from multicast.errors import ClusterUnreachable, EarlierPending, EarlierUnknown, Truncated
from multicast.producing.append_counts import AppendCounters
from multicast.producing.order_follower import OrderFollower
from multicast.producing.receipts import Route, Settlement
from multicast.producing.sending_order import SendingOrder
from topology.tree import Log

_TURN_S = 0.3  # of a follower: longer than between two looks at the control topic


class _OwnOrder(SimulatedProducer):
    keeps_order = True

    def __init__(self, world: World, brokers: SimulatedBrokers, judge: Judge, name: str) -> None:
        super().__init__(world, brokers, judge, name, tickets=True)
        self.held: list[tuple[str, ...]] = []
        driver = WorldDriver(world)
        self._clock = driver.clock
        follower = OrderFollower(driver, TOPIC)
        settlement = Settlement(lambda: follower, partial(DecisionFollower, driver), driver.clock)
        self._order = SendingOrder(driver, TOPIC, settlement, self._newest, fifo=True)
        self._appends = AppendCounters(driver.clock.monotonic)
        self._routes: dict[str, Route] = {}

    def _newest(self, timeout_s: float) -> ControlState:
        del timeout_s  # who answers does so at once
        if self.world.is_away(CONTROL):
            raise ClusterUnreachable("the leader does not answer")
        return self.world.view().state

    def go_on(self, bits: int) -> None:
        """Send what need not wait."""
        self.held, self.again = [*self.held, *self.again], []
        while self.held:
            log, to = self.covered(self.held[0])
            try:
                self._order.wait(log, (), self._clock.monotonic() + _TURN_S)
            except EarlierUnknown as error:
                routes = self._routes.values()
                self.held[:0] = [each.exact for each in routes if each.partition == error.partition]
                continue
            except (EarlierPending, ClusterUnreachable, Truncated) as error:
                self.world.fault(f"own order: {type(error).__name__}")
                return
            del self.held[0]
            appends = self._appends.log(log.name)
            route = Route(log, log_partition(log), log.to, None, appends)
            self._routes[log.name] = route
            appends.sent(1)
            self._order.sent(route)
            self.multicast(to, bits)
            bits = bits * 0x9E3779B1 + 1 & 0xFFFFFFFFFFFFFFFF

    def _heard(self, log: Log, to: tuple[str, ...], count: int, outcome: AppendOutcome) -> None:
        self._appends.log(log.name).settled(outcome, count)
        super()._heard(log, to, count, outcome)


class OwnOrders:
    """All of them."""

    def __init__(self, world: World, judge: Judge, brokers: SimulatedBrokers) -> None:
        self._world = world
        self._all: list[_OwnOrder] = []
        self._judge, self._brokers = judge, brokers

    def turn(self, bits: int) -> None:
        """Multicast some messages."""
        names = () if self._all else ("o1", "o2")
        self._all += [_OwnOrder(self._world, self._brokers, self._judge, each) for each in names]
        producer = self._all[bits & 1]
        if bits >> 1 & 3 == 0:
            producer.refresh()
        drawn = self._world.schedule.destinations
        for number in range(1 + (bits >> 3 & 1) + (bits >> 4 & 1)):
            producer.held.append(drawn[(bits >> 8 * number + 5) % len(drawn)])
        producer.go_on(bits >> 30)

    def calm_turn(self) -> None:
        """Send what was held."""
        for producer in self._all:
            producer.refresh()
            producer.go_on(0)

    def verdict(self) -> Violation | None:
        """Find a message that is held although all is at rest."""
        for producer in self._all:
            if producer.held:
                return Violation("own order", f"{producer.name} holds {producer.held[0]} for ever")
        return None
