"""What a node puts into the log: its clients' envelopes, and what its chains post themselves.

Goes in: serialized records and the chains they are for. Comes out: what Kafka said of each.

    posted     handed to the producer
    stored     all in-sync replicas hold it
    unknown    Kafka did not say in time; the record may stand in the log, once (the producer is
               idempotent), or not at all

`Posts` is one producer for a whole node; `Outbox` holds what one chain must have in its log, and
posts it again until it is stored or no longer needed.

Invariant of an outbox: of a record that it holds, at most one posting is on its way.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome
from multicast.errors import AmcastError, ClusterUnreachable
from multicast.producer import Producer
from topology.tree import Plan

_AGAIN_S = 0.2
_IN_FLIGHT_MAX = 20_000
_IN_FLIGHT_BYTES_MAX = 48 << 20  # below the producer's own bound, so that its buffer never fills
Done = Callable[[AppendOutcome], None]


class Posts:
    """A node's producer. `open` may fail and be called again; nothing else opens anything."""

    def __init__(self, open_producer: Callable[[], Producer]) -> None:
        self._open_producer = open_producer
        self._producer: Producer | None = None
        self._opening = threading.Lock()
        # What came back, for the event loop: woken once for all that came since it last looked.
        self._settled: deque[tuple[asyncio.Future[AppendOutcome], int, AppendOutcome]] = deque()
        self._waking = threading.Lock()
        self._woken = False
        self._count = 0
        self._bytes = 0
        self._freed = asyncio.Event()

    def open(self) -> None:
        """Have a producer; raises `ClusterUnreachable` and the like.

        It looks for a newer plan by itself where it is asked for what it does not know.
        """
        with self._opening:
            if self._producer is None:
                self._producer = self._open_producer()

    @property
    def plan(self) -> Plan | None:
        """The topology that destinations are looked up in; None before the log was reached."""
        return None if self._producer is None else self._producer.plan

    def post(self, raw: bytes, to: Iterable[str], done: Done) -> None:
        """Post one record from any thread; `done` is called once, from any thread.

        Raises `ClusterUnreachable` before the log was reached, and what `Producer.multicast` does.
        """
        if self._producer is None:
            raise ClusterUnreachable("the log has not been reached yet")
        self._producer.multicast(raw, to=to, done=done)

    async def start(self, raw: bytes, to: tuple[str, ...]) -> asyncio.Future[AppendOutcome]:
        """Post one record from the event loop as soon as there is room; give its outcome to come.

        Raises `UndeclaredDestination`, `UsageError`, `ClusterUnreachable`, `BufferFull`.
        """
        while not self._fits(len(raw)):
            self._freed.clear()
            await self._freed.wait()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendOutcome] = loop.create_future()
        done = partial(self._came, loop, future, len(raw))
        self._count += 1
        self._bytes += len(raw)
        try:
            if self.plan is None or self.plan.cover(frozenset(to)) is not None:
                self.post(raw, to, done)
            else:  # the producer looks for a newer plan, which takes a while
                await asyncio.to_thread(self.post, raw, to, done)
        except AmcastError:
            self._release(len(raw))
            raise
        return future

    def close(self) -> None:
        """Flush for a moment, then give up what is left; nothing may be posted after."""
        with self._opening:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(2.0)

    # -- inside -----------------------------------------------------------------------------

    def _fits(self, size: int) -> bool:
        if not self._count:
            return True
        return self._count < _IN_FLIGHT_MAX and self._bytes + size <= _IN_FLIGHT_BYTES_MAX

    def _release(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        self._freed.set()

    def _came(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[AppendOutcome],
        size: int,
        outcome: AppendOutcome,
    ) -> None:
        """Note an outcome, in the driver's thread; wake the event loop unless it is awake."""
        self._settled.append((future, size, outcome))
        with self._waking:
            woken, self._woken = self._woken, True
        if not woken and not loop.is_closed():
            loop.call_soon_threadsafe(self._hand_out)

    def _hand_out(self) -> None:
        with self._waking:
            self._woken = False
        while self._settled:
            future, size, outcome = self._settled.popleft()
            self._release(size)
            if not future.done():
                future.set_result(outcome)


@dataclass(slots=True, eq=False)
class _Held:
    """A record that must come to stand in the log: while `needed` says so, or in any case."""

    raw: bytes
    told: Done
    needed: Callable[[], bool] | None
    again_at: float = 0.0
    on_its_way: bool = False
    stored: bool = False
    outcome: AppendOutcome | None = None


class Outbox:
    """What one chain must have in its log. Used by that chain's thread alone."""

    def __init__(self, post: Callable[[bytes, Done], None], *, again_s: float = _AGAIN_S) -> None:
        self._post = post
        self._again_s = again_s
        self._held: list[_Held] = []
        self._came = threading.Event()

    def put(self, raw: bytes, told: Done, *, needed: Callable[[], bool] | None = None) -> None:
        """Have a record posted, again and again until it is stored, or `needed()` says no.

        `told` is called with the outcome of each posting, by `turn`.
        """
        self._held.append(_Held(raw, told, needed))

    @property
    def owes(self) -> bool:
        """Whether a record that is needed in any case is not stored yet."""
        return any(held.needed is None for held in self._held)

    def wait(self, timeout_s: float) -> None:
        """Wait for the outcome of any posting, at most so long."""
        self._came.wait(timeout_s)
        self._came.clear()

    def turn(self, now: float) -> float | None:
        """Post what is due; say when something will be due next, None: nothing waits for time."""
        if not self._held:
            return None
        for held in self._held:
            outcome = held.outcome
            if outcome is not None:
                held.outcome, held.on_its_way = None, False
                held.stored = isinstance(outcome, Appended)
                held.again_at = now + self._again_s
                held.told(outcome)
        self._held = [held for held in self._held if held.on_its_way or _lacks(held)]
        # A copy that stood behind a later record's copy would count for nothing and be lost: so of
        # what is needed in any case, one is on its way at a time, in their order.
        ready, owed = [], False
        for held in self._held:
            if held.needed is not None or not owed:
                ready.append(held)
            owed = owed or held.needed is None
        for held in ready:
            if not held.on_its_way and held.again_at <= now:
                self._start(held, now)
        return min((held.again_at for held in ready if not held.on_its_way), default=None)

    def _start(self, held: _Held, now: float) -> None:
        def done(outcome: AppendOutcome) -> None:
            held.outcome = outcome
            self._came.set()

        held.on_its_way = True
        try:
            self._post(held.raw, done)
        except AmcastError as error:
            held.on_its_way = False
            held.again_at = now + self._again_s
            held.told(AppendFailed(error))


def _lacks(held: _Held) -> bool:
    return not held.stored and (held.needed is None or held.needed())


def explained(outcome: AppendFailed) -> str:
    """Say why an envelope was not stored, and what that means to its client."""
    if outcome.error.definite:
        return str(outcome.error)
    return f"{outcome.error} It may be ordered all the same; sent again, it is ordered once."
