"""`amcast export`: the messages of an interest as files, in the agreed order; resumable.

stdout carries nothing, stderr the progress. `multicast/tables/export.py` does the work.
"""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

from multicast.cli.options import (
    WAIT_RANGE,
    Bootstrap,
    DriverName,
    Interest,
    Topic,
    partitions_of,
    start_of,
)
from multicast.cli.progress import CountShown
from multicast.consuming.subscription import SubscriptionRequest
from multicast.drivers import open_driver
from multicast.errors import UsageError
from multicast.settings import settings
from multicast.tables.arrow import pyarrow
from multicast.tables.export import Export, export, locked
from topology import extra

with extra("cli"):
    import typer

app = typer.Typer()
# Rows of one file: some ten MB for messages of 100 bytes, and what one process holds in memory.
_ROWS_MAX = 100_000


@app.command("export")
def export_command(
    *,
    to: Annotated[Path, typer.Option("--to", help="The folder; an export there is continued.")],
    name: Annotated[
        str | None, typer.Option("--consumer", "--name", "-n", help="A consumer of the plan.")
    ] = None,
    interest: Interest = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Do not stop at the present end of the logs.")
    ] = False,
    start: Annotated[
        str, typer.Option("--from", help="For a new folder: earliest, latest, a cursor, or a time.")
    ] = "earliest",
    rows_max: Annotated[
        int, typer.Option("--rows", min=1, help="Rows of one file, at most.")
    ] = _ROWS_MAX,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", help="Seconds to wait for a message before the end.", **WAIT_RANGE
        ),
    ] = 30.0,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
) -> None:
    """Write the messages of an interest to Parquet files, in the agreed order, each once.

    After an interruption the same command continues after the last row. Columns: epoch, position,
    message_id, log, offset, to, key, value, headers, timestamp, cursor (docs/spark.md).
    """
    pyarrow()
    if (name is None) == (interest is None):
        raise UsageError("give a consumer of the plan (--consumer) or an interest, not both")
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    what = Export(
        topic=chosen.topic,
        request=SubscriptionRequest.of(name, None if interest is None else partitions_of(interest)),
        offsets_max=rows_max,
        timeout_s=timeout,
    )

    with (
        CountShown("exported") as shown,
        locked(to, what),
        closing(open_driver(chosen.driver, chosen.bootstrap, chosen.client)) as opened,
    ):
        done = export(opened, to, what, start_of(start), follow=follow, progress=shown.show)
    sys.stderr.write(f"exported {done.rows}\n")
    if done.timeless:
        sys.stderr.write(f"{done.timeless} of them have no time, or one beyond the year 9999\n")
