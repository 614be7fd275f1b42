"""A TCP proxy between clients and brokers that knows Kafka's requests, and spoils a chosen one.

One port a broker; the broker's listener for clients advertises that port, and what brokers say to
each other does not come through here. Bytes pass as they are, frame by frame and in order, but for
the requests that a rule catches (`frames.Action` says what can happen to one). TLS is not looked
into: its connections are closed, as any that does not speak Kafka's frames.

    line      a client's connection and the one to the broker that was opened for it
    armed     a rule that waits for its request, or holds it
    owed      answers that this proxy waits for, since their requests were caught

Invariant: a client gets one answer at most to each of its requests, in the order of the requests.
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

_CHUNK_BYTES = 64 * 1024
_THREAD_S = 30.0  # for the thread to start, and to end
_OWED_S = 60.0  # for the answer to a caught request whose client has gone
_SETTLED_S = 0.02
_CLOSED_S = 1.0  # for what was written to reach a side that still reads


class _Broken(Exception):
    """A rule breaks this line now."""


class _Gone(Exception):
    """The client has no connection any longer; only what is owed is waited for."""


class Armed:
    """A rule at work. Waits on its events are the caller's, from any thread.

    `fired`      set when a request was caught for the first time
    `answered`   set when a broker has answered a caught request (both times, if it was doubled):
                 it was carried out. Never set for one that was cut
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
        """How many requests were caught."""
        return self._caught

    def release(self) -> None:
        """Let go what is held, now, and catch nothing more. Returns at once."""
        with contextlib.suppress(RuntimeError):  # the proxy was closed: nothing is held
            self._loop.call_soon_threadsafe(self._released.set)

    def catches(self, request: RequestFrame) -> bool:
        """Count a request; say whether it is one to spoil. Called on the proxy's thread."""
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
    """A caught request whose answer is awaited: how many answers, how many of them pass."""

    armed: Armed
    answers: int
    passing: int


@dataclass(slots=True)
class _Line:
    """One client's connection, and the one to its broker."""

    broker: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    broker_reader: asyncio.StreamReader
    broker_writer: asyncio.StreamWriter
    owed: dict[int, _Owed] = field(default_factory=dict)
    settled: asyncio.Event = field(default_factory=asyncio.Event)  # nothing is owed any longer
    gone: bool = False  # the client is

    async def forward(self, frame: bytes) -> None:
        self.broker_writer.write(frame)
        await self.broker_writer.drain()

    def owe(
        self, request: RequestFrame, armed: Armed, *, answers: int = 1, passing: int = 1
    ) -> None:
        self.owed[request.number] = _Owed(armed, answers, passing)
        self.settled.clear()

    async def answer(self, frame: bytes) -> None:
        """Pass an answer on, or do with it what the rule of its request says."""
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
            except OSError:  # a request of it may be held, and still has its way to go
                self.gone = True

    def abort(self) -> None:
        """Break both connections; what was written and not sent is lost."""
        self.writer.transport.abort()
        self.broker_writer.transport.abort()

    async def close(self) -> None:
        """Close both connections once what was written is sent, but wait for nobody who stalls."""
        self.writer.close()
        self.broker_writer.close()
        for writer in (self.writer, self.broker_writer):
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(writer.wait_closed(), _CLOSED_S)
        self.abort()


