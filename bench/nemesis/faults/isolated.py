"""Faults beside the load: each has a topic of its own on the same brokers, and its own judgement.

What they break would end the load for good (its topic made again, its retention too short), or it
has an outcome of its own that is expected: a named error. `catalogue.py` tells what each does.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.nemesis.faults.kinds import Act, kind
from bench.nemesis.isolated.catalogue import ASIDES, FaultStage
from bench.nemesis.system import System

# It kills and starts a broker, and it mounts a small disk: never where mounts are the machine's.
_FULL_BROKER = "full-broker"


def _aside(name: str) -> Act:
    def act(system: System, _: random.Random) -> Iterator[str]:
        folder = Path(tempfile.mkdtemp(prefix=f"aside-{name}-", dir=system.folder))
        told = ASIDES[name](FaultStage(system.cluster.bootstrap, folder, system.cluster))
        yield told.says

    return act


for _name in ASIDES:
    _full = _name == _FULL_BROKER
    kind(f"aside-{_name}", hold_s=(0.0, 0.0), brokers=_full, needs=("network",) if _full else ())(
        _aside(_name)
    )
