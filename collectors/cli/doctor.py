"""`amcast doctor`: shows the state of a deployment, what is wrong with it, and what to do.

The result goes to stdout, as lines or as one JSON document. Nothing is written to the cluster.

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
from collectors.cli.consumers import consumer_documents
from collectors.doctor.checks import findings
from collectors.doctor.consumer_checks import of_certificates
from collectors.doctor.facts import Facts, Stamp, TopicFacts
from collectors.doctor.finding import Finding, Weight
from collectors.doctor.inspection import inspect
from multicast.cli.options import WAIT_RANGE, Bootstrap, Topic
from multicast.drivers import certificates
from multicast.settings import settings
from topology.files import printable
from topology.output import Output, OutputOption

app = typer.Typer()
_COLOURS = {Weight.REFUSE: "red", Weight.WARN: "yellow", Weight.NOTE: "bright_black"}
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
        bool, typer.Option("--verbose", help="Of each cause all that is known.")
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
        "collectors": [asdict(collector) for collector in facts.collectors],
        "consumers": consumer_documents(facts.groups),
        "clocks": [_clock(stamp) for stamp in facts.stamps],
        "not_checked": list(facts.unseen),
        "wrong": wrong,
        "findings": [asdict(finding) for finding in findings],
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
    """Give the bounds of a clock's difference to ours; `ahead_at_most_ms` None: unknown."""
    late = stamp.late_ms
    return {
        "whose": stamp.source,
        "ahead_at_least_ms": stamp.ahead_ms,
        "ahead_at_most_ms": None if late is None else -late,
    }


def _show(facts: Facts, findings: Sequence[Finding], *, verbose: bool) -> None:
    typer.echo(_headline(facts))
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
