"""A node's operations over HTTP, as Fabric's orderer has them: health, metrics, logs, version.

    GET /healthz             200 {"status": "OK", "time": …}, or 503 with
                             "failed_checks": [{"component", "reason"}]; 405 for other methods;
                             408 where the checks take longer than `HEALTH_CHECK_S`.
                             Writes no record.
    GET /metrics             Prometheus' text format
    GET, PUT /logspec        {"spec": "info:amcast.osn.deliver=debug"}: 200, 204, or 400 {"error"};
                             411 for a body without a length (chunked)
    GET /version             {"Version": …}

With TLS, `/metrics` and `/logspec` require a client certificate (401 without one). Log levels are
set by `operators` only: clients with a certificate of their own authorities; without TLS by whoever
is on this machine, so a page in its browser must not pass for one: there the Host header names this
machine, or no name (421). The web server
(`multicast/web.py`, which bounds clients) has a thread of its own, so requests are answered even if
the node's event loop hangs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

from multicast.errors import UsageError
from multicast.web import (
    CLIENT_S,
    METRICS_TYPE,
    Call,
    Request,
    WebDocument,
    WebServer,
    WebThread,
    is_loopback,
    json_document,
    listen_at,
)
from ordering_osn.api.channels import Channels
from ordering_osn.api.log_levels import ROOT, LogLevels
from ordering_osn.api.metrics import CountingHandler, Metrics
from ordering_osn.api.tls_files import TlsFiles

HEALTH_CHECK_S = 30.0  # as in Fabric's health handler
_log = logging.getLogger("amcast.osn.operations")


class Operations:
    """The HTTP server of a node. `port` 0 takes a free one; after `start` it is the real one."""

    def __init__(
        self,
        channels: Channels,
        metrics: Metrics,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsFiles | None = None,
        operators: bool = False,
        check_s: float = HEALTH_CHECK_S,
    ) -> None:
        """`operators`: the authorities of `tls` certify none but operators."""
        self.host, self.port = host, port
        self.tls = tls is not None
        self._local = not self.tls and is_loopback(host)
        self._operators = operators or self._local
        self._log_levels = LogLevels()
        self._metrics = metrics
        self._counting = CountingHandler(metrics)
        self._channels = channels
        self._check_s = check_s
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="amcast-health")
        self._checking: Future[list[tuple[str, str]]] | None = None
        calls = {
            "/healthz": self._guarded(self._health),
            "/metrics": self._guarded(self._metrics_page, certified=True),
            "/logspec": self._guarded(self._log_spec, certified=True, only_get=False),
            "/version": self._guarded(_version),
        }
        self._server = WebServer(
            {},
            calls=calls,
            tls=_context(tls) if tls else None,
            route_s=check_s + CLIENT_S,
        )

    def start(self) -> None:
        """Listen, in a thread; raises `UsageError` where the address cannot be used."""
        listening = listen_at(
            self.host,
            self.port,
            what="operations",
            port_option="--operations",
            host_setting="--operations",
        )
        self.port = listening.getsockname()[1]
        self._thread = WebThread(self._server, listening)
        self._thread.__enter__()
        logging.getLogger(ROOT).addHandler(self._counting)

    def renew(self, tls: TlsFiles) -> None:
        """Use these files for connections from now on; raises `UsageError`."""
        self._server.tls = _context(tls)

    def stop(self) -> None:
        """Stop listening; answers that are being written may be cut off."""
        logging.getLogger(ROOT).removeHandler(self._counting)
        self._thread.__exit__()
        self._checks.shutdown(wait=False, cancel_futures=True)

    def _guarded(self, call: Call, *, certified: bool = False, only_get: bool = True) -> Call:
        """Answer 421 to a browser on this machine that a name of elsewhere has led here.

        Then 405 to other methods, as Fabric does (to HEAD, too); and if it is to be `certified`,
        401 where the server speaks TLS and the client has shown no certificate.
        """

        async def guarded(request: Request) -> WebDocument:
            if self._local and not (request.host in ("", self.host) or is_loopback(request.host)):
                why = "open this page at its address, or as localhost"
                return json_document(HTTPStatus.MISDIRECTED_REQUEST, {"error": why})
            if only_get and request.method != "GET":
                return _empty(HTTPStatus.METHOD_NOT_ALLOWED)
            if certified and self.tls and not request.certified:
                return _empty(HTTPStatus.UNAUTHORIZED)
            return await call(request)

        return guarded

    async def _health(self, _: Request) -> WebDocument:
        """One check runs at a time; all clients that ask meanwhile get its result."""
        checking = self._checking
        if checking is None or checking.done():
            checking = self._checking = self._checks.submit(self._channels.health)
        try:
            async with asyncio.timeout(self._check_s):
                failed = await asyncio.shield(asyncio.wrap_future(checking))
        except TimeoutError:
            return _empty(HTTPStatus.REQUEST_TIMEOUT)
        except Exception as error:  # noqa: BLE001 - any error means unhealthy
            _log.exception("the health check failed")
            failed = [("health", f"{type(error).__name__}: {error}")]
        answer: dict[str, Any] = {
            "status": "Service Unavailable" if failed else "OK",
            "time": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        if failed:
            answer["failed_checks"] = [
                {"component": component, "reason": reason} for component, reason in failed
            ]
        status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
        return json_document(status, answer)

    async def _metrics_page(self, _: Request) -> WebDocument:
        return WebDocument(HTTPStatus.OK, METRICS_TYPE, self._metrics.expose())

    async def _log_spec(self, request: Request) -> WebDocument:
        if request.method == "GET":
            return json_document(HTTPStatus.OK, {"spec": self._log_levels.spec})
        if request.method != "PUT":
            return _bad_request(f"invalid request method: {request.method}")
        if not self._operators:
            why = "log levels are set with a certificate of an --operations-ca, or at the loopback"
            return json_document(HTTPStatus.FORBIDDEN, {"error": why})
        try:
            self._log_levels.set(json.loads(request.body)["spec"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return _bad_request(str(error) or type(error).__name__)
        return _empty(HTTPStatus.NO_CONTENT)


async def _version(_: Request) -> WebDocument:
    return json_document(HTTPStatus.OK, {"Version": version("amcast")})


def _empty(status: HTTPStatus) -> WebDocument:
    return WebDocument(status, "text/plain", b"")


def _bad_request(why: str) -> WebDocument:
    return json_document(HTTPStatus.BAD_REQUEST, {"error": why})


def _context(tls: TlsFiles) -> ssl.SSLContext:
    """Make the TLS context, for TLS 1.2 and later; `ssl` reads keys from files only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder, "pair.pem")
            pair.touch(mode=0o600)
            pair.write_bytes(tls.certificate + b"\n" + tls.key)
            context.load_cert_chain(pair)
        if tls.authorities:
            context.load_verify_locations(cadata=tls.authorities.decode())
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:
        raise UsageError(f"TLS of the operations server: {error}") from error
    return context
