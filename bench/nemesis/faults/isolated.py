"""Isolated faults: each uses its own topic on the same brokers, and judges its own history.

They would end the main load for good (a recreated topic, a retention that is too short), or their
expected outcome is an error. On the command line their names begin with "aside-".

Each is injected into a small deployment (`isolated/deployment.py`), on brokers that other programs
may use meanwhile. Its function checks the expected effect: a certain error, or no effect on any
order. It takes seconds to tens of seconds, bounds every wait, and removes its topics. It returns
what it saw, and raises `Unexpected` or `OrderViolation` for any other effect; any other
`AmcastError` comes from the cluster. A fault that mounts a disk needs a mount namespace.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from bench.nemesis.faults.kinds import Act, kind
from bench.nemesis.isolated.clocks import away_two_epochs, skewed_clocks
from bench.nemesis.isolated.deployment import FaultEffect, FaultSite
from bench.nemesis.isolated.disks import full_broker, full_client
from bench.nemesis.isolated.topics import recreated, trimmed
from bench.nemesis.system import System

# It restarts a broker on a small mounted disk, so it needs its own mount namespace.
_FULL_BROKER = "full-broker"
ISOLATED_FAULTS: Mapping[str, Callable[[FaultSite], FaultEffect]] = {
    "trimmed": trimmed,
    "remade": recreated,
    "full-client": full_client,
    "skewed-clocks": skewed_clocks,
    "away-two-epochs": away_two_epochs,
    _FULL_BROKER: full_broker,
}


def _isolated(name: str) -> Act:
    def act(system: System, _: random.Random) -> Iterator[str]:
        folder = Path(tempfile.mkdtemp(prefix=f"aside-{name}-", dir=system.folder))
        effect = ISOLATED_FAULTS[name](FaultSite(system.cluster.bootstrap, folder, system.cluster))
        yield effect.says

    return act


for _name in ISOLATED_FAULTS:
    _full = _name == _FULL_BROKER
    kind(f"aside-{_name}", hold_s=(0.0, 0.0), brokers=_full, needs=("network",) if _full else ())(
        _isolated(_name)
    )
