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
from dataclasses import dataclass
from typing import Any

from bench.nemesis.schedule import Card
from bench.nemesis.system import System
from bench.nemesis.waits import SETTLE_S

Act = Callable[[System, random.Random], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultKind(Card):
    """One kind; `needs` names the facilities that the system must have, such as "network"."""

    act: Callable[[System, random.Random], AbstractContextManager[str]]
    heals_itself: bool = False
    brokers: bool = False
    all_run: bool = False
    needs: tuple[str, ...] = ()


# The first seconds, in which waits may be longer, and then as many as a quantile needs.
CALM_S = SETTLE_S + 8.0
KINDS: dict[str, FaultKind] = {}


def kind(name: str, **fields: Any) -> Callable[[Act], Act]:
    """Register a function as a kind of fault, with these fields of `FaultKind`."""

    def enter(act: Act) -> Act:
        assert name not in KINDS, f"two kinds are called {name}"
        KINDS[name] = FaultKind(name, act=contextmanager(act), **fields)
        return act

    return enter
