"""`amcast bench nemesis`: inject real faults into a whole system, and verify every guarantee.

Exit codes: 0 every guarantee holds; 1 the system did not recover from a fault, or one of its
programs failed; 3 a guarantee was violated. With 1 and 3 the folder with the histories is kept, and
its path is printed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bench.harness import facts
from bench.harness.interrupts import end_at_signals
from bench.nemesis import report
from bench.nemesis.faults.catalogue import usable
from bench.nemesis.faults.kinds import FaultKind
from bench.nemesis.network import Network, in_own_namespace, own_namespace
from bench.nemesis.run import run
from bench.nemesis.schedule import Planned, schedule
from bench.nemesis.system import HOSTS, System
from multicast.errors import UsageError
from multicast.local.cluster import DEFAULT_VERSION
from multicast.local.installation import install
from multicast.verification.report import OrderViolation
from topology.output import Output, OutputOption

app = typer.Typer()
_MINUTES = 8.0  # the default length of a run: about 25 faults (measured: 189 in an hour)
_FAULTS_MAX = 10_000  # the length of a schedule without --faults: two days at that pace
_SHOWN_MAX = 60  # faults that --show prints by default: one screen


@app.command()
def nemesis(
    *,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            min=0.1,
            help=f"Length; default {_MINUTES:g}; with --faults: a day at most.",
        ),
    ] = None,
    faults: Annotated[
        int | None, typer.Option("--faults", min=1, help="End after so many faults.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Repeat the schedule of a run; default: random.")
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=1, help="Multicasts a second, beside the steady logs.")
    ] = 300.0,
    kinds: Annotated[
        str | None, typer.Option("--kinds", help="Only these kinds of faults, comma-separated.")
    ] = None,
    without: Annotated[
        str | None,
        typer.Option("--without", help="Not these kinds, comma-separated; patterns like aside-*."),
    ] = None,
    loopback: Annotated[
        bool, typer.Option("--loopback", help="Use no namespaces, and so no network faults.")
    ] = False,
    patience: Annotated[
        float, typer.Option("--patience", min=1, help="The longest allowed recovery, in seconds.")
    ] = 60.0,
    keep: Annotated[
        Path | None, typer.Option("--keep", help="Keep histories and logs in this new folder.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Print the schedule, and inject nothing.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Inject one fault after the other into a whole system, and verify every guarantee.

    Three brokers, instances of collectors, producers and consumers run in separate network
    namespaces (needs root and iproute2). Equal seeds give equal schedules.
    """
    if not (loopback or show or own_namespace()):
        _enter_namespaces()
    chosen = _kinds(kinds, without, frozenset() if loopback else frozenset({"network"}))
    seed = random.SystemRandom().getrandbits(32) if seed is None else seed
    planned = schedule(seed, list(chosen.values()), faults=faults or _FAULTS_MAX)
    if show:
        report.tell_schedule(planned[: faults or _SHOWN_MAX], Console(width=100))
        return
    longest_s = 60 * (minutes or (_MINUTES if faults is None else 24 * 60))
    limits = {"seconds_max": longest_s, "patience_s": patience}
    document = _run(planned, chosen, keep, limits, rate=rate, seed=seed, loopback=loopback)
    if output is Output.JSON:
        typer.echo(json.dumps(document, indent=1))
    else:
        report.tell(document, Console(width=100))
    if document["totals"]["violations"]:
        raise typer.Exit(OrderViolation.exit_code)
    if document["wrong"]:
        raise typer.Exit(1)


def _run(
    planned: Sequence[Planned],
    chosen: Mapping[str, FaultKind],
    keep: Path | None,
    limits: Mapping[str, float],
    *,
    rate: float,
    seed: int,
    loopback: bool,
) -> dict[str, Any]:
    """Run the faults; delete the folder afterwards unless it is wanted or something went wrong."""
    say = Console(stderr=True)

    def progress(what: str) -> None:
        say.print(what, highlight=False, markup=False, soft_wrap=True)

    end_at_signals()
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
        progress(f"the run failed; its histories and logs are in {folder}")
        raise
    finally:
        if not kept:
            shutil.rmtree(folder, ignore_errors=True)


def _enter_namespaces() -> None:
    """Restart this command in new namespaces; of mounts, too: one fault mounts a small disk."""
    command = in_own_namespace([sys.executable, *sys.orig_argv[1:]])
    install(DEFAULT_VERSION, progress=Console(stderr=True).print)  # no registry is reached in there
    command.insert(command.index("--"), "--mount")
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


def _kinds(
    patterns: str | None, without: str | None, having: frozenset[str]
) -> dict[str, FaultKind]:
    known = {each.kind: each for each in usable(having)}
    chosen = set(known) if patterns is None else _matching(known, patterns)
    chosen -= set() if without is None else _matching(known, without)
    if not chosen:
        raise UsageError("--kinds and --without leave no kind of fault; name fewer in --without")
    return {name: known[name] for name in sorted(chosen)}


def _matching(known: Collection[str], patterns: str) -> set[str]:
    names: set[str] = set()
    for pattern in patterns.split(","):
        matching = fnmatch.filter(known, pattern)
        if not matching:
            raise UsageError(
                f"there is no kind of fault {pattern or '(empty name)'}; known: {', '.join(known)}"
            )
        names.update(matching)
    return names


def _folder(keep: Path | None) -> Path:
    if keep is None:
        return Path(tempfile.mkdtemp(prefix="amcast-nemesis-"))
    try:
        keep.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"cannot create {keep}: {error.strerror or error}") from error
    return keep.absolute()
