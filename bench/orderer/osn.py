"""The ordering service's figures, and its long run; each on a broker and nodes of its own.

    python -m bench.orderer.osn ordering   [--transactions 50000]
    python -m bench.orderer.osn broadcast  [--transactions 30000] [--streams 2] [--window 128]
    python -m bench.orderer.osn latency    [--rate 750] [--timeout 100ms]
    python -m bench.orderer.osn deliver    [--readers 100]
    python -m bench.orderer.osn many       [--transactions 200000] [--kills 12]

    ordering   transactions/s from a log that is full to three ledgers
    broadcast  transactions/s from signed envelopes, through gRPC, filters and verification, to
               three ledgers; the clients are one process, their streams go to all nodes
    latency    from when a transaction was to be broadcast to when its block came by Deliver
    deliver    many readers of one chain, of one node
    many       no figure but a judgement: nodes are killed and come back, and all that was
               acknowledged must be delivered, once, in one order, by all nodes

`--profile FILE` runs the nodes under a profiler (`bench.orderer.profile`), which costs much speed,
and writes what their time went to. Ends with 0, or 3 where an order is violated, 4 where something
did not come in time, 2 for what cannot be asked, else 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness import facts, figures
from bench.orderer import many as osn_many
from bench.orderer import measure as osn_measure
from bench.orderer.nodes import OrdererStage, Service, staged
from bench.orderer.profile import CLOCKS, PARTS, merged
from bench.orderer.transactions import FOLDER
from multicast.errors import AmcastError, UsageError

_LINES = 12
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "ordering": {"transactions": 50_000, "warm_up": 5000},
    "broadcast": {"transactions": 30_000, "warm_up": 3000, "timeout": "250ms"},
    "latency": {"transactions": 15_000, "warm_up": 3000, "timeout": "100ms"},
    "deliver": {"transactions": 10_000},
    "many": {"transactions": 200_000, "timeout": "250ms"},
}


def parser() -> argparse.ArgumentParser:
    """Make the parser of `python -m bench.orderer.osn`."""
    made = figures.parser("osn", __doc__, room="orderer")
    made.add_argument("measurement", choices=list(_DEFAULTS))
    made.add_argument("--transactions", type=int)
    made.add_argument("--warm-up", type=int, default=0, help="transactions before the first counts")
    made.add_argument("--messages-max", type=int, default=500, help="transactions a block")
    made.add_argument("--timeout", default="2s", help="the batch time-out, as Fabric writes it")
    made.add_argument("--rate", type=float, default=750.0, help="latency: transactions/s")
    made.add_argument("--streams", type=int, default=2, help="broadcast: to each node")
    made.add_argument("--window", type=int, default=128, help="broadcast: unanswered in a stream")
    made.add_argument("--readers", type=int, default=100, help="deliver: at once")
    made.add_argument("--processes", type=int, default=2, help="deliver: that the readers are in")
    made.add_argument("--kills", type=int, default=12, help="many: of nodes, one after the other")
    made.add_argument("--profile", type=Path, metavar="FILE", help="write the nodes' profile here")
    made.add_argument("--clock", choices=list(CLOCKS), default="cpu", help="of the profile")
    made.add_argument("--material", type=Path, default=FOLDER, help="blocks, envelopes and keys")
    made.add_argument("-b", "--bootstrap", help="a cluster to use; default: a broker of its own")
    return made


def service(arguments: argparse.Namespace) -> Service:
    """Say what is to stand for a measurement."""
    many = arguments.measurement == "many"
    return Service(
        chains=("chain-a", "chain-b") if many else ("chain-a",),
        collectors=many,
        nodes=1 if arguments.measurement == "deliver" else 3,
        messages_max=arguments.messages_max,
        timeout=arguments.timeout,
        material=arguments.material,
        profile=arguments.clock if arguments.profile else None,
    )


def measure(stage: OrdererStage, arguments: argparse.Namespace) -> osn_measure.Figures:
    """Run what is asked for; give its figures."""
    count, warm_up = arguments.transactions, arguments.warm_up
    match arguments.measurement:
        case "ordering":
            return osn_measure.ordered(stage, count, warm_up=warm_up)
        case "broadcast":
            return osn_measure.broadcast(
                stage, count, warm_up=warm_up, streams=arguments.streams, window=arguments.window
            )
        case "latency":
            return osn_measure.latency(stage, count, rate=arguments.rate, warm_up=warm_up)
        case "deliver":
            return osn_measure.deliver(
                stage, count, readers=arguments.readers, processes=arguments.processes
            )
    return osn_many.many(stage, count, kills=arguments.kills).figures()


def checked(arguments: Sequence[str]) -> argparse.Namespace:
    """Read what is asked for; raises `UsageError` for what cannot be measured."""
    made = parser()
    measurement = made.parse_args(arguments).measurement
    made.set_defaults(**_DEFAULTS[measurement])
    asked = made.parse_args(arguments)
    counts = (asked.transactions, asked.warm_up)
    if measurement in ("ordering", "deliver") and any(n % asked.messages_max for n in counts):
        raise UsageError(f"{measurement} is of whole blocks: of {asked.messages_max} transactions")
    if asked.transactions < 1 or asked.processes < 1 or asked.readers % asked.processes:
        raise UsageError("there must be transactions, and as many readers in each process")
    return asked


def _run(arguments: Sequence[str]) -> None:
    asked = checked(arguments)
    machine = facts.machine()  # its load is of before
    with staged(service(asked), asked.bootstrap) as stage:
        found = measure(stage, asked)
        told = figures.document(
            "osn", found, kafka=stage.kafka, arguments=arguments, room="orderer"
        )
        told["machine"] = machine
        if asked.profile is not None:
            stage.nodes.stop()
            asked.profile.write_text(json.dumps(_profile(stage), indent=1) + "\n", encoding="utf-8")
    figures.show(told, asked.output)


def _profile(stage: OrdererStage) -> dict[str, Any]:
    """Add up the nodes' profiles; show the first lines of each part."""
    files = [stage.nodes.profile(number) for number in range(len(stage.nodes.addresses))]
    found = merged([json.loads(file.read_bytes()) for file in files])
    for part in PARTS:
        sys.stderr.write(f"{part}, seconds of all nodes\n")
        for name, seconds in list(found[part].items())[:_LINES]:
            sys.stderr.write(f"{seconds:10.3f}  {name}\n")
    return found


def main(arguments: Sequence[str]) -> int:
    """Measure once and print it; give the exit code."""
    try:
        _run(arguments)
    except AmcastError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
