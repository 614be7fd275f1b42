"""`amcast explain`: where one message is, and who waits for what. It only reads.

exit code 0   nobody waits
          1   somebody waits, and the output says for what
          2   there is no such log
          4   no broker answers, or not in time
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from collectors.cli.cluster import control_of
from collectors.explain.facts import document, lines, waits
from collectors.explain.inspection import explain, message_of
from multicast.cli.options import Bootstrap, DriverName, Topic
from multicast.drivers.kafka import Admin
from multicast.settings import settings
from topology.output import Output, OutputOption

app = typer.Typer()


@app.command("explain")
def explain_message(
    message: Annotated[
        str, typer.Argument(help="The message's ID, like P1+P3:17.", show_default=False)
    ],
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Tell where a message is stored and ordered, who delivers it, and who waits for what.

    Exits with 1 if somebody waits.
    """
    wanted = message_of(message)
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    with control_of(chosen) as (opened, state), Admin(chosen.bootstrap, chosen.client) as admin:
        facts = explain(opened, admin, state, wanted)
    if output is Output.JSON:
        typer.echo(json.dumps(document(facts)))
    else:
        for line in lines(facts):
            typer.echo(line)
    if waits(facts):
        raise typer.Exit(1)
