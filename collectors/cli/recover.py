"""`amcast topology recover`: makes good what a wrong order record has damaged."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from collectors.reconfiguration.recovery import Recovered, recover
from multicast.cli.options import Bootstrap, DriverName, Topic
from multicast.drivers import open_driver
from multicast.drivers.kafka_python import Admin
from multicast.settings import settings
from topology.output import Output, OutputOption


def recover_damaged(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds to wait.")] = 60.0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Append as many empty messages as it takes.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="End the epoch although the next one has another layout by now.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make good what a wrong order record has damaged; doing it twice is doing it once.

    Fills logs that are ordered too far beyond their ends. Where a stream was frozen, has strayed or
    cannot be read on, ends the epoch and begins the next with the same layout. A run that was
    interrupted is finished by the next. Ends with 4 where time ran out (run it again), and with 5
    where a question has to be answered first, or another operator was quicker.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    opened = open_driver(chosen.driver, chosen.bootstrap, chosen.client)
    try:
        with Admin(chosen.bootstrap, chosen.client) as admin:
            done = recover(
                opened,
                admin,
                chosen.topic,
                timeout_s=timeout,
                yes=yes,
                lossy=accept_loss,
                say=_say,
            )
    finally:
        opened.close()
    _report(done, chosen.topic, output)


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def _report(done: Recovered, topic: str, output: Output) -> None:
    if output is Output.JSON:
        document = {
            "schema_version": 1,
            "topic": topic,
            "epoch": done.epoch,
            "changed": done.changed,
            "skips": done.skips,
            "found": [
                {"harm": one.harm, "collector": one.collector, "says": one.says}
                for one in done.found
            ],
        }
        typer.echo(json.dumps(document))
    elif not done.changed:
        typer.echo(f"epoch {done.epoch} of topic {topic} runs; nothing is damaged")
    else:
        filled = f"; {done.skips} empty messages were appended" if done.skips else ""
        typer.echo(f"epoch {done.epoch} of topic {topic} runs{filled}")
