"""A TCP proxy between clients and brokers that delays, doubles or cuts chosen Kafka requests.

It has one port for each broker; the broker's listener for clients advertises that port, and traffic
between brokers does not pass here. Frames are forwarded unchanged and in order, except the requests
that a rule catches (`frames.Action` lists the actions). Connections that do not carry Kafka frames,
such as TLS, are closed.

    armed     of a rule: it waits for a matching request, or holds one
    owed      of an answer: its request was caught, and the broker has not answered yet

Invariant: a client gets at most one answer to each request, in the order of its requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from bench.nemesis.frames import (
    Action,
    Frames,
    RequestFault,
    RequestFrame,
    number_of_answer,
    read_request,
)
from multicast.errors import AmcastError, ProtocolViolation, TimedOut

_CHUNK_BYTES = 64 * 1024  # of one read: the default limit of an asyncio stream's buffer
_THREAD_S = 30.0  # for the thread to start, and to end
_OWED_S = 60.0  # for the answer to a caught request whose client has disconnected
_SETTLED_S = 0.02  # for the event loop to take in a change of its connections
_CLOSED_S = 1.0  # for written bytes to reach a side that still reads


class _Broken(Exception):
    """A rule breaks this connection now."""


class _Gone(Exception):
    """The client has disconnected; only the owed answers are still awaited."""


class Armed:
    """An armed rule. Any thread may wait for its events.

    `fired`      set when the first request is caught
    `answered`   set when a broker has answered a caught request (twice if it was doubled), so it
                 was executed. Never set for a cut request
    """

    def __init__(self, rule: RequestFault, loop: asyncio.AbstractEventLoop) -> None:
        self.rule = rule
        self.fired = threading.Event()
        self.answered = threading.Event()
        self._loop = loop
        self._released = asyncio.Event()
        self._seen = 0
        self._caught = 0

    @property
    def count(self) -> int:
        """The number of caught requests."""
        return self._caught

    def release(self) -> None:
        """Release all held requests and answers, and catch no more. Returns at once."""
        with contextlib.suppress(RuntimeError):  # the proxy was closed: nothing is held
            self._loop.call_soon_threadsafe(self._released.set)

    def catches(self, request: RequestFrame) -> bool:
        """Count a request; whether the rule applies to it. Called on the proxy's thread."""
        if self._released.is_set() or not self.rule.fits(request):
            return False
        self._seen += 1
        if self.rule.nth not in (None, self._seen):
            return False
        self._caught += 1
        self.fired.set()
        return True

    async def until_due(self) -> None:
        """Wait for the rule's delay or its release, whichever comes first."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._released.wait(), self.rule.delay_s)


@dataclass(slots=True)
class _Owed:
    """A caught request: how many answers are awaited, and how many of them are forwarded."""

    armed: Armed
    answers: int
    passing: int


@dataclass(slots=True)
class _ProxiedConnection:
    """A client's connection, and the connection to the broker that was opened for it."""

    broker: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    broker_reader: asyncio.StreamReader
    broker_writer: asyncio.StreamWriter
    owed: dict[int, _Owed] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # no answer is owed
    gone: bool = False  # the client has disconnected

    async def forward(self, frame: bytes) -> None:
        self.broker_writer.write(frame)
        await self.broker_writer.drain()

    def owe(
        self, request: RequestFrame, armed: Armed, *, answers: int = 1, passing: int = 1
    ) -> None:
        self.owed[request.number] = _Owed(armed, answers, passing)
        self.settled.clear()

    async def answer(self, frame: bytes) -> None:
        """Forward an answer, or apply the rule that caught its request."""
        number = number_of_answer(frame)
        owed = self.owed.get(number)
        passes = True
        if owed is not None:
            owed.answers -= 1
            passes = owed.passing > 0
            owed.passing -= 1
            if not owed.answers:
                del self.owed[number]
                owed.armed.answered.set()
            if owed.armed.rule.action is Action.LOSE_ANSWER:
                raise _Broken
            if owed.armed.rule.action is Action.HOLD_ANSWER:
                await owed.armed.until_due()
            if not self.owed:
                self.settled.set()
        if passes and not self.gone:
            try:
                self.writer.write(frame)
                await self.writer.drain()
            except OSError:  # a held request of this client must still reach the broker
                self.gone = True

    def abort(self) -> None:
        """Abort both connections; unsent bytes are lost."""
        self.writer.transport.abort()
        self.broker_writer.transport.abort()

    async def close(self) -> None:
        """Close both connections after sending written bytes; waits at most `_CLOSED_S` each."""
        self.writer.close()
        self.broker_writer.close()
        for writer in (self.writer, self.broker_writer):
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _CLOSED_S)
        self.abort()


