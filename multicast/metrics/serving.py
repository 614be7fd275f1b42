"""Serves the metrics of a command's clients to Prometheus, at a port of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from multicast.metrics.clients import ClientMetrics
from multicast.metrics.exposition import MetricsPage
from multicast.web import (
    METRICS_TYPE,
    Request,
    WebDocument,
    WebServer,
    WebThread,
    address_of,
    listen_at,
)


@contextmanager
def serving(port: int) -> Iterator[ClientMetrics]:
    """Serve the clients that are added to what this gives, until the end of the block.

    Listens at AMCAST_WEB_HOST, 127.0.0.1 by default, and at any free port for port 0; writes the
    address to stderr. Raises `UsageError` if that fails, as where another process uses the port.
    """
    metrics = ClientMetrics()
    page = MetricsPage(metrics)

    async def scraped(_: Request) -> WebDocument:
        # In a thread: a lag is asked of Kafka.
        text = await asyncio.to_thread(page.text)
        return WebDocument(HTTPStatus.OK, METRICS_TYPE, text.encode())

    host = os.environ.get("AMCAST_WEB_HOST", "127.0.0.1")
    listening = listen_at(host, port, what="metrics", port_option="--metrics-port")
    with WebThread(WebServer({}, {"/metrics": scraped}), listening):
        sys.stderr.write(f"metrics: http://{address_of(listening)}/metrics\n")
        sys.stderr.flush()
        yield metrics
