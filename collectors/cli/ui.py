"""`amcast ui`: serves the live page of one topic to the browsers of this machine. It only reads."""

from __future__ import annotations

import asyncio
import signal
import sys
from http import HTTPStatus
from typing import Annotated

import typer

from collectors.live.routes import LivePages
from multicast.cli.options import Bootstrap, DriverName, Topic
from multicast.settings import settings
from multicast.web import WebServer, address_of, listen_at

app = typer.Typer()
_PORT = 6067  # the next one after that of the collectors' own page
_HOST = "127.0.0.1"


def _healthz() -> tuple[HTTPStatus, dict[str, bool]]:
    """Say that the page is served; what it shows, it says itself."""
    return HTTPStatus.OK, {"healthy": True}


@app.command("ui")
def serve(
    *,
    bootstrap: Bootstrap = None,
    topic: Topic = None,
    driver: DriverName = None,
    web_port: Annotated[
        int, typer.Option("--web-port", help="Port of the page; 0: any free.", min=0, max=65535)
    ] = _PORT,
) -> None:
    """Serve the live page of a topic until SIGTERM or Ctrl-C, to browsers of this machine only.

    It shows the tree of collectors with rates, lags and health, the logs, and the merged timeline.
    Prints its address to stderr. It only reads, and it reads only while somebody looks.
    """
    chosen = settings(bootstrap=bootstrap, topic=topic, driver=driver)
    listening = listen_at(_HOST, web_port)

    async def run() -> None:
        pages = LivePages(chosen, _HOST)
        server = WebServer({"/healthz": _healthz}, pages.routes(), host=_HOST)
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        await server.start(listening)
        sys.stderr.write(f"live page of topic {chosen.topic}: http://{address_of(listening)}/\n")
        try:
            await ended.wait()
        finally:
            await server.stop()
            await pages.close()

    asyncio.run(run())
