"""The isolated faults by name, and a command that runs one of them.

    python -m bench.nemesis.isolated.catalogue NAME [--bootstrap B] [--brokers N]

Each fault is injected into a small deployment with its own topic (`deployment.py`), on brokers that
other programs may use meanwhile. Its function checks the expected effect: a certain error, or no
effect on any order. It takes seconds to tens of seconds, bounds every wait, and removes its topics.
It returns what it saw, and raises `Unexpected` or `OrderViolation` for any other effect; any other
`AmcastError` comes from the cluster.

By default the command starts its own brokers; a fault that mounts a disk runs in a new mount
namespace. The exit codes are those of `amcast`.
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

from bench.nemesis.isolated.clocks import away_two_epochs, skewed_clocks
from bench.nemesis.isolated.deployment import FaultEffect, FaultSite, Unexpected
from bench.nemesis.isolated.disks import full_broker, full_client
from bench.nemesis.isolated.topics import foreign, recreated, trimmed
from multicast.errors import AmcastError
from multicast.local.cluster import LocalCluster

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
_MOUNTS = {"full-broker"}
_APART = "--apart"


def main(arguments: Sequence[str]) -> None:
    """Run one isolated fault and print its effect as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.nemesis.isolated.catalogue", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("name", choices=sorted(ISOLATED_FAULTS))
    parser.add_argument("--bootstrap", help="brokers to use; default: new ones")
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=3)
    parser.add_argument(_APART, action="store_true", help="already in a new mount namespace")
    options = parser.parse_args(arguments)
    if options.name in _MOUNTS and not options.apart and os.geteuid() == 0:
        # Mounts in the namespace disappear with its last process, however that ends.
        again = [sys.executable, "-m", "bench.nemesis.isolated.catalogue", *arguments, _APART]
        os.execvp("unshare", ["unshare", "--mount", "--", *again])  # noqa: S606, S607
    with tempfile.TemporaryDirectory(prefix="amcast-aside-") as folder:
        if options.bootstrap is not None:
            effect = ISOLATED_FAULTS[options.name](FaultSite(options.bootstrap, Path(folder)))
        else:
            with LocalCluster(brokers=options.brokers) as cluster:
                effect = ISOLATED_FAULTS[options.name](
                    FaultSite(cluster.bootstrap, Path(folder), cluster)
                )
    sys.stdout.write(json.dumps({"schema_version": 1, **asdict(effect)}) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except AmcastError as error:
        sys.stderr.write(f"isolated fault: {error}\n")
        sys.exit(error.exit_code)
