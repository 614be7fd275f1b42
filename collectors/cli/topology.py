"""The verbs of `amcast topology` that need a cluster: apply, recover, verify, history, rollback.

Results go to stdout, progress to stderr. Exit code 1: the deployment differs from what was applied,
or collectors of a new epoch do not run; 4: time-out; 5: conflict with another plan.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from collectors.cli.cluster import cluster_of, control_of, say
from collectors.cli.main import describe
from collectors.cli.recover import recover_damaged
from collectors.doctor.checks import of_unordered
from collectors.doctor.finding import Check, Weight
from collectors.doctor.inspection import inspect_topics, of_settings
from collectors.reconfiguration.apply import Applied, apply, control_state, same_layout
from collectors.reconfiguration.drain import some
from multicast.cli.options import WAIT_RANGE, Bootstrap, DriverName, Topic
from multicast.drivers.kafka import Admin
from multicast.errors import AmcastError, UsageError
from multicast.settings import settings
from topology.changes import effects
from topology.files import FileExists, write_text
from topology.interests import refuse_names
from topology.output import Output, OutputOption
from topology.planner.solver import Infeasible
from topology.rollback import back
from topology.tree import InvalidPlan, Plan

app = typer.Typer()
app.command("recover")(recover_damaged)
PlanFile = Annotated[Path, typer.Argument(help="The plan, as 'amcast topology plan' wrote it.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait.", **WAIT_RANGE)]
# A change of 200 collectors takes about 8 s (docs/operating.md). The next run finishes one that was
# too short.
_TIMEOUT_S = 30.0
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]


@app.command("apply")
def apply_plan(
    file: PlanFile,
    *,
    bootstrap: Bootstrap = None,
    driver: DriverName = None,
    timeout: Timeout = _TIMEOUT_S,
    uncovered: Annotated[
        bool, typer.Option("--uncovered", help="Accept that the plan leaves out consumers.")
    ] = False,
    add_partitions: Annotated[
        bool,
        typer.Option(
            "--add-partitions",
            help="Add partitions to the topic; producers that choose the partition by the key then "
            "send some keys to other partitions.",
        ),
    ] = False,
    rollback: Annotated[
        Path | None,
        typer.Option("--rollback", help="File for the rollback plan; default: FILE.rollback."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Check everything, say what would change; change it not."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Ask nothing, also where a terminal is.")
    ] = False,
    force: Force = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create the plan's topics and start its epoch, under load; to run it twice does no harm.

    On a terminal it says who pauses, and asks, before it changes a running topic. The next run
    finishes an interrupted one. A refused plan creates no topic; refused are plans with fewer
    partitions than their topic, and (without --add-partitions) with more. Exits with 1 if
    messages wait for collectors of an epoch after the first that do not run, with 4 if the running
    epoch did not end in time (run it again), and with 5 if the plan was made for another cluster or
    epoch, or another operator was quicker.
    """
    plan = read_plan(file)
    chosen = settings(bootstrap=bootstrap, topic=plan.topic, driver=driver)
    with cluster_of(chosen) as (opened, admin):
        state = control_state(opened, plan.topic)
        running = state.plan() if state.epoch else None
        if dry_run and running is not None and same_layout(running, plan):
            typer.echo(f"epoch {running.epoch} of topic {plan.topic} runs already")
            return

        def before_change() -> None:
            _tell_and_ask(running, plan, dry_run=dry_run, asks=not yes)
            if running is not None:
                back_file = rollback or _way_back(file)
                is_ours = rollback is None and _is_over(back_file, running)
                forced = force or is_ours
                _write_rollback(back_file, running, plan, force=forced, option="--rollback")

        done = apply(
            opened,
            admin,
            plan,
            timeout_s=timeout,
            uncovered=uncovered,
            add_partitions=add_partitions,
            say=say,
            before_change=before_change,
        )
    _report(done, output)


def _tell_and_ask(running: Plan | None, plan: Plan, *, dry_run: bool, asks: bool) -> None:
    """Say what a change would do, and end the command if it is not wanted.

    It asks on a terminal only, and before the first plan nothing.
    """
    asks = asks and running is not None and sys.stdin.isatty() and sys.stderr.isatty()
    if running is not None and (dry_run or asks):
        for line in effects(running, plan):
            say(line)
    if asks and not dry_run:
        # What `typer.confirm` asks with would write a blank to stdout.
        sys.stderr.write("apply it? [y/N] ")
        sys.stderr.flush()
        asks = sys.stdin.readline().strip().lower() not in ("y", "yes")
    if dry_run or asks:
        typer.echo("nothing was changed")
        raise typer.Exit(0 if dry_run else 1)


def _way_back(file: Path) -> Path:
    """Name the rollback plan of a plan file; that of a rollback leads forward again."""
    base = file.name.removesuffix(".forward")
    if base.endswith(".rollback"):
        return file.with_name(f"{base.removesuffix('.rollback')}.forward")
    return file.with_name(f"{base}.rollback")


def _is_over(file: Path, running: Plan) -> bool:
    """Whether a file holds a rollback plan that nobody can apply any more."""
    try:
        return read_plan(file).epoch <= running.epoch
    except (OSError, UsageError):
        return False


def _write_rollback(file: Path, running: Plan, plan: Plan, *, force: bool, option: str) -> None:
    """Write the rollback plan: after the change it may be needed quickly; raises `UsageError`."""
    try:
        text = json.dumps(back(running, plan).to_json(), indent=2) + "\n"
        write_text(file, text, force=force, instead=option)
    except FileExists as error:
        raise UsageError(str(error)) from error
    except Infeasible as error:
        raise UsageError(f"no rollback can be planned: {error}") from error
    say(f"to roll back: amcast topology apply {file}")


