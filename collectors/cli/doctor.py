"""`amcast doctor`: shows the state of a deployment, what is wrong with it, and what to do.

The result goes to stdout, as tables or as one JSON document. Nothing is written to the cluster.

    exit code 0   nothing is wrong; there may be notes
              1   something is wrong
              4   no broker answers
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from collectors.cli.cluster import cluster_of
from collectors.cli.consumers import CONSUMER_COLUMNS, consumer_documents, consumer_row
from collectors.doctor.certificate_checks import of_certificates
from collectors.doctor.checks import findings
from collectors.doctor.facts import (
    FOR_EVER,
    CollectorFacts,
    Facts,
    Role,
    Stamp,
    TopicFacts,
    length,
)
from collectors.doctor.finding import Finding, Weight
from collectors.doctor.inspection import inspect
from multicast.cli.options import WAIT_RANGE, Bootstrap, Topic
from multicast.drivers import certificates
from multicast.order.rule import NotCounted
from multicast.settings import settings
from topology.files import printable
from topology.output import Output, OutputOption

app = typer.Typer()
_COLOURS = {Weight.REFUSE: "red", Weight.WARN: "yellow", Weight.NOTE: "bright_black"}
_CLOCKS_SHOWN_MAX = 6  # some two lines; the controller's is looked at first
_SOURCE_CHARACTERS_MAX = 60  # the log of a wide set has a name of some thousand
_MEANINGS = {reason.name.lower(): str(reason.value) for reason in NotCounted} | {
    "other_epoch": "of another epoch, whose writers had not heard of its end"
}
_SETTINGS = (  # of topics, in the JSON document
    "cleanup.policy",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "unclean.leader.election.enable",
)


@app.command()
def doctor(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    patience: Annotated[
        float,
        typer.Option(help="Seconds for collectors to order the messages that wait.", **WAIT_RANGE),
    ] = 2.0,  # a collector orders within milliseconds, and a standby takes over within a second
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Also tables, and of each cause all that is known.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell what is wrong with a deployment, and what to do; changes nothing.

    Shows each cause on a line, the worst first, and a command where one helps. Checks brokers,
    topics and their settings, the epoch, all collectors, consumers, foreign records and clocks.
    Exits with 1 if something is wrong, with 4 if no broker answers.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic)
    # kafka-python fetches nothing ahead of what is read, and an inspection reads little.
    with cluster_of(replace(chosen, driver="kafka-python")) as (opened, admin):
        facts = inspect(opened, admin, chosen.topic, patience_s=patience)
    results = (*findings(facts), *of_certificates(certificates.ends(), facts.now_ms / 1000))
    wrong = sum(finding.weight is not Weight.NOTE for finding in results)
    if output is Output.JSON:
        typer.echo(json.dumps(_document(facts, results, wrong)))
    else:
        _show(facts, results, verbose=verbose)
    if wrong:
        raise typer.Exit(1)


def _document(facts: Facts, findings: Sequence[Finding], wrong: int) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "topic": facts.topic,
        "epoch": facts.plan.epoch if facts.plan else 0,
        "begun": facts.plan is not None and facts.begun_epoch == facts.plan.epoch,
        "brokers": [{"broker": broker.broker, "away": broker.away} for broker in facts.brokers],
        "topics": [_topic(topic) for topic in facts.topics],
        "control": {
            "foreign": len(facts.control_foreign),
            "collectors_foreign": len(facts.collectors_foreign),
            "plans_lost": facts.plans_lost,
        },
        "collectors": [_collector(collector) for collector in facts.collectors],
        "consumers": consumer_documents(facts.groups),
        "clocks": [_clock(stamp) for stamp in facts.stamps],
        "not_checked": list(facts.unseen),
        "wrong": wrong,
        "findings": [asdict(finding) for finding in findings],
    }


def _collector(collector: CollectorFacts) -> dict[str, Any]:
    """Give a collector's facts; in the document `is_open` has the name that programs know."""
    names = {"is_open": "told_address"}
    return {names.get(field, field): value for field, value in asdict(collector).items()}


def _topic(topic: TopicFacts) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "holds": topic.role,
        "partitions": len(topic.partitions),
        "replication": topic.replication,
        "settings": {name: topic.settings.get(name) for name in _SETTINGS},
    }


