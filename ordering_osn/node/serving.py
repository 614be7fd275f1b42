"""Runs a node in this process: its chains, the gRPC server and the operations server.

The folder of the node decides which chains run; the node also serves with none.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from multicast.drivers import open_driver
from multicast.settings import Settings
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.operations import Operations
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.identity import SigningIdentity, expiry_warning
from ordering_osn.node.in_sync import Replicas
from ordering_osn.node.kafka_connection import KafkaConnection
from ordering_osn.node.peers import PeerNodes
from ordering_osn.node.registrar import Registrar

# How long a request to Kafka may take. A chain's loop blocks for as long, so a node stops and
# reports a lost broker within seconds. Kafka's own default is 30 s.
_REQUEST_S = 5.0
# How long the producer retries an append, two requests; then the client gets 503. Kafka's own
# default is 120 s: a client would wait that long for its answer.
_DELIVERY_S = 10.0
# Once a day is enough for a week's notice, and does not fill the log.
_CERTIFICATES_EVERY_S = 24 * 60 * 60.0
_log = logging.getLogger("amcast.osn")
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `amcast osn run`. Without `operations` there is no operations server."""

    folder: Path
    listen: Address
    operations: Address | None
    signer: SigningIdentity
    tls: TlsFiles | None = None
    operations_tls: TlsFiles | None = None
    operators: bool = False
    peers: Sequence[str] = ()
    peers_tls: TlsFiles | None = None
    peers_name: str = ""
    accept_loss: Sequence[str] = ()
    fsync: Literal["block", "never"] = "block"


async def serve(settings: Settings, options: Options, started: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or SIGINT; `started` is called with each address it listens at."""
    _allow_open_files()
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, over.set)
    metrics = Metrics()
    cluster = KafkaConnection(
        lambda: open_driver(
            settings.driver,
            settings.bootstrap,
            settings.client,
            request_timeout_s=_REQUEST_S,
            delivery_timeout_s=_DELIVERY_S,
        ),
        settings.topic,
        open_replicas=lambda: Replicas(
            settings.bootstrap, settings.client, request_timeout_s=_REQUEST_S
        ),
        tickets=settings.tickets,
    )
    registrar = Registrar(
        options.folder,
        cluster,
        options.signer,
        peers=PeerNodes(
            options.peers,
            options.signer,
            loop,
            tls=options.peers_tls,
            name=options.peers_name,
        ),
        accept_loss=options.accept_loss,
        metrics=metrics,
        fsync=options.fsync,
    )
    host, port = options.listen
    server = Server(registrar, host=host, port=port, tls=options.tls, metrics=metrics)
    async with contextlib.AsyncExitStack() as opened:
        watch = asyncio.create_task(_watch_certificates(options))
        opened.callback(watch.cancel)
        opened.push_async_callback(asyncio.to_thread, registrar.stop)
        # Before the server: requests for a chain of this node must not be answered 404.
        await asyncio.to_thread(registrar.start)
        await server.start()
        opened.push_async_callback(server.stop)
        started(f"broadcast and deliver: {server.host}:{server.port}")
        if options.operations is not None:
            operations = _operations(registrar, metrics, options, options.operations)
            opened.callback(operations.stop)
            scheme = "https" if operations.tls else "http"
            started(f"operations: {scheme}://{operations.host}:{operations.port}")
        # Imported modules stay for good: the garbage collector need not scan them again.
        gc.collect()
        gc.freeze()
        await over.wait()


def _allow_open_files() -> None:
    """Raise the limit of open files as far as this process may.

    A shell's limit of 1,024 is that of programs that call select(2), and is reached by some 40
    channels.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _watch_certificates(options: Options) -> None:
    """Log each day which of this node's certificates has expired, or does within a week."""
    certificates = {"--msp": options.signer.certificate}
    if options.tls is not None:
        certificates["--tls-cert"] = options.tls.certificate
    while True:
        for option, certificate in certificates.items():
            warning = expiry_warning(option, certificate, datetime.now(UTC))
            if warning is not None:
                _log.warning("%s", warning)
        await asyncio.sleep(_CERTIFICATES_EVERY_S)


def _operations(
    registrar: Registrar, metrics: Metrics, options: Options, address: Address
) -> Operations:
    host, port = address
    tls, operators = options.operations_tls, options.operators
    operations = Operations(registrar, metrics, host=host, port=port, tls=tls, operators=operators)
    operations.start()
    return operations
