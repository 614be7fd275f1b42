"""`amcast seek`: places a consumer group, which Kafka's tools cannot: its position is a cursor."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from multicast.cli.options import Bootstrap, DriverName, Interest, Topic, partitions_of, start_of
from multicast.consuming.consumer import Consumer
from multicast.settings import settings
from topology.output import Output, OutputOption

app = typer.Typer()


@app.command("seek")
def seek_group(
    group: Annotated[
        str, typer.Argument(help="The group, as --group names it.", show_default=False)
    ],
    *,
    to: Annotated[
        str, typer.Option("--to", help="earliest, latest, a cursor, or a time (ISO 8601).")
    ],
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="The consumer of the plan; default: named as the group."),
    ] = None,
    interest: Interest = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Place a consumer group: its consumer goes on there when it starts the next time.

    Stop the consumer first: one that runs commits its own position over it.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    with Consumer(
        chosen.bootstrap,
        topic=chosen.topic,
        name=group if name is None and interest is None else name,
        interest=None if interest is None else partitions_of(interest),
        group=group,
        start=start_of(to),
        committed=False,
        driver=chosen.driver,
        client=chosen.client,
    ) as consumer:
        consumer.commit()
        cursor, omitted = str(consumer.position), consumer.omitted
    if output is Output.JSON:
        document = {"schema_version": 1, "group": group, "cursor": cursor, "omitted": omitted}
        typer.echo(json.dumps(document))
    else:
        typer.echo(f"group {group} goes on at cursor {cursor}")