class Proxy:
    """Proxies for some brokers, in a thread of its own; a context manager.

    `targets`   by broker number, the address at which each is really reached; it is looked up when
                a client comes, so the broker may be started later
    `host`      where the proxies listen
    `ports`     by broker number; None: free ones
    `watch`     called with each request before any rule sees it, on the proxy's thread

    Entering opens the ports; leaving closes them and breaks all connections. Methods may be called
    from any thread.
    """

    def __init__(
        self,
        targets: Mapping[int, tuple[str, int]],
        *,
        host: str = "127.0.0.1",
        ports: Mapping[int, int] | None = None,
        watch: Callable[[RequestFrame], None] | None = None,
    ) -> None:
        self._targets = dict(targets)
        self._host = host
        self._ports = dict(ports or {})
        self._watch = watch
        self._armed: list[Armed] = []
        self._lines: set[asyncio.Task[None]] = set()
        self._sockets: dict[int, socket.socket] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None

    def __enter__(self) -> Self:
        try:
            for broker in self._targets:
                opened = socket.create_server((self._host, self._ports.get(broker, 0)))
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
        """All addresses, HOST:PORT by commas, as Kafka's clients want them."""
        return ",".join(f"{host}:{port}" for host, port in self._addresses.values())

    def arm(self, rule: RequestFault) -> Armed:
        """Put a rule to work for all requests from now on. One request meets one rule at most."""
        assert self._loop is not None, "a proxy is entered before a rule is armed"
        armed = Armed(rule, self._loop)
        self._armed = [*self._armed, armed]  # the proxy's thread may be walking the old list
        return armed

    def disarm(self) -> None:
        """Release every rule and forget it."""
        armed, self._armed = self._armed, []
        for one in armed:
            one.release()

    # -- on the proxy's thread --------------------------------------------------------------

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        servers = [
            await asyncio.start_server(self._accept(broker), sock=opened)
            for broker, opened in self._sockets.items()
        ]
        ready.set()
        await self._stop.wait()
        # A server that is closed first loses, unclosed, what it has just accepted (Python 3.11).
        for opened in self._sockets.values():
            self._loop.remove_reader(opened)
        await asyncio.sleep(_SETTLED_S)
        for server in servers:
            server.close()
        while self._lines:
            for line in self._lines:
                line.cancel()
            await asyncio.gather(*self._lines, return_exceptions=True)
            await asyncio.sleep(_SETTLED_S)  # broken connections are closed in the loop's next turn

    def _accept(self, broker: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._carry(broker, reader, writer))
            self._lines.add(task)
            task.add_done_callback(self._lines.discard)
            # A task that is cancelled at once, by the end of the proxy, closes nothing itself.
            task.add_done_callback(lambda _: writer.transport.abort())

        return accepted

    async def _carry(
        self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Serve one client's connection until either side has ended it."""
        try:
            ends = await asyncio.open_connection(*self._targets[broker])
        except OSError:
            return  # and so the client's connection ends, as with a broker that does not run
        line = _Line(broker, reader, writer, *ends)
        ways = [asyncio.ensure_future(self._requests(line)), asyncio.ensure_future(_answers(line))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            ended = await asyncio.gather(*ways, return_exceptions=True)
            if any(isinstance(error, _Broken) for error in ended):
                line.abort()
            else:
                await line.close()

    async def _requests(self, line: _Line) -> None:
        frames = Frames()
        with contextlib.suppress(_Gone, OSError, ProtocolViolation):
            while piece := await line.reader.read(_CHUNK_BYTES):
                for frame in frames.feed(piece):
                    await self._request(line, read_request(frame, broker=line.broker))
        line.gone = True
        if line.owed:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(line.settled.wait(), _OWED_S)

    async def _request(self, line: _Line, request: RequestFrame) -> None:
        if self._watch is not None:
            self._watch(request)
        armed = next((one for one in self._armed if one.catches(request)), None)
        if armed is None:
            await line.forward(request.frame)
            return
        match armed.rule.action:
            case Action.DELAY:
                await armed.until_due()
                line.owe(request, armed)
                await line.forward(request.frame)
            case Action.DOUBLE:
                line.owe(request, armed, answers=2)
                await line.forward(request.frame * 2)
            case Action.CUT:
                raise _Broken
            case Action.LOSE_ANSWER:
                line.owe(request, armed, passing=0)
                await line.forward(request.frame)
            case Action.HOLD_ANSWER:
                line.owe(request, armed)
                await line.forward(request.frame)
            case Action.STRAND:
                line.gone = True
                line.writer.transport.abort()
                await armed.until_due()
                line.owe(request, armed)
                await line.forward(request.frame)
                raise _Gone


async def _answers(line: _Line) -> None:
    frames = Frames()
    with contextlib.suppress(OSError, ProtocolViolation):
        while piece := await line.broker_reader.read(_CHUNK_BYTES):
            for frame in frames.feed(piece):
                await line.answer(frame)
