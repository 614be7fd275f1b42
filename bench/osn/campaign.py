"""`amcast bench bundles`: many bundles over random sets of chains, while everything is killed.

Nodes, collectors, a broker and the clients are killed, and configs of several chains change
meanwhile. The judges read the blocks; each acknowledged bundle must be in all of its chains, or a
node must say that it is void, and why.

    handled    records that a chain's order stream had, up to its newest block; its blocks say so
    concerned  records in the logs of the sets with the chain. A chain that handles nothing of any
               other set has handled at most these
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from hashlib import sha256
from itertools import combinations, cycle
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from bench.harness.interrupts import end_at_signals
from bench.osn.client import BUNDLES
from bench.osn.faults import BROKER, CLIENT, COLLECTOR, CONFIG, NODE, DueFault
from bench.osn.nodes import OrdererDeployment, Service, deployed
from bench.osn.run import BATCH_TIMEOUT, ArmOutcome, BanksOutcome, Load, SendingArm, run
from bench.osn.transactions import user
from bench.osn.verdicts import JudgedArm, judged, refuse_violations
from multicast.control import log_partition
from multicast.drivers import open_driver
from multicast.errors import AmcastError
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.client import Client
from topology.output import Output, OutputOption

app = typer.Typer()

_KINDS = (NODE, CONFIG, COLLECTOR, CONFIG, NODE, CLIENT, CONFIG, BROKER)
_FATE_S = 20.0  # for a node to say what became of a bundle, after all others are settled
# The run is given up below this mean rate; the start and the restarts get their time apart.
_SLOWEST_PER_S = 20.0
_TIMEOUT_S_MIN = 300.0


@app.command()
def bundles(
    *,
    count: Annotated[int, typer.Option("--bundles", min=10, help="How many bundles.")] = 100_000,
    chains: Annotated[int, typer.Option("--chains", min=2, max=26, help="How many chains.")] = 8,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="How many nodes.")] = 3,
    brokers: Annotated[int, typer.Option("--brokers", help="1 or 3.")] = 1,
    sets: Annotated[int, typer.Option("--sets", min=1, help="How many random sets.")] = 40,
    faults: Annotated[int, typer.Option("--faults", min=0, help="Kills and config updates.")] = 24,
    rate: Annotated[float, typer.Option("--rate", min=1, help="Bundles/s, at most.")] = 400.0,
    seed: Annotated[int, typer.Option("--seed", help="Which sets and bundles.")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Send bundles over random sets of chains while nodes, collectors and a broker are killed.

    Exit code 0: all or none, once, in one order; 3: a guarantee is violated.
    """
    end_at_signals()
    say = Console(stderr=True, highlight=False)
    figures, arm = campaign(
        campaign_size(chains, sets, nodes=nodes, brokers=brokers, seed=seed),
        Load(
            count,
            rate,
            seed,
            window=256,
            faults=schedule(faults),
            timeout_s=_TIMEOUT_S_MIN + count / _SLOWEST_PER_S,
        ),
        say,
    )
    if output is Output.JSON:
        typer.echo(json.dumps({"schema_version": 1, **figures}))
    else:
        table = Table("", "", show_header=False, box=None, pad_edge=False)
        for name, value in figures.items():
            table.add_row(name.replace("_", " "), _shown(value))
        Console(highlight=False, width=100).print(table)
    refuse_violations([arm])


def campaign_size(chains: int, sets: int, *, nodes: int, brokers: int, seed: int) -> Service:
    """Return a world with random sets of the chains, as many as there are at most."""
    names = [f"chain-{chr(ord('a') + number)}" for number in range(chains)]
    every = [to for size in range(2, chains + 1) for to in combinations(names, size)]
    every.sort(key=lambda to: sha256(f"{seed} {to}".encode()).digest())
    return Service(
        names,
        sorted(every[:sets]),
        nodes=nodes,
        brokers=brokers,
        messages_max=200,
        timeout=BATCH_TIMEOUT,
    )


