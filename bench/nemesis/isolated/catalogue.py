"""Faults that are made beside the main load, each on a topic (or a broker's disk) of its own.

    python -m bench.nemesis.isolated.catalogue NAME [--bootstrap B] [--brokers N]

An aside makes its fault in a small deployment of its own (`deployment.py`), on brokers that others
may use meanwhile, and checks that what is promised happens: a named error, or nothing at all in the
order. It takes some seconds to some tens, waits for nothing without an end, and leaves nothing
behind. It gives what it saw, and raises `Unexpected` or `OrderViolation` where it saw something
else; any other `AmcastError` is the cluster's.

The command runs one on brokers of its own; in a mount namespace of its own where a disk is mounted.
Exit codes as `amcast` has them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from bench.nemesis.isolated.clocks import away_two_epochs, lying_announcements, skewed_clocks
from bench.nemesis.isolated.deployment import FaultEffect, FaultStage, Unexpected
from bench.nemesis.isolated.disks import full_broker, full_client
from bench.nemesis.isolated.topics import foreign, remade, trimmed
from multicast.errors import AmcastError
from multicast.local.cluster import LocalCluster

__all__ = ["ASIDES", "FaultEffect", "FaultStage", "Unexpected"]

ASIDES: Mapping[str, Callable[[FaultStage], FaultEffect]] = {
    "trimmed": trimmed,
    "remade": remade,
    "foreign": foreign,
    "full-client": full_client,
    "skewed-clocks": skewed_clocks,
    "away-two-epochs": away_two_epochs,
    "lying-announcements": lying_announcements,
    "full-broker": full_broker,
}
_MOUNTS = {"full-broker"}
_APART = "--apart"


def main(arguments: Sequence[str]) -> None:
    """Run one aside and print what it told, as JSON."""
    parser = argparse.ArgumentParser(prog="asides", description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=sorted(ASIDES))
    parser.add_argument("--bootstrap", help="brokers to use; default: own ones")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument(_APART, action="store_true", help="this is a mount namespace of its own")
    asked = parser.parse_args(arguments)
    if asked.name in _MOUNTS and not asked.apart and os.geteuid() == 0:
        # What is mounted there is gone when the last process in it is, however that ended.
        again = [sys.executable, "-m", "bench.nemesis.isolated.catalogue", *arguments, _APART]
        os.execvp("unshare", ["unshare", "--mount", "--", *again])  # noqa: S606, S607
    with tempfile.TemporaryDirectory(prefix="amcast-aside-") as folder:
        if asked.bootstrap is not None:
            told = ASIDES[asked.name](FaultStage(asked.bootstrap, Path(folder)))
        else:
            with LocalCluster(brokers=asked.brokers) as own:
                told = ASIDES[asked.name](FaultStage(own.bootstrap, Path(folder), own))
    sys.stdout.write(json.dumps({"schema_version": 1, **asdict(told)}) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except AmcastError as error:
        sys.stderr.write(f"asides: {error}\n")
        sys.exit(error.exit_code)