class Proxy:
    """Proxies for some brokers, in its own thread; a context manager.

    `targets`   by broker number, the real address of each; it is used when a client connects, so
                the broker may start later
    `host`      where the proxies listen
    `watch`     called with each request before any rule sees it, on the proxy's thread

    Entering opens the ports; leaving closes them and breaks all connections. Methods may be called
    from any thread.
    """

    def __init__(
        self,
        targets: Mapping[int, tuple[str, int]],
        *,
        host: str = "127.0.0.1",
        watch: Callable[[RequestFrame], None] | None = None,
    ) -> None:
        self._targets = dict(targets)
        self._host = host
        self._watch = watch
        self._armed: list[Armed] = []
        self._connections: set[asyncio.Task[None]] = set()
        self._sockets: dict[int, socket.socket] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        try:
            for broker in self._targets:
                opened = socket.create_server((self._host, 0))
                self._sockets[broker] = opened
                self._addresses[broker] = opened.getsockname()[:2]
        except OSError as error:
            self._close_sockets()
            raise AmcastError(f"The proxy cannot listen at {self._host}: {error}.") from error
        ready = threading.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="nemesis-proxy", daemon=True
        )
        self._thread.start()
        if not ready.wait(_THREAD_S):
            raise TimedOut(f"The proxy did not start in {_THREAD_S:g} s.")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(_THREAD_S)

    def _close_sockets(self) -> None:
        for opened in self._sockets.values():
            opened.close()

    def address(self, broker: int) -> tuple[str, int]:
        """Return the host and port at which clients reach this broker."""
        return self._addresses[broker]

    @property
    def bootstrap(self) -> str:
        """All addresses as Kafka's bootstrap.servers: HOST:PORT, comma-separated."""
        return ",".join(f"{host}:{port}" for host, port in self._addresses.values())

    def arm(self, rule: RequestFault) -> Armed:
        """Arm a rule for all requests from now on. At most one rule catches a request."""
        assert self._loop is not None, "enter the proxy before arming a rule"
        armed = Armed(rule, self._loop)
        self._armed = [*self._armed, armed]  # the proxy's thread may iterate over the old list
        return armed

    def disarm(self) -> None:
        """Release and remove every rule."""
        armed, self._armed = self._armed, []
        for rule in armed:
            rule.release()

    # -- on the proxy's thread --------------------------------------------------------------

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        servers = [
            await asyncio.start_server(self._accept(broker), sock=opened)
            for broker, opened in self._sockets.items()
        ]
        ready.set()
        await self._stop.wait()
        # A server that is closed at once leaks the connections it has just accepted (Python 3.11).
        for opened in self._sockets.values():
            self._loop.remove_reader(opened)
        await asyncio.sleep(_SETTLED_S)
        for server in servers:
            server.close()
        while self._connections:
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await asyncio.sleep(_SETTLED_S)  # aborted connections close in the loop's next turn

    def _accept(self, broker: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(broker, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            # A task that is cancelled before it starts does not close its connection itself.
            task.add_done_callback(lambda _: writer.transport.abort())

        return accepted

    async def _carry(
        self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one client's connection until either side ends it."""
        try:
            ends = await asyncio.open_connection(*self._targets[broker])
        except OSError:
            return  # the client's connection ends, as if the broker did not run
        connection = _ProxiedConnection(broker, reader, writer, *ends)
        ways = [
            asyncio.ensure_future(self._requests(connection)),
            asyncio.ensure_future(_answers(connection)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            ended = await asyncio.gather(*ways, return_exceptions=True)
            if any(isinstance(error, _Broken) for error in ended):
                connection.abort()
            else:
                await connection.close()

    async def _requests(self, connection: _ProxiedConnection) -> None:
        frames = Frames()
        with contextlib.suppress(_Gone, OSError, ProtocolViolation):
            while piece := await connection.reader.read(_CHUNK_BYTES):
                for frame in frames.feed(piece):
                    await self._request(connection, read_request(frame, broker=connection.broker))
        connection.gone = True
        if connection.owed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(connection.settled.wait(), _OWED_S)

    async def _request(self, connection: _ProxiedConnection, request: RequestFrame) -> None:
        if self._watch is not None:
            self._watch(request)
        armed = next((candidate for candidate in self._armed if candidate.catches(request)), None)
        if armed is None:
            await connection.forward(request.frame)
            return
        match armed.rule.action:
            case Action.DELAY:
                await armed.until_due()
                connection.owe(request, armed)
                await connection.forward(request.frame)
            case Action.DOUBLE:
                connection.owe(request, armed, answers=2)
                await connection.forward(request.frame * 2)
            case Action.CUT:
                raise _Broken
            case Action.LOSE_ANSWER:
                connection.owe(request, armed, passing=0)
                await connection.forward(request.frame)
            case Action.HOLD_ANSWER:
                connection.owe(request, armed)
                await connection.forward(request.frame)
            case Action.STRAND:
                connection.gone = True
                connection.writer.transport.abort()
                await armed.until_due()
                connection.owe(request, armed)
                await connection.forward(request.frame)
                raise _Gone


async def _answers(connection: _ProxiedConnection) -> None:
    frames = Frames()
    with contextlib.suppress(OSError, ProtocolViolation):
        while piece := await connection.broker_reader.read(_CHUNK_BYTES):
            for frame in frames.feed(piece):
                await connection.answer(frame)
