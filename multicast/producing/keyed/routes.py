"""Which log the messages to a destination set go to, by the newest plan that was read."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from multicast.control import ControlReader, ControlState, log_partition
from multicast.control.topic_identity import refuse_recreated_logs
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import ClusterUnreachable, UsageError
from multicast.messages import covered_header, name_set, refuse_no_name
from multicast.producing.append_counts import AppendCounters
from multicast.producing.keyed.destinations import find_log, required_log
from multicast.producing.keyed.partitioners import Keys, Partitioner
from multicast.producing.keyed.router import KeyRouter
from multicast.producing.receipts import Route
from topology.tree import Log, Plan, log_name

# An undeclared destination set makes the producer read the control topic again, at most this often:
# a caller in a loop must not turn each of its mistakes into a request. A set that is declared while
# the producer runs is refused for at most this long.
_PLAN_EVERY_S = 1.0


class Routes:
    """The routes of one producer. Safe from any thread; the constructor reads the plan.

    It raises `TopicChanged` if a topic of the plan was recreated.
    """

    def __init__(
        self,
        driver: Driver,
        topic: str,
        partitioner: Partitioner,
        appends: AppendCounters,
        through: Iterable[str] | None = None,
    ) -> None:
        self._appends = appends
        self._through = None if through is None else name_set(through, "'through'")
        self._clock = clock_of(driver)
        self._lock = threading.Lock()  # to read the control topic
        # By the destination set, and by the boundary if the call names one.
        self._routes: dict[tuple[frozenset[str], frozenset[str] | None], Route] = {}
        self._control = ControlReader(driver, topic)
        try:
            self.plan = self._control.refresh().plan()
            refuse_recreated_logs(driver, self.plan)
            if self._through is not None:
                required_log(self.plan, self._through, self._through)
        except BaseException:
            self._control.close()
            raise
        self._plan_read_at = self._clock.monotonic()
        self.keys = KeyRouter(driver, partitioner, self._newest_plan)

    @property
    def control(self) -> ControlState:
        """What the control topic said when it was read last."""
        return self._control.state

    def close(self) -> None:
        """Release the readers."""
        self.keys.close()
        self._control.close()

    def declares(self, to: Iterable[str] | Keys) -> bool:
        """Whether exactly this set is declared; if not, a newer plan may be looked for."""
        destinations = self._names(to)
        for each in destinations:
            refuse_no_name(each, "a partition")
        name = log_name(destinations)
        if not self.plan.has_log(name):
            self._newest_plan(_PLAN_EVERY_S)
        return self.plan.has_log(name)

    def _within(self, within: frozenset[str] | None) -> frozenset[str] | None:
        if self._through and within not in (None, self._through):
            raise UsageError("with `through` all goes to one log: leave `within` and `expect` out")
        return within or self._through

    def route(self, to: Iterable[str] | Keys, within: frozenset[str] | None = None) -> Route:
        """Give the route of a set; where the plan has none, a newer plan may be looked for."""
        destinations, within = self._names(to), self._within(within)
        route = self._known(destinations, within)
        if route is None:  # a newer plan may declare it
            self._newest_plan(_PLAN_EVERY_S)
            log = required_log(self.plan, destinations, within)
            route = self._make_route(destinations, within, log)
        return route

    def known(self, to: Iterable[str] | Keys, within: frozenset[str] | None = None) -> Route | None:
        """Give the route of a set that the plan covers; None if that has to be looked up first."""
        if isinstance(to, Keys) and not self.keys.ready:
            return None
        return self._known(self._names(to), self._within(within))

    def newest(self, timeout_s: float) -> ControlState:
        """Read the control topic anew, for so many seconds at most, as `_newest_plan`."""
        self._newest_plan(-1.0, timeout_s)
        return self.control

    def _names(self, to: Iterable[str] | Keys) -> frozenset[str]:
        if isinstance(to, Keys):
            return frozenset(self.keys.partitions(to.values))
        return name_set(to, "a destination set")

    def _known(self, destinations: frozenset[str], within: frozenset[str] | None) -> Route | None:
        route = self._routes.get((destinations, within))
        if route is None and (log := find_log(self.plan, destinations, within)) is not None:
            route = self._make_route(destinations, within, log)
        return route

    def _make_route(
        self, destinations: frozenset[str], within: frozenset[str] | None, log: Log
    ) -> Route:
        exact = tuple(sorted(destinations))
        header = None if exact == log.to else covered_header(log.name, exact)
        route = Route(log, log_partition(log), exact, header, self._appends.log(log.name))
        self._routes[destinations, within] = route
        return route

    def _newest_plan(self, age_s: float = 0.0, timeout_s: float | None = None) -> Plan:
        """Read the plan again if it is older than `age_s`; look sets up in it from now on."""
        if not self._lock.acquire(timeout=-1 if timeout_s is None else timeout_s):
            raise ClusterUnreachable("another thread has waited for the control topic since before")
        try:
            if self._clock.monotonic() - self._plan_read_at > age_s:
                self.plan = self._control.refresh(timeout_s).plan()
                self._plan_read_at = self._clock.monotonic()
                self._routes.clear()
            return self.plan
        finally:
            self._lock.release()
