"""A node's operations over HTTP, as Fabric's orderer has them: health, metrics, logs, version.

    GET /healthz             200 {"status": "OK", "time": …}, or 503 with
                             "failed_checks": [{"component", "reason"}]; 405 for other methods;
                             408 where the checks take longer than `HEALTH_CHECK_S`.
                             Writes no record.
    GET /metrics             Prometheus' text format
    GET, PUT /logspec        {"spec": "info:amcast.osn.deliver=debug"}: 200, 204, or 400 {"error"};
                             411 for a body without a length (chunked)
    GET /version             {"Version": …}

With TLS, `/metrics` and `/logspec` require a client certificate (401 without one); with
`client_required` every path does. Requests are answered in separate threads, so they are answered
even if the node's event loop hangs. At most `CONNECTIONS_MAX` clients are served at a time; each
must send its whole request within `CLIENT_S`, and take the answer within as long.
"""

from __future__ import annotations

import io
import json
import logging
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotInTime
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

from multicast.errors import UsageError
from ordering_osn.api.channels import Channels
from ordering_osn.api.log_levels import ROOT, LogLevels, MalformedSpec
from ordering_osn.api.metrics import CONTENT_TYPE, CountingHandler, Metrics
from ordering_osn.api.tls_files import TlsFiles

HEALTH_CHECK_S = 30.0  # as in Fabric's health handler
CLIENT_S = 10.0  # as Fabric's operations server reads a request
# Each connection is a thread. A few scrapers and operators ask at the same time; with ten times
# more, connections that send nothing could hold 640 threads for `CLIENT_S`.
CONNECTIONS_MAX = 64
_BODY_BYTES_MAX = 64 << 10  # far more than a spec of 200 fields, the most that `LogLevels` accepts
_LISTEN_BACKLOG_MAX = 128  # above socketserver's 5, so that a burst of connections is not refused
_STOP_POLL_S = 0.1  # how long `stop` waits at most for the accepting thread: short for a human
_JSON = "application/json"
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
        client_required: bool = False,
        check_s: float = HEALTH_CHECK_S,
    ) -> None:
        self.host, self.port = host, port
        self.tls = tls is not None
        self.log_levels = LogLevels()
        self.metrics = metrics
        self._counting = CountingHandler(metrics)
        self._channels = channels
        self._check_s = check_s
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="amcast-health")
        self._checking: Future[list[tuple[str, str]]] | None = None
        self._context = _context(tls, client_required=client_required) if tls else None

    def start(self) -> None:
        """Listen, in threads; raises `UsageError` where the address cannot be used."""
        try:
            self._server = _Server((self.host, self.port), self, self._context)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror}"
            ) from error
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": _STOP_POLL_S}, daemon=True
        )
        self._thread.start()
        logging.getLogger(ROOT).addHandler(self._counting)

    def stop(self) -> None:
        """Stop listening; answers that are being written may be cut off."""
        logging.getLogger(ROOT).removeHandler(self._counting)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._checks.shutdown(wait=False, cancel_futures=True)

    def failed_checks(self) -> list[tuple[str, str]]:
        """Return the problems as (component, reason); raises `TimeoutError`.

        One check runs at a time; all clients that ask meanwhile get its result.
        """
        checking = self._checking
        if checking is None or checking.done():
            checking = self._checking = self._checks.submit(self._channels.health)
        return checking.result(self._check_s)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _LISTEN_BACKLOG_MAX

    def __init__(
        self, address: tuple[str, int], operations: Operations, context: ssl.SSLContext | None
    ) -> None:
        self.operations = operations
        self._tls = context
        self._free_connections = threading.Semaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free_connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            request.settimeout(CLIENT_S)
            if self._tls is not None:
                request = self._tls.wrap_socket(request, server_side=True)
            super().process_request_thread(request, client_address)
        except OSError as error:  # includes a failed TLS handshake
            _log.info("operations: %s: %s", client_address, error)
            self.shutdown_request(request)
        finally:
            self._free_connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        error = sys.exception()
        if isinstance(error, OSError):
            _log.info("operations: client %s closed its connection: %s", client_address, error)
        else:
            _log.error("operations: no answer for %s", client_address, exc_info=error)


