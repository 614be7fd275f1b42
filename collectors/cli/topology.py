"""The verbs of `amcast topology` that need a cluster: apply, verify, history, rollback.

stdout is data, stderr says each step. Exit code 1: what runs is not what was applied, or collectors
of a new epoch do not run; 3: probes saw a violation; 4: not in time; 5: another plan came first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from collectors.cli.main import control_of, describe
from collectors.cli.recover import recover_damaged
from collectors.reconfiguration.apply import Applied, apply, refuse_unsound, same_layout, unordered
from collectors.reconfiguration.drain import some
from collectors.reconfiguration.probes import Probes, Seen
from multicast.cli.options import Bootstrap, DriverName, Topic
from multicast.control import ControlReader
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, UncoveredInterest, UsageError
from multicast.settings import Settings, settings
from topology.files import FileExists, write_text
from topology.output import Output, OutputOption
from topology.planner.solver import Infeasible
from topology.rollback import back
from topology.tree import InvalidPlan, Plan

app = typer.Typer()
app.command("recover")(recover_damaged)
PlanFile = Annotated[Path, typer.Argument(help="The plan, as 'amcast topology plan' wrote it.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


@app.command("apply")
def apply_plan(
    file: PlanFile,
    *,
    bootstrap: Bootstrap = None,
    driver: DriverName = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait.")] = 30.0,
    uncovered: Annotated[
        bool, typer.Option("--uncovered", help="Consumers that the plan leaves out have gone.")
    ] = False,
    add_partitions: Annotated[
        bool,
        typer.Option(
            "--add-partitions",
            help="Grow the topic: keys of producers that choose partitions by key move.",
        ),
    ] = False,
    probes: Annotated[
        bool, typer.Option(help="Read along as consumers, and judge what they see.")
    ] = True,
    rollback: Annotated[
        Path | None,
        typer.Option("--rollback", help="Where to write the way back; default: FILE.rollback"),
    ] = None,
    force: Force = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make the plan's topics and start its epoch, under load; doing it twice is doing it once.

    A run that was interrupted is finished by the next. What is refused leaves no topic behind: a
    plan with fewer partitions than its topic, or (without --add-partitions) with more. Ends with 1
    where collectors of a later epoch than the first do not run, with 3 where a consumer saw a
    violation, with 4 where the running epoch did not end in time (run it again), and with 5 where
    the plan was made for another cluster or epoch, or another operator was quicker.
    """
    plan = read_plan(file)
    chosen = settings(bootstrap=bootstrap, topic=plan.topic, driver=driver)
    opened = open_driver(chosen.driver, chosen.bootstrap, chosen.client)
    seen: Seen | None = None
    try:
        running = _running(opened, plan.topic)
        # A plan that does not follow on the running one is refused below, and needs no way back.
        follows = running is not None and plan.base_epoch == running.epoch
        if running is not None and follows and not same_layout(running, plan):
            back_file = rollback or file.with_name(f"{file.name}.rollback")
            _write_rollback(back_file, running, plan, force=force, option="--rollback")
        with Admin(chosen.bootstrap, chosen.client) as admin:

            def applied() -> Applied:
                return apply(
                    opened,
                    admin,
                    plan,
                    timeout_s=timeout,
                    uncovered=uncovered,
                    add_partitions=add_partitions,
                    say=_say,
                )

            if running is None or not probes or same_layout(running, plan):
                done = applied()
            else:
                with Probes(opened, running) as reading:
                    done = applied()
                    seen = reading.judged(done.plan)
    finally:
        opened.close()
    _report(done, seen, running, output)


def _running(driver: Driver, topic: str) -> Plan | None:
    try:
        control = ControlReader(driver, topic)
    except UncoveredInterest:
        return None
    try:
        state = control.refresh()
        return state.plan() if state.epoch else None
    finally:
        control.close()


def _write_rollback(file: Path, running: Plan, plan: Plan, *, force: bool, option: str) -> None:
    """Write the way back before anything is done: afterwards it may be needed in a hurry."""
    try:
        text = json.dumps(back(running, plan).to_json(), indent=2) + "\n"
        write_text(file, text, force=force, instead=option)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except FileExists as error:
        raise UsageError(str(error)) from error
    except Infeasible as error:
        raise UsageError(f"no way back can be planned: {error}") from error
    _say(f"the way back: amcast topology apply {file}")


