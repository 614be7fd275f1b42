"""Serves the metrics of a command's clients to Prometheus, at a port of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from multicast.errors import UsageError
from multicast.metrics.clients import ClientMetrics
from multicast.metrics.exposition import registry_of
from topology import extra

with extra("collectors"):
    from prometheus_client import start_http_server


@contextmanager
def serving(port: int) -> Iterator[ClientMetrics]:
    """Serve the clients that are added to what this gives, until the end of the block.

    Listens at AMCAST_WEB_HOST, 127.0.0.1 by default, and at any free port for port 0; writes the
    address to stderr. Raises `UsageError` if that fails, as where another process uses the port.
    """
    host = os.environ.get("AMCAST_WEB_HOST", "127.0.0.1")
    metrics = ClientMetrics()
    try:
        server, thread = start_http_server(port, host, registry_of(metrics))
    except OSError as error:
        raise UsageError(
            f"metrics cannot be served at {host}:{port} ({error.strerror or error}); choose "
            f"another port with --metrics-port, or 0 for any free one"
        ) from error
    try:
        shown = f"[{host}]" if ":" in host else host
        sys.stderr.write(f"metrics: http://{shown}:{server.server_port}/metrics\n")
        sys.stderr.flush()
        yield metrics
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