class _Request(io.RawIOBase):
    """The bytes of a request; raises `TimeoutError` where they take longer than `CLIENT_S`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = time.monotonic() + CLIENT_S

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_s = self._deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError(f"the request did not arrive within {CLIENT_S:g} s")
        self._connection.settimeout(left_s)
        try:
            return self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(CLIENT_S)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "amcast"
    sys_version = ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_Request(self.connection))

    @property
    def _route(self) -> str:
        """The path without its query, which means nothing here."""
        return self.path.partition("?")[0]

    def do_GET(self) -> None:
        paths = {
            "/healthz": self._health,
            "/metrics": self._metrics,
            "/logspec": self._log_spec,
            "/version": self._version,
        }
        answer = paths.get(self._route)
        if answer is None:
            self._answer(HTTPStatus.NOT_FOUND)
        elif self._allowed():
            answer()

    def do_PUT(self) -> None:
        if self._route == "/logspec":
            if self._allowed():
                self._set_log_spec()
        else:
            self._other()

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # the base class looks up `do_METHOD`
            return self._other
        raise AttributeError(name)

    def _other(self) -> None:
        if self._route == "/logspec":
            self._error(f"invalid request method: {self.command}")
        else:
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED)

    def _allowed(self) -> bool:
        """Return whether this client may have the path; answers 401 where it may not."""
        if self._route in ("/healthz", "/version") or not self.server.operations.tls:
            return True
        if self.connection.getpeercert():
            return True
        self._answer(HTTPStatus.UNAUTHORIZED)
        return False

    def _health(self) -> None:
        try:
            failed = self.server.operations.failed_checks()
        except NotInTime:
            self._answer(HTTPStatus.REQUEST_TIMEOUT)
            return
        except Exception as error:  # noqa: BLE001 - any error means unhealthy
            _log.exception("the health check failed")
            failed = [("health", f"{type(error).__name__}: {error}")]
        status = HTTPStatus.SERVICE_UNAVAILABLE if failed else HTTPStatus.OK
        answer: dict[str, Any] = {
            "status": "Service Unavailable" if failed else "OK",
            "time": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
        }
        if failed:
            answer["failed_checks"] = [
                {"component": component, "reason": reason} for component, reason in failed
            ]
        self._answer(status, json.dumps(answer).encode(), _JSON)

    def _metrics(self) -> None:
        self._answer(HTTPStatus.OK, self.server.operations.metrics.expose(), CONTENT_TYPE)

    def _version(self) -> None:
        self._answer(HTTPStatus.OK, json.dumps({"Version": version("amcast")}).encode(), _JSON)

    def _log_spec(self) -> None:
        spec = self.server.operations.log_levels.spec
        self._answer(HTTPStatus.OK, json.dumps({"spec": spec}).encode(), _JSON)

    def _set_log_spec(self) -> None:
        if self.headers.get("Transfer-Encoding"):
            self._answer(HTTPStatus.LENGTH_REQUIRED)
            return
        try:
            length = int(self.headers.get("Content-Length") or 0)
            if not 0 <= length <= _BODY_BYTES_MAX:
                raise MalformedSpec(
                    f"the request has {length} bytes; at most {_BODY_BYTES_MAX} are allowed"
                )
            spec = json.loads(self.rfile.read(length))["spec"]
            self.server.operations.log_levels.set(spec)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._error(str(error) or type(error).__name__)
        else:
            self._answer(HTTPStatus.NO_CONTENT)

    def _error(self, text: str) -> None:
        self._answer(HTTPStatus.BAD_REQUEST, json.dumps({"error": text}).encode(), _JSON)

    def _answer(self, status: HTTPStatus, body: bytes = b"", kind: str = "text/plain") -> None:
        self.send_response(status)
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        _log.debug(format, *args)


def _context(tls: TlsFiles, *, client_required: bool) -> ssl.SSLContext:
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
            context.verify_mode = ssl.CERT_REQUIRED if client_required else ssl.CERT_OPTIONAL
    except (OSError, ValueError) as error:
        raise UsageError(f"TLS of the operations server: {error}") from error
    if client_required and not tls.authorities:
        raise UsageError(
            "TLS of the operations server: client certificates are required, "
            "but no authorities are given to check them"
        )
    return context
