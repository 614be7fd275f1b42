"""`amcast topology recover`: repairs the damage of a wrong order record, or of a lost end."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer

from collectors.cli.cluster import cluster_of, say
from collectors.core.mending import Harm
from collectors.doctor.consumer_groups import group_prefix
from collectors.reconfiguration.recovery import Recovered, recover
from multicast.cli.options import WAIT_RANGE, Bootstrap, DriverName, Topic
from multicast.settings import settings
from topology.output import Output, OutputOption


def recover_damaged(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    # Twice that of apply: before it changes the epoch, it may append 100,000 skips unasked. A run
    # that is too short is finished by the next one.
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to wait.", **WAIT_RANGE)
    ] = 60.0,
    yes: Annotated[
        bool, typer.Option("--yes", help="Append any number of empty messages.")
    ] = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="End the epoch even if a log has lost its end (it ends there for all), the next "
            "one, applied meanwhile, has another layout, or retention has deleted in which order "
            "messages were.",
        ),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Repair the damage of a wrong order record or of a lost end; to run it twice does no harm.

    Fills logs that are ordered too far beyond their ends. If a stream was frozen, contradicts its
    parent's or has lost its end, ends the epoch and begins the next with the same layout. Where a
    log has lost its end, says from which offset on and whose commits lie behind it, and ends the
    epoch there with --accept-loss. The next run finishes an interrupted one. Exits with 4 if time
    ran out (run it again), and with 5 if it needs --yes or --accept-loss, or another operator was
    quicker.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    with cluster_of(chosen) as (opened, admin):
        done = recover(
            opened,
            admin,
            chosen.topic,
            timeout_s=timeout,
            yes=yes,
            lossy=accept_loss,
            groups=partial(admin.groups, group_prefix(chosen.topic)),
            say=say,
        )
    _report(done, chosen.topic, output)


def _report(done: Recovered, topic: str, output: Output) -> None:
    if output is Output.JSON:
        document = {
            "schema_version": 1,
            "topic": topic,
            "epoch": done.epoch,
            "changed": done.changed,
            "skips": done.skips,
            "found": [
                {
                    "harm": damage.harm,
                    "collector": damage.collector,
                    "says": damage.says,
                    **(
                        {"log": damage.log, "first": damage.first}
                        if damage.harm is Harm.LOST
                        else {}
                    ),
                }
                for damage in done.damages
            ],
        }
        typer.echo(json.dumps(document))
    elif not done.changed:
        typer.echo(f"epoch {done.epoch} of topic {topic} runs; nothing is damaged")
    else:
        filled = f"; {done.skips} empty messages were appended" if done.skips else ""
        typer.echo(f"epoch {done.epoch} of topic {topic} runs{filled}")
