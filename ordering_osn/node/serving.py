"""Runs a node in this process: its chains, the gRPC server and the operations server.

The folder of the node decides which chains run; the node also serves with none.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from multicast.drivers import certificates, open_driver
from multicast.settings import Settings
from ordering_osn.api.grpc_server import Server
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.operations import Operations
from ordering_osn.api.tls_files import FollowedFiles, TlsFiles
from ordering_osn.identity import SigningIdentity
from ordering_osn.node.kafka_connection import KafkaConnection, Replicas
from ordering_osn.node.peers import PeerNodes
from ordering_osn.node.registrar import Registrar

# How long a request to Kafka may take. A chain's loop blocks for as long, so a node stops and
# reports a lost broker within seconds. Kafka's own default is 30 s.
_REQUEST_S = 5.0
# How long the producer retries an append, two requests; then the client gets 503. Kafka's own
# default is 120 s: a client would wait that long for its answer.
_DELIVERY_S = 10.0
# How often files are looked at, some ten stat(2). Who cannot wait sends SIGHUP.
_FILES_EVERY_S = 10.0
_log = logging.getLogger("amcast.osn")
Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `amcast osn run`. Without `operations` there is no operations server."""

    folder: Path
    listen: Address
    operations: Address | None
    signer: FollowedFiles[SigningIdentity]
    tls: FollowedFiles[TlsFiles] | None = None
    operations_tls: FollowedFiles[TlsFiles] | None = None
    operators: bool = False
    peers: Sequence[str] = ()
    peers_tls: FollowedFiles[TlsFiles] | None = None
    peers_name: str = ""
    accept_loss: Sequence[str] = ()
    fsync: Literal["block", "never"] = "block"


async def serve(settings: Settings, options: Options, started: Callable[[str], None]) -> None:
    """Run a node until SIGTERM or SIGINT; `started` is called with each address it listens at.

    SIGHUP: all files of the options are read anew at once.
    """
    share_freed_memory()
    _allow_open_files()
    loop, over, renew = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    handlers = {signal.SIGTERM: over, signal.SIGINT: over, signal.SIGHUP: renew}
    for number, event in handlers.items():
        loop.add_signal_handler(number, event.set)
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
    signer, tls, peers_tls = options.signer, options.tls, options.peers_tls
    peers = PeerNodes(
        options.peers,
        signer.current,
        loop,
        tls=_current(peers_tls),
        name=options.peers_name,
    )
    registrar = Registrar(
        options.folder,
        cluster,
        signer.current,
        peers=peers,
        accept_loss=options.accept_loss,
        metrics=metrics,
        fsync=options.fsync,
    )
    host, port = options.listen
    server = Server(registrar, host=host, port=port, tls=_current(tls), metrics=metrics)
    signer.used += [registrar.renew, partial(setattr, peers, "signer")]
    if tls is not None:
        tls.used.append(server.renew)
    if peers_tls is not None:
        peers_tls.used.append(partial(setattr, peers, "tls"))
    async with contextlib.AsyncExitStack() as opened:
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
        watch = asyncio.create_task(_watch_files(options, metrics, renew))
        opened.callback(watch.cancel)
        # Imported modules stay for good: the garbage collector need not scan them again.
        gc.collect()
        gc.freeze()
        await over.wait()


def share_freed_memory() -> None:
    """Have all threads take memory from one place; call it BEFORE they begin.

    glibc gives threads their own, and what is freed there serves no others: 80 MB of a flood.
    """
    with contextlib.suppress(AttributeError):  # other systems have no such places
        ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX


def _allow_open_files() -> None:
    """Raise the limit of open files as far as this process may.

    A shell's limit of 1,024 is that of programs that call select(2), and is reached by some 40
    channels.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS refuses "unlimited"
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _watch_files(options: Options, metrics: Metrics, renew: asyncio.Event) -> None:
    """Read what has changed anew; log each day which certificates have ended, or do in a month."""
    again_at: dict[str, float] = {}
    files: list[FollowedFiles[Any] | None] = [
        *(options.signer, options.tls, options.operations_tls, options.peers_tls)
    ]
    while True:
        anyhow = renew.is_set()
        renew.clear()
        try:
            for followed in filter(None, files):
                await asyncio.to_thread(followed.renew, anyhow=anyhow)
                metrics.renewal_failed.labels(followed.option).set(bool(followed.trouble))
            await asyncio.to_thread(_show_ends, options, metrics, again_at)
        except Exception:  # noqa: BLE001 - the next look may find what it can use
            _log.exception("looking at keys and certificates failed; it is tried again")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(renew.wait(), _FILES_EVERY_S)


def _show_ends(options: Options, metrics: Metrics, again_at: dict[str, float]) -> None:
    now, shown = time.time(), metrics.certificate_expiry_timestamp_seconds
    for option, pem, authorities in _certificates(options):
        end = certificates.end_of(pem, authorities=authorities)
        if end is None:
            continue
        shown.labels(option).set(end)
        warning = certificates.expiry_warning(option, end, now)
        if warning and now >= again_at.get(option, 0.0):
            again_at[option] = now + certificates.AGAIN_S
            _log.warning("%s", warning)
    for (setting, _), end in certificates.ends().items():
        shown.labels(setting).set(end)


def _certificates(options: Options) -> Iterator[tuple[str, bytes, bool]]:
    """Give what certificates are in force: the option, PEM, and whether they are authorities'."""
    yield "--msp", options.signer.current.certificate, False
    if options.tls is not None:
        yield "--tls-cert", options.tls.current.certificate, False
        yield "--client-ca", options.tls.current.authorities, True
    if options.operations_tls is not None and options.operators:
        yield "--operations-ca", options.operations_tls.current.authorities, True
    if options.peers_tls is not None:
        yield "--tls-ca", options.peers_tls.current.authorities, True


def _current(files: FollowedFiles[TlsFiles] | None) -> TlsFiles | None:
    return None if files is None else files.current


def _operations(
    registrar: Registrar, metrics: Metrics, options: Options, address: Address
) -> Operations:
    host, port = address
    files, operators = options.operations_tls, options.operators
    tls = _current(files)
    operations = Operations(registrar, metrics, host=host, port=port, tls=tls, operators=operators)
    if files is not None:
        files.used.append(operations.renew)
    operations.start()
    return operations
