"""`amcast doctor`: one screen on what is wrong with a deployment, and what to do.

stdout is what was found (tables, or one JSON document). Nothing is written to the cluster.

    exit code 0   nothing is wrong; notes may be there
              1   something is wrong
              4   no broker answers
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from collectors.doctor.checks import Finding, Weight, findings
from collectors.doctor.facts import (
    FOR_EVER,
    CollectorFacts,
    Facts,
    GroupFacts,
    Role,
    Stamp,
    TopicFacts,
    length,
)
from collectors.doctor.inspection import look
from multicast.cli.options import Bootstrap, Topic
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.settings import settings
from topology.output import Output, OutputOption

app = typer.Typer()
_COLOURS = {Weight.REFUSE: "red", Weight.WARN: "yellow", Weight.NOTE: "dim"}
_SETTINGS = (
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
        float, typer.Option(help="Seconds in which collectors may order what waits.", min=0.0)
    ] = 2.0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what is wrong with a deployment, and what to do; changes nothing.

    Looks at brokers, topics and their settings, the epoch, every collector, consumers' cursors,
    foreign records and clocks. Ends with 1 where something is wrong, with 4 where no broker
    answers.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic)
    # The exact driver: it fetches nothing ahead, and little is read.
    opened = open_driver("kafka-python", chosen.bootstrap, chosen.client)
    try:
        with Admin(chosen.bootstrap, chosen.client) as admin:
            facts = look(opened, admin, chosen.topic, patience_s=patience)
    finally:
        opened.close()
    found = findings(facts)
    wrong = sum(one.weight is not Weight.NOTE for one in found)
    if output is Output.JSON:
        typer.echo(json.dumps(_document(facts, found, wrong)))
    else:
        _show(facts, found, wrong)
    if wrong:
        raise typer.Exit(1)


def _document(facts: Facts, findings: Sequence[Finding], wrong: int) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "topic": facts.topic,
        "epoch": facts.plan.epoch if facts.plan else 0,
        "begun": facts.plan is not None and facts.shown == facts.plan.epoch,
        "brokers": [{"broker": one.broker, "away": one.away} for one in facts.brokers],
        "topics": [_topic(one) for one in facts.topics],
        "control": {"foreign": len(facts.control_foreign), "plans_lost": facts.plans_lost},
        "collectors": [asdict(one) for one in facts.collectors],
        "consumers": [
            {**asdict(one), "lag": sum(place.lag for place in one.places)} for one in facts.groups
        ],
        "clocks": [_clock(one) for one in facts.stamps],
        "not_checked": list(facts.unseen),
        "wrong": wrong,
        "findings": [asdict(one) for one in findings],
    }


def _topic(topic: TopicFacts) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "holds": topic.role,
        "partitions": len(topic.partitions),
        "replication": topic.replication,
        "settings": {name: topic.settings.get(name) for name in _SETTINGS},
    }


def _clock(stamp: Stamp) -> dict[str, Any]:
    """Give the bounds of a clock's difference to ours; `ahead_at_most_ms` None: not known."""
    late = stamp.late_ms
    return {
        "whose": stamp.whose,
        "ahead_at_least_ms": stamp.ahead_ms,
        "ahead_at_most_ms": None if late is None else -late,
    }


def _show(facts: Facts, findings: Sequence[Finding], wrong: int) -> None:
    console = Console()
    console.print(_headline(facts), highlight=False)
    topics = [_topic_row(one, facts.topic) for one in facts.topics]
    _table(console, ("topic", "holds", "partitions", "replicas", "in sync", "kept"), topics)
    collectors = [_collector_row(one, facts.now_ms) for one in facts.collectors]
    _table(console, ("collector", "state", "records", "not counted", "last record"), collectors)
    groups = [_group_row(one) for one in facts.groups]
    _table(console, ("consumer group", "epoch", "lag", "cursor"), groups)
    for one in findings:
        colour = _COLOURS[one.weight]
        console.print(f"[{colour}]{one.weight}[/] ", end="")
        console.print(f"{one.says}\n       {one.do}", markup=False, highlight=False)
    clocks = ", ".join(sorted({one.whose.split(" (")[0].split("'s")[0] for one in facts.stamps}))
    console.print(
        f"clocks seen: {clocks or 'none'}" if wrong else f"nothing is wrong; clocks seen: {clocks}",
        markup=False,
        highlight=False,
    )


def _headline(facts: Facts) -> str:
    here = sum(not one.away for one in facts.brokers)
    brokers = f"{here} of {len(facts.brokers)} brokers"
    if facts.plan is None:
        return f"topic {facts.topic}: no plan; {brokers}"
    begun = "has begun" if facts.shown == facts.plan.epoch else "has not begun"
    foreign = f"; {len(facts.control_foreign)} foreign records in the control topic"
    return (
        f"topic {facts.topic}: epoch {facts.plan.epoch} {begun}; {brokers}"
        f"{foreign if facts.control_foreign else ''}"
    )


def _table(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    table = Table()
    for column in columns:
        numbers = column in ("records", "lag", "partitions", "replicas", "in sync")
        table.add_column(column, justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*row)
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
        "for ever" if topic.role is Role.CONTROL else kept,
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
        collector.name + ("" if collector.advertised_address else " (no address)"),
        state,
        str(collector.records),
        void or "0",
        "" if collector.last_ms is None else f"{length(max(0, now_ms - collector.last_ms))} ago",
    )


def _group_row(group: GroupFacts) -> tuple[str, ...]:
    lag = sum(place.lag for place in group.places)
    guessed = " (interest unknown)" if group.guessed else ""
    return group.group + guessed, str(group.epoch or ""), str(lag), group.cursor
