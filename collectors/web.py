"""A small web server for `/healthz`, `/status` and `/metrics`, with one request per connection.

    GET and HEAD of a known path   the status of the page, 200 or 503; 500 and the error if it fails
    anything else                  404, 405 or 400

Time, size and number of requests are bounded. A client has `CLIENT_S` seconds to send its request
and to read the answer. Beyond `CONNECTIONS_MAX` connections the oldest is closed, so clients that
keep connections open cannot shut out others.

A route (`live/routes.py`) answers with a document, for which it may take `ROUTE_S` seconds, or with
a stream without an end. There are at most `STREAMS_MAX` streams; the next one gets 503. A client
that does not read its stream for `CLIENT_S` seconds is cut off.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from multicast.errors import UsageError

CLIENT_S = 5.0  # probers have shorter time-outs themselves
CONNECTIONS_MAX = 64  # probers are a few; each connection costs a task and a file descriptor
_HEAD_BYTES_MAX = 16 * 1024  # web servers usually allow 8 to 16 KiB
_BACKLOG_MAX = 128  # connections that wait for accept; Linux's default bound before 5.4

ROUTE_S = 30.0  # a route may read order streams; a person waits for it
STREAMS_MAX = 16  # people who look at once, with two streams each: eight

_log = logging.getLogger("amcast.collectors")

# Gives a page: the status and a JSON document, or a text in Prometheus' format.
Page = Callable[[], tuple[HTTPStatus, Mapping[str, Any] | str]]


@dataclass(frozen=True, slots=True)
class Request:
    """What a client asks for; `host` is the Host header, without its port."""

    path: str
    query: Mapping[str, str]
    host: str


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


def listen_at(host: str, port: int) -> socket.socket:
    """Open a listening socket at that address and no other; port 0 takes any free port.

    Raises `UsageError` if that fails, for example because another process uses the port.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(_BACKLOG_MAX)
        except BaseException:
            opened.close()
            raise
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"the web pages cannot be served at {host}:{port} ({why}); {_way_out(error)}"
        ) from error
    opened.setblocking(False)
    return opened


def _way_out(error: Exception) -> str:
    """Say what to do: the port is in use or not allowed, or the host is not this machine's."""
    if isinstance(error, OSError) and error.errno in {errno.EADDRINUSE, errno.EACCES}:
        return "choose another port with --web-port, or 0 for any free one"
    return "set AMCAST_WEB_HOST to an address of this machine"


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
    """Serves pages and routes on a listening socket, in the running event loop."""

    def __init__(
        self, pages: Mapping[str, Page], routes: Mapping[str, Route] | None = None
    ) -> None:
        self._pages = pages
        self._routes = routes or {}
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
            with suppress(asyncio.IncompleteReadError, OSError):
                async with asyncio.timeout(CLIENT_S) as limit:
                    answer = await self._answer(reader, limit)
                    if isinstance(answer, bytes):
                        writer.write(answer)
                        await writer.drain()
                if isinstance(answer, EventStream):
                    self._clients.pop(task, None)
                    self._streams[task] = None
                    await _stream(answer, reader, writer)
        except (TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._clients.pop(task, None)
            self._streams.pop(task, None)
            writer.close()

    async def _answer(
        self, reader: asyncio.StreamReader, limit: asyncio.Timeout
    ) -> bytes | EventStream:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _written(
                HTTPStatus.BAD_REQUEST, {"error": "the head of the request is too long"}
            )
        first, *rest = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _written(HTTPStatus.BAD_REQUEST, {"error": "this is not an HTTP/1 request"})
        method, target, _ = words
        path, _, query = target.partition("?")
        path = path.rstrip("/") or "/"
        page, route = self._pages.get(path), self._routes.get(path)
        if page is None and route is None:
            known = " ".join([*self._pages, *self._routes])
            return _written(HTTPStatus.NOT_FOUND, {"error": f"the pages here are: {known}"})
        if method not in ("GET", "HEAD"):
            return _written(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET or HEAD"})
        if route is not None:
            limit.reschedule(asyncio.get_running_loop().time() + ROUTE_S)
            answer = await route(Request(path, dict(parse_qsl(query)), _host_of(rest)))
            if isinstance(answer, WebDocument):
                return _bytes_of(answer, body=method == "GET")
            if method == "GET" and len(self._streams) < STREAMS_MAX:
                return answer
            await answer.events.aclose()
            if method == "HEAD":
                kind = "text/event-stream"
                return _bytes_of(WebDocument(HTTPStatus.OK, kind, b"", answer.headers), body=False)
            busy = {"error": "too many pages are open here; close one"}
            return _written(HTTPStatus.SERVICE_UNAVAILABLE, busy)
        assert page is not None
        try:
            status, document = page()
        except Exception as error:  # noqa: BLE001 - the other pages go on
            _log.exception("%s failed", path)
            failed = {"error": f"{path} failed: {type(error).__name__}: {error}"}
            return _written(HTTPStatus.INTERNAL_SERVER_ERROR, failed)
        return _written(status, document, body=method == "GET")


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


def _host_of(lines: list[str]) -> str:
    """Give the host that the client asked for, in lower case and without a port."""
    named = [line[len("host:") :] for line in lines if line.lower().startswith("host:")]
    if len(named) != 1:
        return ""
    host = named[0].strip().lower()
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _written(status: HTTPStatus, document: Mapping[str, Any] | str, *, body: bool = True) -> bytes:
    if isinstance(document, str):
        kind, text = "text/plain; version=0.0.4", document.encode()
    else:
        kind, text = "application/json", json.dumps(document).encode()
    return _bytes_of(WebDocument(status, kind, text), body=body)


def _bytes_of(document: WebDocument, *, body: bool) -> bytes:
    lines = [f"{name}: {value}\r\n" for name, value in document.headers.items()]
    head = (
        f"HTTP/1.1 {document.status.value} {document.status.phrase}\r\n"
        f"Content-Type: {document.kind}; charset=utf-8\r\n"
        f"Content-Length: {len(document.body)}\r\n"
        f"{''.join(lines)}Connection: close\r\n\r\n"
    ).encode()
    return head + document.body if body else head
