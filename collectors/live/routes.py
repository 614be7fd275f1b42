"""The live page: its files, its events, its timelines, and the explanation of a message.

    /           the page; /ui.css, /ui.js and /ui.svg are its other files
    /events     server-sent events: "layout" at the start and with each plan, "moment" each tick
    /timeline   server-sent events: the messages of ?interest= that have the words of ?q=
    /explain    what `amcast explain` says of ?id=, as JSON

Nothing is read from Kafka until somebody looks, and no longer than `_IDLE_S` afterwards. All is
read-only. Payloads and keys are shown only where the page is served on the loopback. The Host
header must be an address, "localhost" or the configured host, so that no foreign web site can read
the page under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from http import HTTPStatus
from importlib.resources import files
from typing import Any

from collectors.explain.facts import lines, waits
from collectors.explain.inspection import explain, message_of
from collectors.live.facts import LivePicture, layout, moment
from collectors.live.observer import TICK_S, Observer, observe
from collectors.live.timeline import Timeline
from multicast.drivers.kafka import Admin
from multicast.errors import AmcastError
from multicast.settings import Settings
from multicast.web import EventStream, Request, Route, WebDocument, is_loopback

TIMELINES_MAX = 4  # each is a consumer: a thread, a window and buffers
# A page that is loaded again, or whose tab was in the background for so long, finds what was read:
# the last changes, and which processes have answered before and no longer do.
_IDLE_S = 600.0
_ROWS_MAX = 200  # of one event, and on the page
_PING_S = 5.0  # a stream says something so often, so that a client that has gone is noticed
_FLUSH_S = 0.25  # between two events of a timeline; people read no faster
_WORDS_MAX = 200  # characters of a search
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_FILES = {"/": "ui.html", "/ui.css": "ui.css", "/ui.js": "ui.js", "/ui.svg": "ui.svg"}
_KINDS = {"svg": "image/svg+xml"} | {
    name: f"text/{kind}; charset=utf-8"
    for name, kind in (("html", "html"), ("css", "css"), ("js", "javascript"))
}


class LivePages:
    """The routes of one topic, for a `WebServer` that listens at `host`.

    `open_observer` is called, in a thread, when somebody begins to look.
    """

    def __init__(
        self, settings: Settings, host: str, open_observer: Callable[[Settings], Observer] = observe
    ) -> None:
        self._settings = settings
        self._open = open_observer
        self._payloads = is_loopback(host)
        self._observer: Observer | None = None
        self._timelines: dict[str, Timeline] = {}
        self._watching = 0
        self._idle: asyncio.TimerHandle | None = None
        self._ending: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._explaining = asyncio.Lock()  # one at a time: each reads streams

    def routes(self) -> dict[str, Route]:
        """Give the routes by path."""
        routes: dict[str, Route] = dict.fromkeys(_FILES, self._file)
        routes |= {"/events": self._events, "/timeline": self._timeline, "/explain": self._explain}
        return routes

    async def close(self) -> None:
        """Release everything; the streams have to be ended before."""
        if self._idle is not None:
            self._idle.cancel()
        async with self._opening:
            await asyncio.to_thread(self._close)

    def _close(self) -> None:
        for timeline in self._timelines.values():
            timeline.close()
        self._timelines = {}
        if self._observer is not None:
            self._observer.close()
        self._observer = None

    # -- who looks ----------------------------------------------------------------------------

    async def _look(self) -> Observer:
        """Begin to look; `_leave` ends it. Raises `AmcastError` where no broker answers."""
        self._watching += 1
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        # Shielded: a client that goes away must not lose what is being opened.
        opening = asyncio.create_task(self._open_once())
        try:
            return await asyncio.shield(opening)
        except BaseException:
            self._leave()
            raise

    async def _open_once(self) -> Observer:
        async with self._opening:
            if self._observer is None:
                self._observer = await asyncio.to_thread(self._open, self._settings)
            return self._observer

    def _leave(self) -> None:
        self._watching -= 1
        if not self._watching:
            self._idle = asyncio.get_running_loop().call_later(_IDLE_S, self._rest)

    def _rest(self) -> None:
        self._ending = asyncio.get_running_loop().create_task(self._rest_now())

    async def _rest_now(self) -> None:
        async with self._opening:
            if not self._watching:
                await asyncio.to_thread(self._close)

    # -- the routes ---------------------------------------------------------------------------

    async def _file(self, request: Request) -> WebDocument:
        name = _FILES[request.path]
        body = files("collectors.live").joinpath("static", name).read_bytes()
        return WebDocument(HTTPStatus.OK, _KINDS[name.rpartition(".")[2]], body, _HEADERS)

    async def _events(self, _: Request) -> EventStream:
        return EventStream(self._moments(), _HEADERS)

    async def _moments(self) -> AsyncGenerator[bytes, None]:
        try:
            observer = await self._look()
        except AmcastError as error:
            yield _event("problem", {"error": str(error)})
            return
        moved = _Moved()
        observer.listen(moved.call)
        shown: LivePicture | None = None
        try:
            while True:
                picture = observer.picture
                if observer.error or picture is None:
                    yield _event("problem", {"error": observer.error})
                elif picture is not shown:
                    shown = picture
                    yield _event("layout", {**observer.look(layout), "payloads": self._payloads})
                if picture is not None and not observer.error:
                    yield _event("moment", observer.look(moment))
                await moved.wait(_PING_S)
        finally:
            observer.ignore(moved.call)
            self._leave()

    async def _timeline(self, request: Request) -> EventStream:
        words = request.query.get("q", "")[:_WORDS_MAX]
        return EventStream(self._rows(request.query.get("interest", ""), words), _HEADERS)

    async def _rows(self, interest: str, words: str) -> AsyncGenerator[bytes, None]:
        try:
            observer = await self._look()
        except AmcastError as error:
            yield _event("problem", {"error": str(error)})
            return
        moved, timeline = _Moved(), None
        try:
            while observer.state is None:
                yield _event("problem", {"error": observer.error})
                await asyncio.sleep(TICK_S)
            timeline = await self._opened(observer, interest)
            if timeline is None:
                sentence = f"{TIMELINES_MAX} timelines are open; close one of their pages"
                yield _event("problem", {"error": sentence})
                return
            timeline.listen(moved.call)
            number, first = 0, True
            while True:
                rows, number = timeline.since(number, words, _ROWS_MAX)
                if timeline.error:
                    yield _event("problem", {"error": timeline.error})
                    return
                if rows or first:
                    first = False
                    yield _event("rows", {"rows": rows})
                elif not moved.is_set:
                    yield b": nothing new\n\n"
                await asyncio.sleep(_FLUSH_S)
                if number == timeline.count:
                    await moved.wait(_PING_S)
        finally:
            if timeline is not None:
                timeline.ignore(moved.call)
            self._leave()

    async def _opened(self, observer: Observer, interest: str) -> Timeline | None:
        """Give the timeline of an interest, opened if need be; None if too many are watched."""
        async with self._opening:
            known = self._timelines.get(interest)
            if known is not None and not known.error:
                return known
            spare = [name for name, each in self._timelines.items() if not each.watched]
            if known is not None or len(self._timelines) >= TIMELINES_MAX:
                if known is None and not spare:
                    return None
                old = self._timelines.pop(interest if known is not None else spare[0])
                await asyncio.to_thread(old.close)
            opened = Timeline(observer, interest, payloads=self._payloads)
            self._timelines[interest] = opened
            return opened

    async def _explain(self, request: Request) -> WebDocument:
        try:
            message = message_of(request.query.get("id", ""))
            observer = await self._look()
            try:
                async with self._explaining:
                    found = await asyncio.to_thread(self._explained, observer, message)
            finally:
                self._leave()
        except AmcastError as error:
            found = {"error": str(error)}
        return WebDocument(HTTPStatus.OK, "application/json", json.dumps(found).encode(), _HEADERS)

    def _explained(self, observer: Observer, message: Any) -> dict[str, Any]:
        observer.first(TICK_S * 10)
        assert observer.state is not None
        with Admin(self._settings.bootstrap, self._settings.client) as admin:
            facts = explain(observer.driver, admin, observer.state.copy(), message)
        return {"lines": lines(facts), "waits": len(waits(facts))}


class _Moved:
    """Tells a coroutine what a thread has said; several calls are one."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def call(self) -> None:
        with suppress(RuntimeError):  # the loop is closed, so nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        self._event.clear()


def _event(name: str, document: dict[str, Any]) -> bytes:
    return f"event: {name}\ndata: {json.dumps(document, separators=(',', ':'))}\n\n".encode()
