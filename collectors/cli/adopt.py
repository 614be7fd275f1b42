"""`amcast adopt`: order a topic that exists. It writes an interest file and a plan.

The report goes to stdout, progress to stderr. Without `--apply` nothing is written to the cluster.

    exit code 0   adopted, or the files are written
              1   a setting of the cluster would break a guarantee
              2   the topic cannot be adopted, or an option is wrong
              4   no broker answers
              5   the topic is adopted already, or --undo needs --yes
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from collectors.adoption.facts import consumers_of, document, interests_text, report, topics_made
from collectors.adoption.inspection import read_facts, refuse_plan, refuse_topic
from collectors.adoption.undo import topics_to_delete
from collectors.cli.cluster import cluster_of, say
from collectors.reconfiguration.apply import apply
from multicast.cli.options import Bootstrap, DriverName, partitions_of
from multicast.control import groups_topic, sentinel_topic
from multicast.drivers.kafka import Admin
from multicast.errors import Conflict, NotAuthorized, UsageError
from multicast.settings import Settings, settings
from topology.files import FileExists, refuse_existing, write_text
from topology.interests import InvalidInterests, parse
from topology.output import Output, OutputOption
from topology.planner.solver import Infeasible
from topology.planner.solver import plan as solve
from topology.tree import Plan

app = typer.Typer()

Undo = Annotated[
    bool, typer.Option("--undo", help="Delete what adopting made; the topic stays as it is.")
]
Seconds = Annotated[float, typer.Option(help="How long to measure rates.", min=0.0, max=3600.0)]
Yes = Annotated[bool, typer.Option("--yes", help="With --undo: delete it unasked.")]


@app.command()
def adopt(
    topic: Annotated[str, typer.Argument(help="The topic to order.", show_default=False)],
    *,
    interest: Annotated[
        list[str] | None,
        typer.Option(
            "--interest",
            "-i",
            help="A consumer and what it reads, NAME=P1,P3..P5; default: one for each group.",
        ),
    ] = None,
    to: Annotated[
        list[str] | None,
        typer.Option("--to", help="A set of partitions to multicast to, P1,P3; repeatable."),
    ] = None,
    seconds: Seconds = 3.0,
    out: Annotated[
        Path | None,
        typer.Option("--out", readable=False, help="The plan file; default: TOPIC.plan.json"),
    ] = None,
    interests_file: Annotated[
        Path | None,
        typer.Option("--interests", readable=False, help="The interest file; default: TOPIC.toml"),
    ] = None,
    apply_now: Annotated[
        bool, typer.Option("--apply", help="Apply the plan, too: make the topics.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    undo: Undo = False,
    yes: Yes = False,
    bootstrap: Bootstrap = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Order a topic that exists: read it, plan, and say what changes for whom.

    Writes an interest file and a plan; with --apply also makes the topics and starts the epoch.
    Producers and consumer groups of the topic go on as they are. --undo takes all of it back.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    if undo or yes:
        others = apply_now or interest or to or output is Output.JSON
        _undo(chosen, yes=yes, alone=undo and not others)
        return
    given = _interests(interest or ())
    plan_path = out or Path(f"{topic}.plan.json")
    interests_path = interests_file or Path(f"{topic}.toml")
    with cluster_of(chosen) as (opened, admin):
        count = refuse_topic(opened, admin, topic)
        say(f"reading topic {topic} …")
        facts = read_facts(opened, admin, topic, count, seconds)
        text = interests_text(
            facts, consumers_of(facts, given), [partitions_of(names) for names in to or ()]
        )
        plan = _plan(text, admin.cluster_id())
        notes = [*facts.notes, *refuse_plan(opened, admin, plan)]
        made = topics_made(plan, _existing(admin, plan))
        plan_text = json.dumps(plan.to_json(), indent=2) + "\n"
        files = {"--interests": (interests_path, text), "--out": (plan_path, plan_text)}
        _write(files, force=force)
        if output is Output.JSON:
            typer.echo(json.dumps(document(facts, plan, made, notes)))
        else:
            noted = ["", *(f"Note: {note}." for note in notes)] if notes else []
            typer.echo("\n".join([*report(facts, plan, made), *noted]))
        if apply_now:
            apply(opened, admin, plan, say=say)
    for line in _next_steps(plan_path, interests_path, chosen.bootstrap, plan, applied=apply_now):
        say(line)


def _undo(chosen: Settings, *, yes: bool, alone: bool) -> None:
    if not alone:
        raise UsageError("--undo goes with --yes, -b and --driver only, and --yes with --undo")
    with cluster_of(chosen) as (opened, admin):
        counts = topics_to_delete(opened, admin, chosen.topic)
        for name, count in counts.items():
            typer.echo(f"{name}: {count:,} records")
        if lost := counts.get(groups_topic(chosen.topic)):
            typer.echo(f"{lost:,} messages to several partitions lie only there and are lost")
        if not yes:
            raise Conflict("nothing was deleted; repeat with --yes to delete these topics")
        for name in counts:
            admin.delete_topics([name])
    say(f"topic {chosen.topic} is ordered no longer; its records and groups are as they were")


def _existing(admin: Admin, plan: Plan) -> set[str]:
    """Give those of the plan's own topics that exist, or that this user may not make."""
    bells = sentinel_topic(plan.topic)
    existing = set(admin.partitions([name for name in topics_made(plan, ()) if name != bells]))
    try:
        existing.update(admin.partitions([bells]))
    except NotAuthorized:  # `apply` goes on without this topic, too
        existing.add(bells)
    return existing


def _interests(texts: Iterable[str]) -> dict[str, list[str]]:
    given: dict[str, list[str]] = {}
    for text in texts:
        name, equals, partitions = text.partition("=")
        if not equals or not name or not partitions:
            raise UsageError(f"--interest {text!r} is not NAME=P1,P3")
        if name in given:
            raise UsageError(f"--interest names consumer {name} twice; name each consumer once")
        given[name] = partitions_of(partitions)
    return given


def _plan(text: str, cluster: str) -> Plan:
    """Plan without tickets: the topic has producers of its own, which write none.

    Beside the tickets of others their messages would wait for 0.1 s.
    """
    try:
        plan = solve(parse(text), cluster_id=cluster)
    except (InvalidInterests, Infeasible) as error:
        raise UsageError(str(error)) from error
    return replace(plan, tickets=False)


def _write(files: Mapping[str, tuple[Path, str]], *, force: bool) -> None:
    """Write the files, each by the option that names it; all of them, or none if one exists."""
    try:
        for option, (path, text) in files.items():
            if not force:
                refuse_existing(path, text.encode(), instead=option)
        for path, text in files.values():
            write_text(path, text, force=True)
    except FileExists as error:
        raise UsageError(str(error)) from error


def _next_steps(
    plan_path: Path, interests_path: Path, bootstrap: str, plan: Plan, *, applied: bool
) -> list[str]:
    where = f"-b {bootstrap} -t {plan.topic}"
    first = [] if applied else [f"  amcast topology apply {plan_path} -b {bootstrap}"]
    return [
        f"written: {interests_path}, {plan_path}",
        "next:",
        *first,
        *([f"  amcast collectors run {where}"] if plan.collectors else []),
        f"  amcast receive {where} --name {plan.consumers[0].name} --until-end",
    ]
