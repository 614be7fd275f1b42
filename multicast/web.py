"""The web server of all processes, with one request per connection.

    page    GET and HEAD of a document that is known at once, such as `/status`
    route   GET and HEAD of what takes time, at most `ROUTE_S` seconds: a document, or a stream
            without an end. There are at most `STREAMS_MAX` streams; the next one gets 503
    call    any method, with a body of up to `BODY_BYTES_MAX` bytes

Any other request is answered with 404, 405, 411 or 400, and an error with 500. Time, size and
number of requests are bounded. A client has `CLIENT_S` seconds to agree on TLS and to send its
whole request, and as long to take the answer, or each event of a stream; then it is cut off. Beyond
`CONNECTIONS_MAX` connections the oldest is closed, so clients that keep connections open cannot
shut out others.

A browser that shows a foreign site can be led here under a name of that site, which then reads the
answers (DNS rebinding). So with `host` a request has to name an address, a name without a dot (no
stranger can own one), this machine or `host`, or it gets 421; only `/healthz` is for everybody.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import os
import re
import socket
import ssl
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import parse_qsl

from multicast.errors import UsageError

CLIENT_S = 5.0  # probers have shorter time-outs themselves; each of the two halves of a request
CONNECTIONS_MAX = 64  # probers are a few; each connection costs a task and a file descriptor
_HEAD_BYTES_MAX = 16 * 1024  # web servers usually allow 8 to 16 KiB
_BODY_END_S = 1.0  # for the end of a body that is refused; clients send it at once
BODY_BYTES_MAX = 64 * 1024  # far more than the longest that is accepted (log_levels.py)
_BACKLOG_MAX = 128  # connections that wait for accept; Linux's default bound before 5.4

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format

ROUTE_S = 30.0  # a route may read order streams; a person waits for it
STREAMS_MAX = 16  # people who look at once, with two streams each: eight

_log = logging.getLogger("amcast.web")

# Gives a page: the status and a JSON document, or a text in Prometheus' format.
Page = Callable[[], tuple[HTTPStatus, Mapping[str, Any] | str]]


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for; `host` is the Host header, without its port.

    `certified`: the client has shown a certificate of an authority that the server knows.
    """

    path: str
    query: Mapping[str, str]
    host: str
    method: str = "GET"
    body: bytes = b""
    certified: bool = False


