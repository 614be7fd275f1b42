"""`amcast osn demo`: four banks, transfers between them as bundles, and as separate transactions.

The demo starts a broker, collectors and three nodes, and sends the same transfers in two ways at
the same time, while it kills nodes, a collector, the broker and the clients. Then each bank adds up
its own blocks, and the judges compare them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from bench.harness.interrupts import end_at_signals
from bench.osn.client import BUNDLES, SEPARATE
from bench.osn.clients import Journal
from bench.osn.faults import BROKER, CLIENT, COLLECTOR, CONFIG, NODE, DueFault, Happened
from bench.osn.nodes import Service, deployed
from bench.osn.run import BATCH_TIMEOUT, Load, SendingArm, run
from bench.osn.verdicts import JudgedArm, judged, refuse_violations
from topology.output import Output, OutputOption

app = typer.Typer()

BANKS = ("bank-a", "bank-b", "bank-c", "bank-d")
_SEPARATE = {BUNDLES: "", SEPARATE: "-separate"}
_RATE = 90.0  # transfers/s of each arm: on two cores nodes keep up, and have reserves after a kill
_FAULTS = (
    DueFault(0.12, NODE, 0),
    DueFault(0.25, CLIENT),
    DueFault(0.34, COLLECTOR, 0),
    DueFault(0.45, NODE, 1),
    DueFault(0.55, CLIENT),
    DueFault(0.62, BROKER),
    DueFault(0.85, NODE, 2),
    DueFault(0.93, CLIENT),
)


@app.command()
def demo(
    *,
    transfers: Annotated[
        int, typer.Option("--transfers", min=100, help="How many transfers each way.")
    ] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Which transfers are made.")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move money between four banks' chains while everything is killed, and compare the books.

    Exit code 0: nothing is torn, all agree, money is conserved; 3: a guarantee is violated.
    """
    began = time.monotonic()
    end_at_signals()
    say = Console(stderr=True)
    arms = [_arm(BUNDLES), _arm(SEPARATE)]
    chains = [chain for arm in arms for chain in arm.chains]
    size = Service(chains, arms[0].sets, messages_max=50, timeout=BATCH_TIMEOUT)
    load = Load(transfers, _RATE, seed, faults=_FAULTS)
    with deployed(size, say.print) as world:
        with Progress(
            TextColumn("{task.description:>10}"),
            BarColumn(),
            MofNCompleteColumn(),
            console=say,
            disable=not say.is_terminal,
        ) as bars:
            tasks = {arm.name: bars.add_task(arm.name, total=transfers) for arm in arms}

            def show(journals: Mapping[str, Journal]) -> None:
                for name, journal in journals.items():
                    bars.update(tasks[name], completed=journal.begun)

            outcome = run(world, arms, load, say=say.print, show=show)
        say.print("reading the blocks …")
    verdicts = [judged(outcome.arms[arm.name]) for arm in arms]
    seconds = round(time.monotonic() - began, 1)
    if output is Output.JSON:
        document: dict[str, Any] = {arm.name: arm.figures() for arm in verdicts}
        kills = [happened.what for happened in outcome.happened]
        extra = {"schema_version": 1, "killed": kills, "seconds": seconds}
        typer.echo(json.dumps({**document, **extra}))
    else:
        _print(verdicts, outcome.happened, seconds)
    refuse_violations(verdicts)


def _arm(name: str) -> SendingArm:
    chains = [bank + _SEPARATE[name] for bank in BANKS]
    return SendingArm(name, chains, [*combinations(chains, 2), tuple(chains)])


def _print(arms: Sequence[JudgedArm], happened: Sequence[Happened], seconds: float) -> None:
    kills = ", ".join(each.what for each in happened if each.kind != CONFIG)
    typer.echo(f"killed (SIGKILL) and restarted meanwhile: {kills}; {seconds:g} s in all\n")
    table = Table("", "as bundles", "as separate transactions", box=None, pad_edge=False)
    for words, values in _rows(arms):
        table.add_row(words, *values)
    Console(highlight=False, width=100).print(table)
    typer.echo(f"\n{_sentence(arms)}")


def _rows(arms: Sequence[JudgedArm]) -> Sequence[tuple[str, list[str]]]:
    figures = [arm.figures() for arm in arms]
    rows = [
        ("transfers that a client began", [f"{each['transfers_begun']:,}" for each in figures]),
        (
            "  acknowledged to it before it was killed",
            [f"{each['transfers_acknowledged']:,}" for each in figures],
        ),
        (
            "  in a bank's blocks, acknowledged or not",
            [f"{each['transfers_in_blocks']:,}" for each in figures],
        ),
        ("  torn: not at all of their banks", [f"{each['torn']:,}" for each in figures]),
        (
            "pairs of banks that agree on an order",
            [f"{each['pairs_agreeing']} of {each['pairs']}" for each in figures],
        ),
        (
            "one order of all transfers exists",
            ["yes" if each["acyclic"] else "no" for each in figures],
        ),
        ("common points of the banks' books", [f"{each['common_points']:,}" for each in figures]),
        ("  where money is missing", [f"{each['common_points_off']:,}" for each in figures]),
        (
            "money in all banks, of what was opened",
            [f"{each['money']:,} of {each['money_opened']:,}" for each in figures],
        ),
    ]
    for bank in BANKS:
        balances = [f"{arm.books.balances[bank + _SEPARATE[arm.name]]:,}" for arm in arms]
        rows.append((f"  balance of {bank}, from its own blocks", balances))
    nodes = ["the same" if not arm.forks else "DIFFERENT" for arm in arms]
    rows.append(("blocks at the three nodes", nodes))
    return rows


def _sentence(arms: Sequence[JudgedArm]) -> str:
    bundles, separate = arms
    if bundles.violations:
        return "A guarantee of bundles is violated; the witnesses follow."
    torn = len(separate.verdict.torn)
    return (
        "As bundles, every transfer is at all of its banks or at none, and all banks agree.\n"
        f"As separate transactions, {torn} transfers are torn, each by the kill of a client between"
        " its parts,\nand the banks do not agree on the order of what they have in common."
    )
