"""Isolated faults: each uses its own topic on the same brokers, and judges its own history.

They would end the main load for good (a recreated topic, a retention that is too short), or their
expected outcome is an error. `isolated/catalogue.py` lists them. On the command line their names
begin with "aside-".
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.nemesis.faults.kinds import Act, kind
from bench.nemesis.isolated.catalogue import ISOLATED_FAULTS, FaultSite
from bench.nemesis.system import System

# It restarts a broker on a small mounted disk, so it needs its own mount namespace.
_FULL_BROKER = "full-broker"


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
