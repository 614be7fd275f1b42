"""A small web server for `/healthz` and `/status`: one request a connection, bounded throughout.

    GET and HEAD of a known path   200, or what the path answers
    anything else                  404, 405 or 400

A client has so many seconds for its request and for taking the answer. Of too many at once, the
one that has waited longest has to go: who holds connections open cannot keep others out.
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

CLIENT_S = 5.0
CONNECTIONS_MAX = 64
_HEAD_BYTES_MAX = 16 * 1024
_BACKLOG = 128

# What a path answers: the status and a JSON document.
Page = Callable[[], tuple[HTTPStatus, Mapping[str, Any]]]


def listen_at(host: str, port: int) -> socket.socket:
    """Open a listening socket at that address and no other; port 0 takes any free one.

    Raises `UsageError` where that cannot be, as where another process has the port.
    """
    try:
        family, kind, protocol, _, at = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(at)
            opened.listen(_BACKLOG)
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
    """Give the address of a listening socket as it stands in a URL."""
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class WebServer:
    """Serves pages on a listening socket, in the loop that runs."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[Any], None] = {}  # the oldest first

    async def start(self, listening: socket.socket) -> None:
        """Begin to answer."""
        self._server = await asyncio.start_server(
            self._client, sock=listening, limit=_HEAD_BYTES_MAX
        )

    async def stop(self) -> None:
        """Answer no longer; what is being answered is cut off."""
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
            return _written(HTTPStatus.BAD_REQUEST, {"error": "this is no request of HTTP/1"})
        method, target, _ = words
        page = self._pages.get(target.split("?", 1)[0].rstrip("/") or "/")
        if page is None:
            return _written(HTTPStatus.NOT_FOUND, {"error": f"the pages: {' '.join(self._pages)}"})
        if method not in ("GET", "HEAD"):
            return _written(HTTPStatus.METHOD_NOT_ALLOWED, {"error": "GET or HEAD"})
        status, document = page()
        return _written(status, document, body=method == "GET")


def _written(status: HTTPStatus, document: Mapping[str, Any], *, body: bool = True) -> bytes:
    text = json.dumps(document).encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n"
        f"Content-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n"
        f"Connection: close\r\n\r\n"
    ).encode()
    return head + text if body else head
