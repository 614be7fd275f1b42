"""The isolated faults by name.

Each fault is injected into a small deployment with its own topic (`deployment.py`), on brokers that
other programs may use meanwhile. Its function checks the expected effect: a certain error, or no
effect on any order. It takes seconds to tens of seconds, bounds every wait, and removes its topics.
It returns what it saw, and raises `Unexpected` or `OrderViolation` for any other effect; any other
`AmcastError` comes from the cluster. A fault that mounts a disk needs a mount namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.nemesis.isolated.clocks import away_two_epochs, skewed_clocks
from bench.nemesis.isolated.deployment import FaultEffect, FaultSite, Unexpected
from bench.nemesis.isolated.disks import full_broker, full_client
from bench.nemesis.isolated.topics import foreign, recreated, trimmed

__all__ = ["ISOLATED_FAULTS", "FaultEffect", "FaultSite", "Unexpected"]

ISOLATED_FAULTS: Mapping[str, Callable[[FaultSite], FaultEffect]] = {
    "trimmed": trimmed,
    "remade": recreated,
    "foreign": foreign,
    "full-client": full_client,
    "skewed-clocks": skewed_clocks,
    "away-two-epochs": away_two_epochs,
    "full-broker": full_broker,
}