@dataclass(frozen=True, slots=True)
class WebDocument:
    """An answer with its content type and further headers."""

    status: HTTPStatus
    kind: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer of server-sent events, each as its bytes."""

    events: AsyncGenerator[bytes, None]
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[Request], Awaitable[WebDocument | EventStream]]
Call = Callable[[Request], Awaitable[WebDocument]]


def listen_at(
    host: str,
    port: int,
    *,
    what: str = "the web pages",
    port_option: str = "--web-port",
    host_setting: str = "AMCAST_WEB_HOST",
) -> socket.socket:
    """Open a listening socket at that address and no other; port 0 takes any free port.

    Raises `UsageError` if that fails, for example because another process uses the port: `what`
    cannot be served there, and which option or setting names another port or host.
    """
    try:
        return _listening(host, port)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        way_out = f"set {host_setting} to an address of this machine"
        if isinstance(error, OSError) and error.errno in {errno.EADDRINUSE, errno.EACCES}:
            way_out = f"choose another port with {port_option}, or 0 for any free one"
        raise UsageError(f"{what} cannot be served at {host}:{port} ({why}); {way_out}") from error


def _listening(host: str, port: int) -> socket.socket:
    """Listen at the first address of the host at which that is possible."""
    refused = OSError("it has no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    ):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(_BACKLOG_MAX)
            opened.setblocking(False)
        except OSError as error:
            opened.close()
            refused = error
        else:
            return opened
    raise refused


def address_towards(bootstrap: str) -> str:
    """Give the local address from which this machine reaches the first bootstrap broker.

    Raises `UsageError` where no route leads there.
    """
    host, _, port = bootstrap.split(",", maxsplit=1)[0].strip().rpartition(":")
    try:
        family, kind, protocol, _, remote = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(remote)  # of a datagram socket: chooses a route, sends nothing
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no route leads to the bootstrap address {bootstrap}: {error}; correct it, or set "
            f"'listen' in amcast.toml or AMCAST_LISTEN"
        ) from error


def address_of(listening: socket.socket) -> str:
    """Give the HOST:PORT of a listening socket, as in a URL."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class WebServer:
    """Serves pages, routes and calls on a listening socket, in the running event loop.

    `tls`: the context of a server that speaks TLS. `route_s`: how long a route or a call may take.
    `host`: where it listens, if only requests to its own names are answered.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        routes: Mapping[str, Route] | None = None,
        *,
        calls: Mapping[str, Call] | None = None,
        tls: ssl.SSLContext | None = None,
        route_s: float = ROUTE_S,
        host: str | None = None,
    ) -> None:
        all_routes = {path: _route_of(page) for path, page in pages.items()} | dict(routes or {})
        self._routes = {path: _guarded(path, route, host) for path, route in all_routes.items()}
        self._calls = {path: _guarded(path, call, host) for path, call in (calls or {}).items()}
        self.tls = tls  # may be replaced: of connections from then on
        self._route_s = route_s
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[Any], None] = {}  # in insertion order: oldest first
        self._streams: dict[asyncio.Task[Any], None] = {}

    async def start(self, listening: socket.socket) -> None:
        """Start to answer requests."""
        self._server = await asyncio.start_server(
            self._client, sock=listening, limit=_HEAD_BYTES_MAX
        )

    async def stop(self) -> None:
        """Stop, and cut off the requests that are being answered."""
        if self._server is not None:
            self._server.close()
        ending = [*self._clients, *self._streams]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= CONNECTIONS_MAX:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        self._clients[task] = None
        try:
            # `OSError` is also what a failed TLS handshake and a time-out raise.
            with suppress(asyncio.IncompleteReadError, asyncio.CancelledError, OSError):
                async with asyncio.timeout(CLIENT_S) as limit:
                    if self.tls is not None:
                        await writer.start_tls(self.tls)
                    answer = await self._answer(reader, writer, limit)
                if isinstance(answer, EventStream):
                    self._clients.pop(task, None)
                    self._streams[task] = None
                    await _stream(answer, reader, writer)
                async with asyncio.timeout(CLIENT_S):
                    writer.write(answer if isinstance(answer, bytes) else b"")
                    writer.close()
                    await writer.wait_closed()
        finally:
            self._clients.pop(task, None)
            self._streams.pop(task, None)
            writer.transport.abort()

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: asyncio.Timeout
    ) -> bytes | EventStream:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _refused(HTTPStatus.BAD_REQUEST, "the head of the request is too long")
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _refused(HTTPStatus.BAD_REQUEST, "this is not an HTTP/1 request")
        method, target, _ = words
        path, _, query = target.partition("?")
        path = path.rstrip("/") or "/"
        route: Route | None = self._calls.get(path)
        body = b""
        if route is not None:
            if _values(rest, "transfer-encoding"):
                # Who still sends when the connection is closed may never read the answer.
                with suppress(asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
                    async with asyncio.timeout(_BODY_END_S):
                        await reader.readuntil(b"0\r\n\r\n")
                return _refused(HTTPStatus.LENGTH_REQUIRED, "give the length of the body")
            length = _length_of(rest)
            if length is None:
                at_most = f"the body may have {BODY_BYTES_MAX} bytes"
                return _refused(HTTPStatus.BAD_REQUEST, at_most)
            body = await reader.readexactly(length)
        elif (route := self._routes.get(path)) is None:
            known = " ".join([*self._routes, *self._calls])
            return _refused(HTTPStatus.NOT_FOUND, f"the pages here are: {known}")
        elif method not in ("GET", "HEAD"):
            return _refused(HTTPStatus.METHOD_NOT_ALLOWED, "use GET or HEAD")
        certified = bool(writer.get_extra_info("peercert"))
        host = _host_of(rest)
        request = Request(path, dict(parse_qsl(query)), host, method, body, certified=certified)
        limit.reschedule(asyncio.get_running_loop().time() + self._route_s)
        try:
            answer = await route(request)
        except Exception as error:  # noqa: BLE001 - the other pages go on
            _log.exception("%s failed", path)
            why = f"{path} failed: {type(error).__name__}: {error}"
            return _refused(HTTPStatus.INTERNAL_SERVER_ERROR, why)
        if isinstance(answer, WebDocument):
            return _bytes_of(answer, body=method != "HEAD")
        return await self._streamed(answer, method)

    async def _streamed(self, answer: EventStream, method: str) -> bytes | EventStream:
        """Give the stream if the client wants it and there is room; else an answer instead."""
        if method == "GET" and len(self._streams) < STREAMS_MAX:
            return answer
        await answer.events.aclose()
        if method == "HEAD":
            kind = "text/event-stream; charset=utf-8"
            return _bytes_of(WebDocument(HTTPStatus.OK, kind, b"", answer.headers), body=False)
        return _refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open here; close one")


class WebThread:
    """Runs a `WebServer` in a thread with an event loop of its own: `with WebThread(…):`.

    So it answers although the process has no event loop, or one that hangs.
    """

    def __init__(self, server: WebServer, listening: socket.socket) -> None:
        self._server, self._listening = server, listening
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="amcast-web", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._server.start(self._listening))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._server.stop())
        self._run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result()


async def _stream(
    answer: EventStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    lines = [f"{name}: {value}\r\n" for name, value in answer.headers.items()]
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    writer.write(f"{head}{''.join(lines)}Connection: close\r\n\r\n".encode())
    streaming = asyncio.current_task()
    assert streaming is not None
    # A client that goes away makes room at once, not only when it is written to.
    gone = asyncio.create_task(_until_closed(reader))
    gone.add_done_callback(lambda _: streaming.cancel())
    try:
        async with aclosing(answer.events) as events:
            async for event in events:
                writer.write(event)
                async with asyncio.timeout(CLIENT_S):
                    await writer.drain()
    finally:
        gone.cancel()


async def _until_closed(reader: asyncio.StreamReader) -> None:
    with suppress(OSError):
        while await reader.read(_HEAD_BYTES_MAX):
            pass


def _values(lines: list[str], name: str) -> list[str]:
    """Give the values of a header, by its name in lower case."""
    heads = [line.partition(":") for line in lines]
    return [value.strip() for head, _, value in heads if head.lower() == name]


def _host_of(lines: list[str]) -> str:
    """Give the host that the client asked for, in lower case and without a port."""
    named = _values(lines, "host")
    if len(named) != 1:
        return ""
    host = named[0].lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _guarded(path: str, route: Route, host: str | None) -> Route:
    if host is None or path == "/healthz":
        return route

    async def answer(request: Request) -> WebDocument | EventStream:
        if _is_own(request.host, host):
            return await route(request)
        sentence = "name this server by its address, as localhost, or by the name of its machine"
        return json_document(HTTPStatus.MISDIRECTED_REQUEST, {"error": sentence})

    return answer


def is_loopback(host: str) -> bool:
    """Whether a host is this machine's own, by address or as localhost."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_own(named: str, host: str) -> bool:
    """Whether a Host header names us, and not a site of somebody else."""
    if named in (host.lower(), os.uname().nodename.lower()):
        return True
    try:
        ipaddress.ip_address(named)
    except ValueError:
        return bool(named) and "." not in named
    return True


