"""A small web server for `/healthz`, `/status` and `/metrics`, with one request per connection.

    GET and HEAD of a known path   the status of the page, 200 or 503
    anything else                  404, 405 or 400

Time, size and number of requests are bounded. A client has `CLIENT_S` seconds to send its request
and to read the answer. Beyond `CONNECTIONS_MAX` connections the oldest is closed, so clients that
keep connections open cannot shut out others.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from multicast.errors import UsageError

CLIENT_S = 5.0  # probers have shorter time-outs themselves
CONNECTIONS_MAX = 64  # probers are a few; each connection costs a task and a file descriptor
_HEAD_BYTES_MAX = 16 * 1024  # web servers usually allow 8 to 16 KiB
_BACKLOG_MAX = 128  # connections that wait for accept; Linux's default bound before 5.4

# Gives a page: the status and a JSON document, or a text in Prometheus' format.
Page = Callable[[], tuple[HTTPStatus, Mapping[str, Any] | str]]


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
            f"the web pages cannot be served at {host}:{port} ({why}); choose another port with "
            f"--web-port, or 0 for any free one"
        ) from error
    opened.setblocking(False)
    return opened


def address_of(listening: socket.socket) -> str:
    """Give the HOST:PORT of a listening socket, as in a URL."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class WebServer:
    """Serves pages on a listening socket, in the running event loop."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[Any], None] = {}  # in insertion order: oldest first

    async def start(self, listening: socket.socket) -> None:
        """Start to answer requests."""
        self._server = await asyncio.start_server(
            self._client, sock=listening, limit=_HEAD_BYTES_MAX
        )

    async def stop(self) -> None:
        """Stop, and cut off the requests that are being answered."""
        if self._server is not None:
            self._server.close()
        for task in list(self._clients):
            task.cancel()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._clients) >= CONNECTIONS_MAX:
            oldest = next(iter(self._clients))
            del self._clients[oldest]
            oldest.cancel()
        self._clients[task] = None
        try:
            async with asyncio.timeout(CLIENT_S):
                with suppress(asyncio.IncompleteReadError, OSError):
                    writer.write(await self._answer(reader))
                    await writer.drain()
        except (TimeoutError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self._clients.pop(task, None)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _written(
                HTTPStatus.BAD_REQUEST, {"error": "the head of the request is too long"}
            )
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return _written(HTTPStatus.BAD_REQUEST, {"error": "this is not an HTTP/1 request"})
        method, target, _ = words
        page = self._pages.get(target.split("?", 1)[0].rstrip("/") or "/")
        if page is None:
            pages = " ".join(self._pages)
            return _written(HTTPStatus.NOT_FOUND, {"error": f"the pages here are: {pages}"})
        if method not in ("GET", "HEAD"):
            return _written(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "use GET or HEAD"})
        status, document = page()
        return _written(status, document, body=method == "GET")


def _written(status: HTTPStatus, document: Mapping[str, Any] | str, *, body: bool = True) -> bytes:
    if isinstance(document, str):
        kind, text = "text/plain; version=0.0.4", document.encode()
    else:
        kind, text = "application/json", json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: {kind}; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n"
        f"Connection: close\r\n\r\n"
    ).encode()
    return head + text if body else head
