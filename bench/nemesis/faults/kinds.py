"""The kinds of faults: how each is made, and how it is healed.

A kind is a function with one `yield`: before it the fault is made, after it the fault is healed.
What it yields says whom it struck. `pick` decides what the kind leaves open, and nothing else does.

    heals itself    the system works again without any help: recovery counts from the moment of the
                    fault, and what was killed is started again only afterwards
    brokers         the fault can leave replicas behind: all must be in sync before the next fault
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from bench.nemesis.schedule import Card
from bench.nemesis.system import System

Act = Callable[[System, random.Random], Iterator[str]]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """One kind; `needs` names what the system must have for it: "network", "proxy"."""

    name: str
    act: Callable[[System, random.Random], AbstractContextManager[str]]
    hold_s: tuple[float, float]
    heals_itself: bool = False
    brokers: bool = False
    times: int = 1
    needs: frozenset[str] = field(default_factory=frozenset)

    @property
    def card(self) -> Card:
        """The kind as the schedule sees it."""
        return Card(self.name, self.hold_s, self.times)


KINDS: dict[str, FaultKind] = {}


def kind(
    name: str,
    *,
    hold_s: tuple[float, float] = (1.0, 3.0),
    heals_itself: bool = False,
    brokers: bool = False,
    times: int = 1,
    needs: tuple[str, ...] = (),
) -> Callable[[Act], Act]:
    """Enter a function as a kind."""

    def enter(act: Act) -> Act:
        assert name not in KINDS, f"two kinds are called {name}"
        KINDS[name] = FaultKind(
            name,
            contextmanager(act),
            hold_s,
            heals_itself=heals_itself,
            brokers=brokers,
            times=times,
            needs=frozenset(needs),
        )
        return act

    return enter
