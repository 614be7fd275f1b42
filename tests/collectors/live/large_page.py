"""The live page of a large plan: the real server and the real page; only the order is made up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from collectors.live.facts import Reported, begun
from collectors.live.observer import TICK_S, Observer
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.settings import Settings
from tests.collectors.live.test_routes import HERE, Pages
from tests.helpers.plans import by_hand
from topology.tree import Plan

_BURST = 400  # offsets that a log grows by in a tick, at most
_SICK = 23  # every so many-th collector is down or behind in turns


def large_plan(collectors: int, logs: int) -> Plan:
    """Lay out a binary tree; each collector inherits the first log of its parent."""
    names = [f"P{number + 1}" for number in range(logs)]
    own = [names[number::collectors] for number in range(collectors)]
    parents = [number and (number + 1) // 2 for number in range(collectors)]
    return by_hand(
        names,
        {
            f"K{number + 1}": (
                sorted([*own[number], *(own[parent - 1][:1] if parent else [])]),
                f"K{parent}" if parent else None,
            )
            for number, parent in enumerate(parents)
        },
        {"C1": (["P1"], None)},
        topic="large",
    )


class MadeUpObserver(Observer):
    """Makes up a picture of a large plan, in which everything changes all the time."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        super().__init__(MemoryDriver(MemoryLog({})), plan.topic)

    def _read_pages(self) -> None:
        pass

    def _follow(self) -> None:
        plan, tick = self._plan, 0
        picture = self.picture = begun(plan, int(time.time() * 1000), None)
        ends = dict.fromkeys((log.name for log in plan.logs), 0)
        while not self._stop.is_set():
            tick += 1
            for number, name in enumerate(ends):
                ends[name] += (number * 7919 + tick * 104_729) % _BURST
            positions = {
                node.name: {name: ends[name] - (ends[name] % 3) for name in node.bag}
                for node in plan.collectors
            }
            sick = tick // 6 % _SICK
            reported = {
                node.name: Reported(why="http://h:1/status cannot be read", known=True)
                if number % _SICK == sick
                else Reported(state="running", process="a")
                for number, node in enumerate(plan.collectors)
            }
            with self._drawing:
                picture.tick(int(time.time() * 1000), ends, positions, reported)
            self._tell()
            self._stop.wait(TICK_S)


@contextmanager
def served(plan: Plan) -> Iterator[str]:
    """Serve the page of a made-up topic during the context; give its URL."""
    settings = Settings("", plan.topic)
    with closing(Pages(settings, open_observer=lambda _: MadeUpObserver(plan))) as pages:
        yield f"http://{HERE}:{pages.port}/"
