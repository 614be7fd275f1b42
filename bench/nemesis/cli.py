"""`amcast bench nemesis`: real faults on a whole system, and whether every guarantee held.

Exit codes: 0 all holds, 1 the system did not recover from a fault or a program of it failed, 3 a
guarantee was violated; then the folder with the histories is kept, and named.
"""

from __future__ import annotations

import fnmatch
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.harness import facts
from bench.nemesis import report
from bench.nemesis.faults.catalogue import usable
from bench.nemesis.faults.kinds import FaultKind
from bench.nemesis.network import Network, alone, own_namespace
from bench.nemesis.run import run
from bench.nemesis.schedule import Planned, schedule
from bench.nemesis.system import HOSTS, System
from multicast.errors import UsageError
from multicast.verification.report import OrderViolation
from topology.output import Output, OutputOption

app = typer.Typer()
_MINUTES = 8.0
_FAULTS_MAX = 10_000
_SHOWN = 60


@app.command()
def nemesis(
    *,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes", min=0.1, help=f"How long; default {_MINUTES:g}, or for --faults."
        ),
    ] = None,
    faults: Annotated[
        int | None, typer.Option("--faults", min=1, help="End after so many faults.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Repeats a run's schedule; default: a new one.")
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=1, help="Multicasts a second, of all producers.")
    ] = 300.0,
    kinds: Annotated[
        str | None, typer.Option("--kinds", help="Only these kinds of faults, by commas.")
    ] = None,
    without: Annotated[
        str | None, typer.Option("--without", help="Not these kinds, by commas; aside-* is many.")
    ] = None,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="Without namespaces: no fault of the network.")
    ] = False,
    patience: Annotated[
        float, typer.Option("--patience", min=1, help="Seconds that a recovery may take.")
    ] = 60.0,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Keep histories and logs in this new folder.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the schedule, and do nothing.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Break a whole system in every way we know, one fault after the other, and judge it.

    Three brokers, instances of collectors, producers and consumers run in network namespaces of
    their own (needs root and iproute2). A seed gives the same schedule each time.
    """
    if not (loopback or show or own_namespace()):
        _go_alone()
    chosen = _kinds(kinds, without, frozenset() if loopback else frozenset({"network"}))
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    planned = schedule(seed, [one.card for one in chosen.values()], faults=faults or _FAULTS_MAX)
    if show:
        report.tell_schedule(planned[: faults or _SHOWN], Console(width=100))
        return
    longest_s = 60 * (minutes or (_MINUTES if faults is None else 24 * 60))
    limits = {"seconds_max": longest_s, "patience_s": patience}
    told = _run(planned, chosen, keep, limits, seed=seed, rate=rate, loopback=loopback)
    if output is Output.JSON:
        typer.echo(json.dumps(told, indent=1))
    else:
        report.tell(told, Console(width=100))
    if told["totals"]["violations"]:
        raise typer.Exit(OrderViolation.exit_code)
    if told["wrong"]:
        raise typer.Exit(1)


def _run(
    planned: Sequence[Planned],
    chosen: Mapping[str, FaultKind],
    keep: Path | None,
    limits: Mapping[str, float],
    *,
    seed: int,
    rate: float,
    loopback: bool,
) -> dict[str, Any]:
    """Run it in a folder that goes again, unless there is something in it to look at."""
    say = Console(stderr=True)

    def progress(what: str) -> None:
        say.print(what, highlight=False, markup=False, soft_wrap=True)

    signal.signal(signal.SIGTERM, _interrupt)
    folder = _folder(keep)
    progress(f"seed {seed}")
    facts.at_start()
    kept = keep is not None
    try:
        with ExitStack() as stack:
            network = None if loopback else stack.enter_context(Network(HOSTS))
            system = System(
                folder, rate=rate, network=network, temporary=keep is None, say=progress
            )
            outcome = run(system, planned, chosen, say=progress, **limits)
        kept = kept or bool(outcome.violated or outcome.wrong)
        return report.document(
            outcome,
            seed=seed,
            rate=rate,
            folder=str(folder) if kept else None,
            arguments=sys.argv[3:],
        )
    except Exception:
        kept = True
        progress(f"what it wrote is in {folder}")
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _go_alone() -> None:
    """Become the same command in namespaces of its own; mounts, too: a fault needs a small disk."""
    command = alone([sys.executable, *sys.orig_argv[1:]])
    command.insert(command.index("--"), "--mount")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def _kinds(asked: str | None, without: str | None, having: frozenset[str]) -> dict[str, FaultKind]:
    known = {one.name: one for one in usable(having)}
    chosen = set(known) if asked is None else _matching(known, asked)
    chosen -= set() if without is None else _matching(known, without)
    if not chosen:
        raise UsageError("no kind of fault is left")
    return {name: known[name] for name in sorted(chosen)}


def _matching(known: Collection[str], patterns: str) -> set[str]:
    found: set[str] = set()
    for pattern in patterns.split(","):
        matching = fnmatch.filter(known, pattern)
        if not matching:
            raise UsageError(
                f"there is no kind {pattern or 'of no name'}; there are {', '.join(known)}"
            )
        found.update(matching)
    return found


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="amcast-nemesis-"))
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{keep} cannot be made: {error.strerror or error}") from error
    return keep.absolute()


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt
