"""`amcast topology`: the verbs that need no cluster.

Results go to stdout, progress and errors to stderr. `-o json` prints one JSON document. Exit codes:
0 success, 1 failure, 2 bad input, 6 there are changes to make (only with --detailed-exitcode).
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NoReturn

import typer

from topology import draw, report
from topology.advice import advised
from topology.chains import chain_file
from topology.changes import (
    compared,
    differences,
    effects,
    with_kept_names,
    with_rates,
    with_running_logs,
)
from topology.check import PlanRejected, TreeFigures, check, figures
from topology.files import FileExists, failure_text, refuse_existing_of, why_unreadable, write_text
from topology.hysteresis import MARGIN_DEFAULT, Weighed, as_wanted, weighed
from topology.interests import NUMBER_MAX, InterestFile, InvalidInterests, parse, refuse_names
from topology.output import SECONDS_MAX, ForceOption, Output, OutputOption
from topology.planner.solver import Infeasible, solve
from topology.planner.watch import Watch
from topology.proof import proven
from topology.safety import judged
from topology.tree import PHI_DEFAULT, InvalidPlan, Plan

app = typer.Typer(
    no_args_is_help=True,
    help="Plan, check and draw trees of collectors, and apply one to a cluster.",
)

CHANGES_TO_MAKE = 6  # exit code; 1 to 5 are errors, see `multicast.errors`


InterestPath = Annotated[
    Path, typer.Argument(help="Interest file (TOML): who reads what.", show_default=False)
]
InterestPathOrNone = Annotated[
    Path | None, typer.Argument(help="Interest file (TOML): who reads what.", show_default=False)
]
ChainsOption = Annotated[
    Path | None,
    typer.Option(
        "--chains", help="Plan for the chains of this file (TOML), instead of an interest file."
    ),
]
PlanPath = Annotated[Path, typer.Argument(help="Plan file (JSON).", show_default=False)]
PlanPathOrNone = Annotated[Path | None, typer.Argument(help="Plan (JSON).", show_default=False)]
_EFFORT_MAX = 1e6  # a search of a second at effort 1 would take days
FromClusterOption = Annotated[
    bool,
    typer.Option("--from-cluster", help="Compare with the running epoch, and use measured rates."),
]
WindowOption = Annotated[
    float,
    typer.Option(
        help="With --from-cluster: seconds to measure the rates for.", min=0.1, max=SECONDS_MAX
    ),
]
BootstrapOption = Annotated[
    str | None,
    typer.Option("--bootstrap", "-b", help="With --from-cluster: the brokers' addresses."),
]
ShownFromClusterOption = Annotated[
    bool, typer.Option("--from-cluster", help="Show the plan in force, instead of a file.")
]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="With --from-cluster: the topic [A; AMCAST_TOPIC]"),
]
DotOption = Annotated[
    Path | None, typer.Option("--dot", help="Write a drawing to this file (Graphviz).")
]
OutOption = Annotated[
    Path | None, typer.Option("--out", readable=False, help="Write the plan to this file (JSON).")
]
PhiOption = Annotated[
    float,
    typer.Option(
        help="Price of a message handled for others (foreign), in hops, the collectors on a "
        "message's way; 0.1: as few hops as can be.",
        min=0,
        max=NUMBER_MAX,
    ),
]
EffortOption = Annotated[
    float,
    typer.Option(
        help="Factor for the steps of large searches: 5 takes five times as long.",
        min=0.01,
        max=_EFFORT_MAX,
    ),
]
ProveOption = Annotated[
    bool, typer.Option("--prove", help="Prove a lower bound of the cost of all trees.")
]
AgainstOption = Annotated[
    Path | None,
    typer.Option("--against", help="Compare with this plan, that of the running epoch (JSON)."),
]
TicketsOption = Annotated[
    bool | None,
    typer.Option(
        "--tickets/--no-tickets",
        help="Whether producers write the order of their messages (docs/protocol.md). Default: "
        "as in the running epoch, else yes.",
    ),
]
MarginOption = Annotated[
    float | None,
    typer.Option(
        help=f"With --from-cluster (default {MARGIN_DEFAULT:.0%}) or --against (default 0%): the "
        "running tree stays unless the new plan costs at least this many percent less.",
        min=0,
        max=100,
    ),
]


def fail(sentence: str, exit_code: int) -> NoReturn:
    """Print one sentence to stderr and end the command with an exit code."""
    sys.stderr.write(failure_text(sentence))
    raise typer.Exit(exit_code)


def read_interests(path: Path, read: Callable[[str], InterestFile] = parse) -> InterestFile:
    """Read an interest file; an unusable one ends the command with exit code 2."""
    try:
        return read(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as wrong:
        fail(f"cannot read {path}: {why_unreadable(wrong)}", 2)
    except InvalidInterests as wrong:
        fail(f"{path}: {wrong}", 2)


def read_plan(path: Path) -> Plan:
    """Read and check a plan file; a rejected plan ends the command with exit code 2."""
    try:
        plan = Plan.parse(path.read_bytes())
        refuse_names(plan)
        check(plan)
    except (OSError, UnicodeDecodeError) as wrong:
        fail(f"cannot read {path}: {why_unreadable(wrong)}", 2)
    except (InvalidPlan, PlanRejected, ValueError) as wrong:
        fail(f"{path}: {wrong}", 2)
    return plan


@app.command("check")
def check_command(file: InterestPath, output: OutputOption = Output.TABLE) -> None:
    """Tell whether the interests are acyclic; if not, show a cycle and the least change."""
    interests = read_interests(file)
    verdict = judged(interests)
    advice = None if verdict.acyclic else advised(interests)
    if output is Output.JSON:
        report.show(report.written(report.verdict_document(interests, verdict, advice)))
    else:
        report.verdict(interests, verdict, advice)


@app.command("plan")
def plan_command(  # noqa: PLR0917 - a command line, not a call
    file: InterestPathOrNone = None,
    chains: ChainsOption = None,
    output: OutputOption = Output.TABLE,
    out: OutOption = None,
    against: AgainstOption = None,
    phi: PhiOption = PHI_DEFAULT,
    effort: EffortOption = 1.0,
    prove: ProveOption = False,  # noqa: FBT002 - a flag
    dot_file: DotOption = None,
    detailed_exitcode: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--detailed-exitcode", help="Exit with 6 if the plan changes anything.")
    ] = False,
    from_cluster: FromClusterOption = False,  # noqa: FBT002 - a flag
    window: WindowOption = 5.0,  # at 100 messages/s the rate is then right to about 5 %
    bootstrap: BootstrapOption = None,
    margin: MarginOption = None,
    tickets: TicketsOption = None,
    force: ForceOption = False,  # noqa: FBT002 - a flag
) -> None:
    """Find the cheapest tree of collectors for an interest file or chains, and print it."""
    _refuse_existing([out, dot_file], force=force)
    interests = _read_input(file, chains)
    _refuse_together(against, margin, from_cluster=from_cluster)
    running = None if against is None else read_plan(against)
    cluster_id = "" if running is None else running.cluster_id
    if from_cluster:
        running, cluster_id, interests = _measured(interests, bootstrap, window)
    elif running is not None:
        interests = with_running_logs(interests, running)
    started = perf_counter()
    plan, how = _solved(
        interests,
        prove=prove,
        cluster_id=cluster_id,
        base_epoch=0 if running is None else running.epoch,
        phi=phi,
        effort=effort,
    )
    report.solved(how, perf_counter() - started)
    report.dropped(interests)
    choice = None
    if running is not None:
        least = MARGIN_DEFAULT if from_cluster else 0.0
        least = least if margin is None else margin / 100
        choice = weighed(running, with_kept_names(running, plan), margin=least)
        plan = choice.chosen
    plan, choice = as_wanted(plan, choice, tickets=tickets)
    check(plan)
    if out is not None:
        _write(out, report.written(plan.to_json()), force=force)
    _draw(plan if choice is None else choice.shown, dot_file, force=force)
    _print_planned(plan, choice, output)
    if detailed_exitcode and (running is None or differences(running, plan)):
        raise typer.Exit(CHANGES_TO_MAKE)


def _read_input(file: Path | None, chains: Path | None) -> InterestFile:
    """Read the interest file or the chain file, whichever was given."""
    if file is not None and chains is None:
        return read_interests(file)
    if chains is not None and file is None:
        return read_interests(chains, chain_file.parse)
    fail("plan needs one input: give an interest file, or --chains with a chain file", 2)


def _refuse_together(against: Path | None, margin: float | None, *, from_cluster: bool) -> None:
    """End the command if two options exclude, or miss, each other."""
    if from_cluster and against is not None:
        fail("--from-cluster replaces --against: leave one of the two out", 2)
    if margin is not None and against is None and not from_cluster:
        fail("--margin compares with a running tree: give --from-cluster or --against", 2)


def _measured(
    interests: InterestFile, bootstrap: str | None, window_s: float
) -> tuple[Plan | None, str, InterestFile]:
    """Give the running plan, the cluster's ID, and the interests with its logs and their rates."""
    running, rates, cluster_id, partition_count = _ask_cluster(interests.topic, bootstrap, window_s)
    interests = with_rates(interests, rates)
    if running is not None:
        interests = with_running_logs(interests, running)
    _compare_partitions(interests, partition_count)
    return running, cluster_id, interests


def _print_planned(plan: Plan, choice: Weighed | None, output: Output) -> None:
    """Print a plan, and how it differs from the running one."""
    shown = plan if choice is None else choice.shown
    if output is Output.JSON:
        document = plan.to_json()
        document["choice"] = None if choice is None else report.choice_document(choice)
        report.show(report.written(document))
        return
    _print(shown, figures(shown), output)
    if choice is not None:
        report.show("")
        report.choice(choice)
        report.show("")
        before = choice.before if choice.tree is None else choice.tree
        report.comparison(differences(choice.before, shown), compared(before, shown))
        for line in effects(choice.before, shown):
            report.show(line)


@app.command("show")
def show_command(  # noqa: PLR0917 - a command line, not a call
    file: PlanPathOrNone = None,
    output: OutputOption = Output.TABLE,
    dot_file: DotOption = None,
    force: ForceOption = False,  # noqa: FBT002 - a flag
    from_cluster: ShownFromClusterOption = False,  # noqa: FBT002 - a flag
    bootstrap: BootstrapOption = None,
    topic: TopicOption = None,
) -> None:
    """Check a plan, of a file or the one in force, and print it as a tree."""
    _refuse_existing([dot_file], force=force)
    plan = _plan_to_show(file, bootstrap, topic, from_cluster=from_cluster)
    _draw(plan, dot_file, force=force)
    _print(plan, figures(plan), output)


def _plan_to_show(
    file: Path | None, bootstrap: str | None, topic: str | None, *, from_cluster: bool
) -> Plan:
    """Give the plan of the file, or the one in force, whichever was asked for."""
    if (file is None) != from_cluster:
        fail("show needs one plan: give a plan file, or --from-cluster for the one in force", 2)
    if file is not None:
        return read_plan(file)
    plan, *_ = _ask_cluster(topic, bootstrap, None)
    assert plan is not None, "without a window a missing plan is an error"
    try:
        check(plan)
    except PlanRejected as wrong:
        fail(f"the plan in force: {wrong}", 1)
    return plan


@app.command("diff")
def diff_command(
    old: PlanPath,
    new: PlanPath,
    output: OutputOption = Output.TABLE,
    detailed_exitcode: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--detailed-exitcode", help="Exit with 6 if the plans differ.")
    ] = False,
) -> None:
    """List what changes from one plan to another, with the figures before and after."""
    before, after = read_plan(old), read_plan(new)
    changes, rows = differences(before, after), compared(before, after)
    if output is Output.JSON:
        report.show(report.written(report.comparison_document(changes, rows)))
    else:
        report.comparison(changes, rows)
    if detailed_exitcode and changes:
        raise typer.Exit(CHANGES_TO_MAKE)


