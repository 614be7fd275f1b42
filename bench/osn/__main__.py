"""Benchmarks of the ordering service, each on its own broker and nodes.

    python -m bench.osn ordering   [--transactions 50000]
    python -m bench.osn broadcast  [--transactions 30000]
    python -m bench.osn latency    [--transactions 15000] [--rate 750]

    ordering   transactions/s from a log that is already full to three ledgers
    broadcast  transactions/s from signed envelopes, through gRPC, filters and verification, to
               three ledgers; one client process has streams to all nodes
    latency    from the intended time of a broadcast to the arrival of its block by Deliver

Exit codes: 0 done, 1 failed, 2 wrong arguments, 4 something did not happen in time.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

from bench.harness import figures
from bench.osn import measure
from bench.osn.nodes import OrdererDeployment, Service, deployed
from multicast.errors import AmcastError, UsageError


class _Measurement(NamedTuple):
    """How many transactions by default, how many before them, and the chain's batch time-out."""

    transactions: int
    warm_up: int
    timeout: str


_MEASUREMENTS = {
    "ordering": _Measurement(50_000, 5000, "2s"),
    "broadcast": _Measurement(30_000, 3000, "250ms"),
    "latency": _Measurement(15_000, 3000, "100ms"),
}


def _measured(name: str, deployment: OrdererDeployment, count: int, rate: float) -> measure.Figures:
    warm_up = _MEASUREMENTS[name].warm_up
    match name:
        case "ordering":
            return measure.ordered(deployment, count, warm_up=warm_up)
        case "broadcast":
            return measure.broadcast(deployment, count, warm_up=warm_up)
    return measure.latency(deployment, count, rate=rate, warm_up=warm_up)


def _run(arguments: Sequence[str]) -> None:
    parser = figures.parser("bench.osn", __doc__)
    parser.add_argument("measurement", choices=list(_MEASUREMENTS))
    parser.add_argument("--transactions", type=int)
    parser.add_argument("--rate", type=float, default=750.0, help="latency: transactions/s")
    chosen = parser.parse_args(arguments)
    name, default = chosen.measurement, _MEASUREMENTS[chosen.measurement]
    count = default.transactions if chosen.transactions is None else chosen.transactions
    service = Service(timeout=default.timeout)
    if count < 1 or (name == "ordering" and count % service.messages_max):
        raise UsageError(
            f"--transactions is at least 1, and of ordering a multiple of {service.messages_max}: "
            "it needs whole blocks"
        )
    with deployed(service) as deployment:
        result = _measured(name, deployment, count, chosen.rate)
        version = deployment.cluster.version
        document = figures.document("bench.osn", result, kafka=version, arguments=arguments)
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
