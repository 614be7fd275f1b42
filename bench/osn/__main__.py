"""Benchmarks of the ordering service, each on its own broker and nodes.

    python -m bench.osn ordering   [--transactions 50000]
    python -m bench.osn broadcast  [--transactions 30000] [--streams 2] [--window 128]
    python -m bench.osn latency    [--rate 750] [--timeout 100ms]
    python -m bench.osn deliver    [--readers 100]

    ordering   transactions/s from a log that is already full to three ledgers
    broadcast  transactions/s from signed envelopes, through gRPC, filters and verification, to
               three ledgers; one client process has streams to all nodes
    latency    from the intended time of a broadcast to the arrival of its block by Deliver
    deliver    many readers of one chain, from one node

Exit codes: 0 done, 1 failed, 2 wrong arguments, 4 something did not happen in time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import facts, figures
from bench.osn import measure as osn_measure
from bench.osn.nodes import OrdererDeployment, Service, deployed
from bench.osn.transactions import FOLDER
from multicast.errors import AmcastError, UsageError

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ordering": {"transactions": 50_000, "warm_up": 5000},
    "broadcast": {"transactions": 30_000, "warm_up": 3000, "timeout": "250ms"},
    "latency": {"transactions": 15_000, "warm_up": 3000, "timeout": "100ms"},
    "deliver": {"transactions": 10_000},
}


def parser() -> argparse.ArgumentParser:
    """Make the parser of `python -m bench.osn`."""
    made = figures.parser("bench.osn", __doc__)
    made.add_argument("measurement", choices=list(_DEFAULTS))
    made.add_argument("--transactions", type=int)
    made.add_argument("--warm-up", type=int, default=0, help="transactions before the measurement")
    made.add_argument("--messages-max", type=int, default=500, help="transactions in a block")
    made.add_argument("--timeout", default="2s", help="the batch time-out in Fabric's form")
    made.add_argument("--rate", type=float, default=750.0, help="latency: transactions/s")
    made.add_argument("--streams", type=int, default=2, help="broadcast: streams to each node")
    made.add_argument(
        "--window", type=int, default=128, help="broadcast: unanswered envelopes in a stream"
    )
    made.add_argument("--readers", type=int, default=100, help="deliver: readers at the same time")
    made.add_argument(
        "--processes", type=int, default=2, help="deliver: processes with the readers"
    )
    made.add_argument(
        "--material", type=Path, default=FOLDER, help="folder with blocks, envelopes and keys"
    )
    made.add_argument("-b", "--bootstrap", help="a cluster to use; default: start a broker")
    return made


def service(arguments: argparse.Namespace) -> Service:
    """Return the service that a measurement needs."""
    return Service(
        nodes=1 if arguments.measurement == "deliver" else 3,
        messages_max=arguments.messages_max,
        timeout=arguments.timeout,
        material=arguments.material,
    )


def measure(deployment: OrdererDeployment, arguments: argparse.Namespace) -> osn_measure.Figures:
    """Run the chosen measurement; returns its figures."""
    count, warm_up = arguments.transactions, arguments.warm_up
    match arguments.measurement:
        case "ordering":
            return osn_measure.ordered(deployment, count, warm_up=warm_up)
        case "broadcast":
            return osn_measure.broadcast(
                deployment,
                count,
                warm_up=warm_up,
                streams=arguments.streams,
                window=arguments.window,
            )
        case "latency":
            return osn_measure.latency(deployment, count, rate=arguments.rate, warm_up=warm_up)
    return osn_measure.deliver(
        deployment, count, readers=arguments.readers, processes=arguments.processes
    )


def checked(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments; raises `UsageError` where they do not fit together."""
    made = parser()
    measurement = made.parse_args(arguments).measurement
    made.set_defaults(**_DEFAULTS[measurement])
    chosen = made.parse_args(arguments)
    counts = (chosen.transactions, chosen.warm_up)
    if measurement in ("ordering", "deliver") and any(n % chosen.messages_max for n in counts):
        raise UsageError(
            f"{measurement} needs whole blocks: give multiples of {chosen.messages_max} "
            "as --transactions and --warm-up"
        )
    if chosen.transactions < 1 or chosen.processes < 1 or chosen.readers % chosen.processes:
        raise UsageError(
            "--transactions must be at least 1, and --readers a multiple of --processes"
        )
    return chosen


def _run(arguments: Sequence[str]) -> None:
    chosen = checked(arguments)
    machine = facts.machine()  # before the run, so that it shows the load of others
    with deployed(service(chosen), chosen.bootstrap) as deployment:
        result = measure(deployment, chosen)
        kafka = "as found" if deployment.cluster is None else deployment.cluster.version
        document = figures.document("bench.osn", result, kafka=kafka, arguments=arguments)
        document["machine"] = machine
    figures.show(document, chosen.output)


def main(arguments: Sequence[str]) -> int:
    """Run one measurement and print it; returns the exit code."""
    try:
        _run(arguments)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