def _print(plan: Plan, figures: TreeFigures, output: Output) -> None:
    if output is Output.JSON:
        report.show(report.written(plan.to_json()))
    else:
        report.tree(plan, figures)
        report.objective(plan, figures)


def _ask_cluster(
    topic: str | None, bootstrap: str | None, window_s: float | None
) -> tuple[Plan | None, dict[str, float], str, int]:
    """Give the running plan, rates, the cluster's ID, and the topic's partition count.

    Without a window nothing is measured.
    This room may not import code that talks to Kafka, so it loads an entry point.
    """
    entries = entry_points(group="amcast.cluster", name="running")
    if not entries:
        fail(
            "--from-cluster cannot be used: this installation does not register the entry point "
            "'running' of group 'amcast.cluster'; install the package amcast again",
            2,
        )
    (entry,) = entries
    answer: tuple[Plan | None, dict[str, float], str, int] = entry.load()(
        topic, bootstrap=bootstrap, window_s=window_s
    )
    return answer


def _solved(
    interests: InterestFile, *, prove: bool, effort: float, **options: Any
) -> tuple[Plan, tuple[str, ...]]:
    """Find a plan, and its gap if that is wanted; also give how. Ctrl-C gives the best so far."""
    with _interruptible() as stopped, report.progress() as show:
        watch = Watch(show, stopped)
        try:
            solution = solve(interests, effort=effort, watch=watch, **options)
            plan = proven(solution, watch=watch) if prove else solution.plan
            check(plan)
        except (Infeasible, PlanRejected) as wrong:
            fail(str(wrong), 1)
    if stopped():
        sys.stderr.write("interrupted: this is the best plan so far\n")
    return plan, tuple(part.how for part in solution.parts)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """Let the first Ctrl-C end the search early, and the second one the command."""
    pressed: list[int] = []

    def press(number: int, _frame: object) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _compare_partitions(interests: InterestFile, partition_count: int) -> None:
    """Refuse what `apply` would refuse, and warn where `apply` would have to grow the topic."""
    wanted = len(interests.partitions)
    if partition_count > wanted:
        fail(
            f"topic {interests.topic} has {partition_count} partitions, but the interest file and "
            f"the running plan name {wanted}: no consumer would get the messages in the others; "
            f"name all {partition_count} in the interest file",
            2,
        )
    if 0 < partition_count < wanted:
        sys.stderr.write(
            f"topic {interests.topic} has {partition_count} partitions and the plan needs "
            f"{wanted}: applying it needs --add-partitions, after which producers that choose the "
            f"partition by the key send some keys to other partitions\n"
        )


def _draw(plan: Plan, dot_file: Path | None, *, force: bool) -> None:
    """Write the drawing if it has a path."""
    if dot_file is not None:
        _write(dot_file, draw.dot(plan, figures(plan)), force=force)


def _refuse_existing(files: Sequence[Path | None], *, force: bool) -> None:
    """End the command before the search starts if one of its output files exists."""
    try:
        refuse_existing_of(files, force=force)
    except FileExists as wrong:
        fail(str(wrong), 2)


def _write(path: Path, text: str, *, force: bool) -> None:
    try:
        write_text(path, text, force=force)
    except FileExists as wrong:
        fail(str(wrong), 2)
    except OSError as wrong:
        fail(f"cannot write {path}: {wrong.strerror}", 2)
