"""Kinds of faults: a registry of functions that inject and heal a fault.

A kind is a function with one `yield`: the fault is injected before it and healed after it. It
yields the name of the victim. Only `pick` makes random choices.

    heals itself    the system recovers without any help: recovery counts from the moment of the
                    fault, and a killed process is restarted only afterwards
    brokers         the fault can leave replicas behind: all must be in sync before the next fault
    all run         brokers, collectors and consumers run all the time: the bound on waiting holds
                    while the fault lasts, too
    calm            the least quiet after it, to see whether waits are what they were (`waits`)
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from bench.nemesis.schedule import Card
from bench.nemesis.system import System
from bench.nemesis.waits import SETTLE_S

Act = Callable[[System, random.Random], Iterator[str]]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind; `needs` names the facilities that the system must have, such as "network"."""

    name: str
    act: Callable[[System, random.Random], AbstractContextManager[str]]
    hold_s: tuple[float, float]
    heals_itself: bool = False
    brokers: bool = False
    all_run: bool = False
    calm_s: float = 0.0
    times: int = 1
    needs: frozenset[str] = field(default_factory=frozenset)

    @property
    def card(self) -> Card:
        """The kind as the schedule sees it."""
        return Card(self.name, self.hold_s, self.times, self.calm_s)


# The first seconds, in which waits may be longer, and then as many as a quantile needs.
CALM_S = SETTLE_S + 8.0
KINDS: dict[str, FaultKind] = {}


def kind(
    name: str,
    *,
    hold_s: tuple[float, float] = (1.0, 3.0),
    heals_itself: bool = False,
    brokers: bool = False,
    all_run: bool = False,
    calm_s: float = 0.0,
    times: int = 1,
    needs: tuple[str, ...] = (),
) -> Callable[[Act], Act]:
    """Register a function as a kind of fault."""

    def enter(act: Act) -> Act:
        assert name not in KINDS, f"two kinds are called {name}"
        KINDS[name] = FaultKind(
            name,
            contextmanager(act),
            hold_s,
            heals_itself=heals_itself,
            brokers=brokers,
            all_run=all_run,
            calm_s=calm_s,
            times=times,
            needs=frozenset(needs),
        )
        return act

    return enter