def schedule(faults: int) -> list[DueFault]:
    """Spread faults evenly: the kinds take turns, and each next one hits the next of its kind."""
    due = []
    numbers = dict.fromkeys(_KINDS, 0)
    for place, kind in zip(range(faults), cycle(_KINDS), strict=False):
        due.append(DueFault((place + 1) / (faults + 1), kind, numbers[kind]))
        numbers[kind] += 1
    return due


def campaign(size: Service, load: Load, say: Console) -> tuple[dict[str, Any], JudgedArm]:
    """Run a campaign; returns its figures, and the judged chains. Raises as `run`."""
    began = time.monotonic()
    arm = SendingArm(BUNDLES, size.chains, size.sets)
    say.print(f"starting {size.nodes} nodes, {len(size.chains)} chains, {len(size.sets)} sets …")
    with deployed(size) as world:
        outcome = run(world, [arm], load, say=say.print)
        held = outcome.arms[BUNDLES]
        say.print("asking for what is in no block, and judging …")
        voids = asyncio.run(_voids(world, held))
        concerned = _concerned(world)
    verdict = judged(held, voids=list(voids))
    handled = {chain: copy.position for chain, copy in held.held.items()}
    too_many = [
        f"foreign: {chain} handled {handled[chain]} records, and its logs hold {concerned[chain]}"
        for chain in size.chains
        if handled[chain] > concerned[chain]
    ]
    verdict.unexplained.extend(too_many)
    figures = {
        **verdict.figures(),
        "void": len(voids),
        "void_reasons": sorted(set(voids.values())),
        **_happened(outcome, size),
        "config_blocks": sum(copy.configs for copy in held.held.values()),
        "records_handled_by_chain": handled,
        "records_that_concern_the_chain": {chain: concerned[chain] for chain in size.chains},
        "records_in_all_logs": concerned[""],
        "violations": len(verdict.violations),
        "bundles_per_s": round(len(held.journal.acknowledged) / outcome.send_s, 1),
        "seconds": round(time.monotonic() - began, 1),
    }
    return figures, verdict


def _happened(outcome: BanksOutcome, size: Service) -> dict[str, int]:
    kinds = [happened.kind for happened in outcome.happened]
    killed = {f"{kind}_kills": kinds.count(kind) for kind in (NODE, COLLECTOR, BROKER, CLIENT)}
    return {"nodes": size.nodes, "sets": len(size.sets), **killed, "configs": kinds.count(CONFIG)}


async def _voids(world: OrdererDeployment, held: ArmOutcome) -> dict[int, str]:
    """Ask the nodes for the fate of each acknowledged bundle that is missing; void: the reason."""
    reasons = {}
    for number in held.missing:
        bundle_id = bytes.fromhex(held.journal.acknowledged[number])
        for address in world.nodes.addresses:
            async with Client([address], user()) as client:
                try:
                    fate = await client.status(bundle_id, wait_s=_FATE_S)
                except AmcastError:  # the next node may know
                    continue
            if fate.kind == "void" and isinstance(fate.reason, VoidReason):
                reasons[number] = fate.reason.name
                break
    return reasons


def _concerned(world: OrdererDeployment) -> dict[str, int]:
    """Count the records in the logs of the sets with each chain; under "", in all logs."""
    driver = open_driver("librdkafka", world.bootstrap)
    try:
        logs = world.plan.logs
        ends = driver.last_stable_offsets([log_partition(log) for log in logs])
    finally:
        driver.close()
    stored = {log.name: ends[log_partition(log)] for log in logs}
    chains: Sequence[str] = [*world.nodes.service.chains, ""]
    return {
        chain: sum(stored[log.name] for log in logs if not chain or chain in log.to)
        for chain in chains
    }


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {number:,}" for name, number in value.items())
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return (
        f"{value:,}"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else ("yes" if value else "no")
    )