def _clock(stamp: Stamp) -> dict[str, Any]:
    """Give the bounds of a clock's difference to ours; `ahead_at_most_ms` None: unknown."""
    late = stamp.late_ms
    return {
        "whose": stamp.source,
        "ahead_at_least_ms": stamp.ahead_ms,
        "ahead_at_most_ms": None if late is None else -late,
    }


def _show(facts: Facts, findings: Sequence[Finding], *, verbose: bool) -> None:
    typer.echo(_headline(facts))
    if verbose:
        _show_tables(facts)
    for finding in findings:
        weight = typer.style(f"{finding.weight:6}", fg=_COLOURS[finding.weight])
        told = [finding.says, finding.do, *finding.details] if verbose else [finding.brief]
        for number, sentence in enumerate(told):
            typer.echo((" " * 9 if number else f"{weight} ") + printable(sentence))
    notes = sum(finding.weight is Weight.NOTE for finding in findings)
    if len(findings) == notes:
        typer.echo("nothing is wrong")
    elif not verbose:
        typer.echo("more of each cause: amcast doctor --verbose")


def _show_tables(facts: Facts) -> None:
    """Show topics, collectors, consumers and clocks; the brief form does not import what draws."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(markup=False, emoji=False)
    topics = [_topic_row(topic, facts.topic) for topic in facts.topics]
    _table(console, ("topic", "holds", "partitions", "replicas", "in sync", "kept"), topics)
    collectors = [_collector_row(collector, facts.now_ms) for collector in facts.collectors]
    _table(console, ("collector", "state", "records", "not counted", "last record"), collectors)
    for reason in sorted({reason for each in facts.collectors for reason in each.void}):
        typer.echo(f"  not counted, {reason}: {_MEANINGS.get(reason, reason)}")
    groups = [consumer_row(group, facts.now_ms) for group in facts.groups]
    _table(console, CONSUMER_COLUMNS, groups)
    typer.echo(f"clocks seen: {_clocks(facts.stamps) or 'none'}")


def _clocks(stamps: Sequence[Stamp]) -> str:
    """Name the sources of the first stamps, and say how many more there are."""
    names = (stamp.source.split(" (")[0].split("'s")[0] for stamp in stamps)
    sources = list(dict.fromkeys(names))
    shown = [f"{name[:_SOURCE_CHARACTERS_MAX]}…" if len(name) > _SOURCE_CHARACTERS_MAX else name
             for name in sources[:_CLOCKS_SHOWN_MAX]]  # fmt: skip
    more = len(sources) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _headline(facts: Facts) -> str:
    here = sum(not broker.away for broker in facts.brokers)
    brokers = f"{here} of {len(facts.brokers)} brokers"
    if facts.plan is None:
        return f"topic {facts.topic}: no plan; {brokers}"
    begun = "has begun" if facts.begun_epoch == facts.plan.epoch else "has not begun"
    count = len(facts.control_foreign) + len(facts.collectors_foreign)
    foreign = f"; {count} foreign records in the control topics" if count else ""
    counts = f"{len(facts.collectors)} collectors, {len(facts.groups)} consumers"
    return f"topic {facts.topic}: epoch {facts.plan.epoch} {begun}; {brokers}, {counts}{foreign}"


def _table(console: Any, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    if not rows:
        return
    table = Table()
    for column in columns:
        numbers = column in ("records", "waits", "partitions", "replicas", "in sync")
        table.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console.print(table)


def _topic_row(topic: TopicFacts, of: str) -> tuple[str, ...]:
    kept = "for ever" if topic.kept_ms == FOR_EVER else length(topic.kept_ms)
    if topic.kept_bytes != FOR_EVER:
        kept += f", {topic.kept_bytes} B"
    return (
        topic.name.removeprefix(of) or of,
        topic.role,
        str(len(topic.partitions)),
        str(topic.replication),
        f"min {topic.in_sync_min}",
        "for ever" if topic.role in (Role.CONTROL, Role.COLLECTORS) else kept,
    )


def _collector_row(collector: CollectorFacts, now_ms: int) -> tuple[str, ...]:
    state = "up to date"
    if collector.problem is not None:
        state = "cannot be read"
    elif collector.frozen:
        state = "frozen"
    elif collector.behind:
        state = f"{sum(collector.behind.values())} behind"
    void = ", ".join(f"{count} {reason}" for reason, count in sorted(collector.void.items()))
    return (
        collector.name + ("" if collector.is_open else " (not open)"),
        state,
        str(collector.records),
        void or "0",
        "" if collector.last_ms is None else f"{length(max(0, now_ms - collector.last_ms))} ago",
    )