def _report(done: Applied, output: Output) -> None:
    if output is Output.JSON:
        document = {
            "schema_version": 1,
            "topic": done.plan.topic,
            "epoch": done.plan.epoch,
            "changed": done.changed,
            "topics_made": list(done.topics_made),
            "collectors_not_running": list(done.not_running),
        }
        typer.echo(json.dumps(document))
    else:
        state = "runs" if done.changed else "runs already; nothing changed"
        typer.echo(f"epoch {done.plan.epoch} of topic {done.plan.topic} {state}")
    _say_not_running(done)
    if done.waits and done.plan.epoch > 1:
        raise typer.Exit(1)


def _say_not_running(done: Applied) -> None:
    """Name collectors that no instance has opened; before the first start, that is all of them."""
    names, count = done.not_running, len(done.plan.collectors)
    epoch, topic = done.plan.epoch, done.plan.topic
    if names and len(names) == count:
        say(
            f"no collector of epoch {epoch} of topic {topic} runs yet: one that waits for a plan "
            f"begins within seconds; else start 'amcast collectors run', or read what it logs"
        )
    elif names:
        say(
            f"{len(names)} of {count} collectors of epoch {epoch} of topic {topic} do not run: "
            f"{some(names)}; read what 'amcast collectors run' logs, or start another one"
        )
    if names and not done.waits:
        say("messages with tickets do not wait for them")


@app.command("verify")
def verify_running(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare the deployment with the applied plan: topics, settings, epochs, all order streams.

    Exits with 1 if something is wrong. 'amcast verify' checks what consumers deliver.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    wrong: list[str] = []
    unseen: list[str] = []
    with control_of(chosen) as (opened, state):
        plan = state.plan()
        with Admin(chosen.bootstrap, chosen.client) as admin:
            try:
                results = of_settings(admin, plan)
                unseen = [each.says for each in results if each.check is Check.UNSEEN]
                broken = [each for each in results if each.weight is Weight.REFUSE]
                unordered = of_unordered(plan, inspect_topics(admin, plan, []))
                wrong += map(str, (*broken, *unordered))
            except AmcastError as error:
                wrong.append(str(error))
        if state.starts(plan.epoch) is None:
            wrong.append(
                f"epoch {plan.epoch} has not begun: 'amcast topology apply' was interrupted; "
                f"run it again"
            )
        else:
            for node in plan.collectors:
                row = describe(opened, state, plan, node.name)
                if row["state"] == "behind":
                    wrong.append(f"collector {node.name} is {row['lag']} offsets behind its logs")
    if output is Output.JSON:
        document = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch, "wrong": wrong}
        typer.echo(json.dumps({**document, "not_checked": unseen}))
    elif not wrong:
        typer.echo(f"epoch {plan.epoch} of topic {plan.topic} runs as it was applied")
    else:
        for sentence in wrong:
            typer.echo(sentence)
    for sentence in unseen:
        say(f"not checked: {sentence}")
    if wrong:
        raise typer.Exit(1)


@app.command("history")
def history(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the epochs of a topic: its plans, and whether each has ended."""
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    with control_of(chosen) as (_, state):
        rows = [
            {
                "epoch": plan.epoch,
                "digest": plan.digest.hex(),
                "collectors": len(plan.collectors),
                "logs": len(plan.logs),
                "consumers": len(plan.consumers),
                "state": _state_of(state, plan.epoch),
                "ends": state.ends.get(plan.epoch),
            }
            for plan in state.plans
        ]
    if output is Output.JSON:
        typer.echo(json.dumps({"schema_version": 1, "topic": chosen.topic, "epochs": rows}))
        return
    table = Table(title=f"topic {chosen.topic}")
    columns = ("epoch", "state", "collectors", "logs", "consumers", "digest")
    for column in columns:
        table.add_column(column)
    for row in rows:
        shown = {**row, "digest": str(row["digest"])[:12]}
        table.add_row(*(str(shown[column]) for column in columns))
    Console(markup=False, emoji=False).print(table)


def _state_of(state: Any, epoch: int) -> str:
    if epoch in state.ends:
        return "ended"
    if state.starts(epoch) is None:
        return "not begun"
    return "runs" if epoch == state.epoch else "ends"


@app.command("rollback")
def rollback(
    *,
    out: Annotated[
        Path, typer.Option("--out", readable=False, help="Write the plan to this file (JSON).")
    ],
    force: Force = False,
    to: Annotated[
        int | None, typer.Option("--to", help="The epoch to go back to; default: the one before.")
    ] = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
) -> None:
    """Write a plan with the layout of an earlier epoch; 'amcast topology apply' then applies it.

    Logs that were added since then stay, because they may hold messages.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    with control_of(chosen) as (_, state):
        running = state.plan()
        wanted = running.epoch - 1 if to is None else to
        if not 1 <= wanted < running.epoch:
            raise UsageError(
                f"epoch {running.epoch} of topic {chosen.topic} runs, and no earlier epoch has the "
                f"number {wanted}; 'amcast topology history' lists the epochs"
            )
        _write_rollback(out, state.plan(wanted), running, force=force, option="--out")


def read_plan(file: Path) -> Plan:
    """Read a plan file; raises `UsageError` with the file's name and what is wrong with it."""
    try:
        plan = Plan.parse(file.read_bytes())
        refuse_names(plan)
    except (ValueError, InvalidPlan) as error:
        raise UsageError(f"{file}: {error}") from error
    return plan