def _length_of(lines: list[str]) -> int | None:
    """Give the length of the body; None where it is none, or too large."""
    stated = _values(lines, "content-length") or ["0"]
    length = int(stated[0]) if re.fullmatch("[0-9]{1,9}", stated[0]) else BODY_BYTES_MAX + 1
    return length if len(stated) == 1 and length <= BODY_BYTES_MAX else None


def _route_of(page: Page) -> Route:
    async def route(_: Request) -> WebDocument:
        status, document = page()
        if isinstance(document, str):
            return WebDocument(status, METRICS_TYPE, document.encode())
        return json_document(status, document)

    return route


def json_document(status: HTTPStatus, document: Mapping[str, Any]) -> WebDocument:
    """Make an answer of a JSON object."""
    return WebDocument(status, "application/json", json.dumps(document).encode())


def _refused(status: HTTPStatus, why: str) -> bytes:
    return _bytes_of(json_document(status, {"error": why}), body=True)


def _bytes_of(document: WebDocument, *, body: bool) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in document.headers.items()]
    if document.status is not HTTPStatus.NO_CONTENT:
        lines.insert(0, f"Content-Type: {document.kind}\r\n")
        lines.insert(1, f"Content-Length: {len(document.body)}\r\n")
    head = f"HTTP/1.1 {document.status.value} {document.status.phrase}\r\n"
    written = f"{head}{''.join(lines)}Connection: close\r\n\r\n".encode()
    return written + document.body if body else written