def _report(done: Applied, seen: Seen | None, before: Plan | None, output: Output) -> None:
    document: dict[str, Any] = {
        "schema_version": 1,
        "topic": done.plan.topic,
        "epoch": done.plan.epoch,
        "changed": done.changed,
        "topics_made": list(done.topics_made),
        "collectors_not_running": list(done.not_running),
    }
    if seen is not None and before is not None:
        document["probes"] = {
            "from_epoch": before.epoch,
            "messages": seen.messages,
            "deliveries": seen.deliveries,
            "violations": list(seen.violations),
            "delay_p99_ms": seen.delay_p99_ms,
            "consumers_probed": len(seen.delay_p99_ms_of),
            "consumers": seen.consumers,
            "stopped": list(seen.unread),
        }
    if output is Output.JSON:
        typer.echo(json.dumps(document))
    else:
        said = "runs" if done.changed else "runs already; nothing changed"
        typer.echo(f"epoch {done.plan.epoch} of topic {done.plan.topic} {said}")
        if seen is not None and before is not None:
            pause = (
                "no message came" if seen.delay_p99_ms is None else f"{seen.delay_p99_ms:.0f} ms"
            )
            probed = len(seen.delay_p99_ms_of)
            of = "" if probed == seen.consumers else f" ({probed} of {seen.consumers} consumers)"
            typer.echo(
                f"{len(seen.violations)} violations over {seen.messages} messages, "
                f"epochs {before.epoch}→{done.plan.epoch}, pause p99 {pause}{of}"
            )
    if seen is not None:
        for sentence in seen.unread:
            _say(f"a probe stopped: {sentence}")
        for sentence in seen.violations:
            _say(sentence)
    _say_not_running(done)
    if seen is not None and seen.violations:
        raise typer.Exit(3)
    if done.not_running and done.plan.epoch > 1:
        raise typer.Exit(1)


def _say_not_running(done: Applied) -> None:
    """Say which collectors nobody has opened; all of them is normal before the first start."""
    names, count = done.not_running, len(done.plan.collectors)
    epoch, topic = done.plan.epoch, done.plan.topic
    if len(names) == count:
        _say(
            f"no collector of epoch {epoch} of topic {topic} runs: start 'amcast collectors run', "
            f"or read the log of the one that was started"
        )
    elif names:
        _say(
            f"{len(names)} of {count} collectors of epoch {epoch} of topic {topic} do not run: "
            f"{some(names)}; read the log of 'amcast collectors run', or start another one"
        )


@contextmanager
def _opened(chosen: Settings) -> Iterator[tuple[Driver, Any]]:
    client = dict(chosen.client)
    with control_of(chosen.driver, chosen.bootstrap, client, chosen.topic) as both:
        yield both


@app.command("verify")
def verify_running(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold what runs to what was applied: topics, their settings, epochs, every order stream.

    Ends with 1 where something is wrong. What consumers deliver is judged by 'amcast verify'.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    wrong: list[str] = []
    unseen: list[str] = []
    with _opened(chosen) as (opened, state):
        plan = state.plan()
        with Admin(chosen.bootstrap, chosen.client) as admin:
            try:
                unseen = refuse_unsound(admin, plan)
                wrong += unordered(admin, plan)
            except AmcastError as error:
                wrong.append(str(error))
        if state.starts(plan.epoch) is None:
            wrong.append(
                f"epoch {plan.epoch} has not begun: its apply was interrupted; run it again"
            )
        else:
            for node in plan.collectors:
                found = describe(opened, state, plan, node.name)
                if found["state"] == "behind":
                    wrong.append(f"collector {node.name} is {found['lag']} offsets behind its logs")
    if output is Output.JSON:
        document = {"schema_version": 1, "topic": plan.topic, "epoch": plan.epoch, "wrong": wrong}
        typer.echo(json.dumps({**document, "not_checked": unseen}))
    elif not wrong:
        typer.echo(f"epoch {plan.epoch} of topic {plan.topic} runs as it was applied")
    else:
        for sentence in wrong:
            typer.echo(sentence)
    for sentence in unseen:
        _say(f"not checked: {sentence}")
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
    with _opened(chosen) as (_, state):
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
    Console().print(table)


def _state_of(state: Any, epoch: int) -> str:
    if epoch in state.ends:
        return "ended"
    if state.starts(epoch) is None:
        return "not begun"
    return "runs" if epoch == state.epoch else "ends"


@app.command("rollback")
def rollback(
    file: Annotated[
        Path | None, typer.Argument(help="Where to write the plan (as --out says).", hidden=True)
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan (JSON) here.")] = None,
    force: Force = False,
    to: Annotated[
        int | None, typer.Option("--to", help="The epoch to go back to; default: the one before.")
    ] = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
) -> None:
    """Write the plan that lays the topic out as an earlier epoch did; then apply that.

    Logs that were added since stay: messages may stand in them.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    if (file is None) == (out is None):
        raise UsageError("name one file to write the plan to, with --out")
    target = out or file
    assert target is not None
    with _opened(chosen) as (_, state):
        running = state.plan()
        wanted = running.epoch - 1 if to is None else to
        if not 1 <= wanted < running.epoch:
            raise UsageError(
                f"epoch {running.epoch} of topic {chosen.topic} runs; there is no epoch {wanted} "
                f"before it to go back to"
            )
        _write_rollback(target, state.plan(wanted), running, force=force, option="--out")


def read_plan(file: Path) -> Plan:
    """Read a plan file; raises `UsageError` with the file's name and what is wrong."""
    try:
        return Plan.parse(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (ValueError, InvalidPlan) as error:
        raise UsageError(f"{file}: {error}") from error
