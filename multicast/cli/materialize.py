"""`amcast materialize`: what a consumer delivers, as an ordinary topic for clients of any language.

stdout carries nothing, stderr the progress. `multicast/materializing/` does the work.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import ExitStack
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from multicast.cli.options import (
    Bootstrap,
    DriverName,
    EndTimeout,
    Interest,
    Topic,
    partitions_of,
    start_of,
)
from multicast.cli.progress import CountShown
from multicast.errors import UsageError
from multicast.materializing.materialize import TRANSACTION_TIMEOUT_S, materialize
from multicast.settings import settings
from multicast.web import Page, WebServer, WebThread, address_of, listen_at

if TYPE_CHECKING:
    from multicast.materializing.target import CopyTarget
    from multicast.metrics.counts import CountedClient

app = typer.Typer()
# Objects between two looks for cycles. No record is in one, and with Python's 700 the looks took a
# fifth of the time.
GC_THRESHOLD = 50_000


By = Annotated[
    Literal["key"] | None,
    typer.Option(
        "--partitions-by", help="For a target of several: keeps the order inside each key only."
    ),
]

TransactionTimeout = Annotated[
    float,
    typer.Option(
        "--transaction-timeout",
        help="Seconds that a stalled copier may hold up who reads the target.",
        min=2,
        max=900,
    ),
]

WebPort = Annotated[
    int | None,
    typer.Option(
        "--web-port", min=0, max=65_535, help="Serve /metrics at this port; 0: any free one."
    ),
]


@app.command("materialize")
def materialize_command(
    name: Annotated[
        str | None, typer.Argument(help="A consumer of the plan, like C1.", show_default=False)
    ] = None,
    *,
    to: Annotated[
        str, typer.Option("--to", help="The topic to copy to; created if it does not exist.")
    ],
    interest: Interest = None,
    start: Annotated[
        str, typer.Option("--from", help="For a new target: earliest, latest, a cursor, or a time.")
    ] = "earliest",
    until_end: Annotated[
        bool, typer.Option("--until-end", "-e", help="Stop at the present end of the logs.")
    ] = False,
    partitions_by: By = None,
    header_prefix: Annotated[
        str, typer.Option("--header-prefix", help="Begins the names of the headers added.")
    ] = "amcast.",
    transaction_timeout: TransactionTimeout = TRANSACTION_TIMEOUT_S,
    timeout: EndTimeout = 30.0,
    web_port: WebPort = None,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
) -> None:
    """Copy what a consumer delivers to an ordinary topic, in the agreed order, each once.

    For consumers in any language that read committed records (docs/materialize.md). After a kill
    the same command goes on where its last transaction ended; a second one ends the first.
    """
    if (name is None) == (interest is None):
        raise UsageError("give a consumer of the plan or an interest (--interest), not both")
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    gc.set_threshold(GC_THRESHOLD)
    with ExitStack() as stack:
        shown = stack.enter_context(CountShown("copied"))

        def opened(consumer: CountedClient, target: CopyTarget) -> None:
            hours = target.retention_ms / 3_600_000
            kept = "for ever" if hours < 0 else f"for {hours:.4g} hours"
            sys.stderr.write(f"copies to topic {to}, which keeps them {kept}\n")
            if web_port is not None:
                stack.enter_context(_metrics(consumer, web_port))

        copied = materialize(
            chosen.bootstrap,
            topic=chosen.topic,
            name=name,
            interest=None if interest is None else partitions_of(interest),
            to=to,
            start=start_of(start),
            until_end=until_end,
            partitions_by=partitions_by,
            header_prefix=header_prefix,
            transaction_timeout_s=transaction_timeout,
            timeout=timeout,
            driver=chosen.driver,
            client=chosen.client,
            opened=opened,
            progress=shown.show,
        )
    sys.stderr.write(f"copied {copied}\n")


def _metrics(consumer: CountedClient, port: int) -> WebThread:
    """Serve what the consumer counts."""
    from multicast.metrics.clients import ClientMetrics  # noqa: PLC0415 - of another extra
    from multicast.metrics.exposition import MetricsPage  # noqa: PLC0415

    page = MetricsPage(ClientMetrics(consumer))
    host = os.environ.get("AMCAST_WEB_HOST") or "127.0.0.1"
    listening = listen_at(host, port)
    sys.stderr.write(f"metrics: http://{address_of(listening)}/metrics\n")
    pages: dict[str, Page] = {"/metrics": lambda: (HTTPStatus.OK, page.text())}
    return WebThread(WebServer(pages, host=host), listening)
