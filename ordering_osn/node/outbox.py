"""Appends a node's records to the logs: its clients' envelopes, and what its chains post.

A record is

    posted     handed to the producer
    stored     on all in-sync replicas
    unknown    Kafka did not answer in time: the record is in the log once (the producer is
               idempotent), or not at all

`Posts` is one producer for a whole node. `Outbox` holds the records that one chain must have in its
log, and posts each again until it is stored or no longer needed.

Invariant of an outbox: at most one posting of each record is on its way.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome
from multicast.errors import AmcastError, ClusterUnreachable, UsageError
from multicast.producing.producer import Producer
from ordering_osn.api.channels import Refused, Status
from ordering_osn.node.kafka_connection import SharedAttempts
from topology.tree import Log, Plan, log_name

# A failed posting is repeated after this time: soon enough that a time-to-cut adds little to a
# batch time-out (2 s by default), and no more than five attempts a second while a broker is away.
_RETRY_S = 0.2
# Both are below the bounds of the driver's appender (100,000 records, 64 MiB), so that its buffer
# never fills and never refuses a record.
_IN_FLIGHT_MAX = 20_000
_IN_FLIGHT_BYTES_MAX = 48 << 20
# At a stop, clients' envelopes in flight get this long; then they are answered 503. A request to a
# live broker takes milliseconds, and SIGTERM must stop a node within seconds.
_FLUSH_S = 2.0
OnOutcome = Callable[[AppendOutcome], None]


class Posts:
    """A node's producer. `open` may fail, and then be called again; no other method opens it.

    `end_of` gives the end of a log; it may block.
    """

    def __init__(
        self, open_producer: Callable[[], Producer], end_of: Callable[[Log], int] | None = None
    ) -> None:
        self._open_producer = open_producer
        self._end_of = end_of
        self._producer: Producer | None = None
        self._opening = threading.Lock()
        self._attempts = SharedAttempts(AmcastError)
        # Outcomes for the event loop, which is woken once for all that came since it last looked.
        self._settled: deque[tuple[asyncio.Future[AppendOutcome], int, AppendOutcome]] = deque()
        self._waking = threading.Lock()
        self._woken = False
        self._count = 0
        self._bytes = 0
        self._freed = asyncio.Event()

    def open(self) -> None:
        """Open the producer where it is not open yet; raises `ClusterUnreachable` and the like.

        Threads that wait for the attempt of another one get its error. The producer looks for a
        newer plan by itself where a destination is unknown to it.
        """
        self._attempts.run(self._open)

    @property
    def plan(self) -> Plan | None:
        """The plan in which destinations are looked up; None before Kafka was reached."""
        return None if self._producer is None else self._producer.plan

    def topic_of(self, chain: str) -> str | None:
        """Give the topic of a chain's own log; None where the plan does not know its ID."""
        plan = self.plan
        if plan is None or not plan.has_log(chain):
            return None
        topic = plan.log(chain).topic
        return topic if topic in plan.topic_ids else None

    def post(self, raw: bytes, to: Iterable[str], on_outcome: OnOutcome) -> None:
        """Post one record from any thread; `on_outcome` is called once, from any thread.

        Raises `ClusterUnreachable` before Kafka was reached, and what `Producer.multicast` raises.
        """
        if self._producer is None:
            raise ClusterUnreachable("the log has not been reached yet")
        self._producer.multicast(raw, to=to, done=on_outcome)

    async def declares(self, to: tuple[str, ...]) -> bool:
        """Whether exactly this set is declared. Where it is not, a newer plan is looked for.

        Raises `ClusterUnreachable`, also before Kafka was reached.
        """
        producer = self._producer
        if producer is None:
            raise ClusterUnreachable("the log has not been reached yet")
        if producer.plan.has_log(log_name(to)):
            return True
        return await asyncio.to_thread(producer.declares, to)

    async def end(self, to: tuple[str, ...]) -> int:
        """Give the end of the log of a declared set, as Kafka says it now. Raises `AmcastError`."""
        assert self.plan is not None, "`declares` has looked the set up"
        assert self._end_of is not None
        return await asyncio.to_thread(self._end_of, self.plan.log(log_name(to)))

    async def start(self, raw: bytes, to: tuple[str, ...]) -> asyncio.Future[AppendOutcome]:
        """Post one record from the event loop as soon as there is room; give its future outcome.

        Raises `UndeclaredDestination`, `UsageError`, `ClusterUnreachable`, `BufferFull`.
        """
        while not self._fits(len(raw)):
            self._freed.clear()
            await self._freed.wait()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[AppendOutcome] = loop.create_future()
        on_outcome = partial(self._settle, loop, future, len(raw))
        self._count += 1
        self._bytes += len(raw)
        try:
            if self.plan is None or self.plan.cover(frozenset(to)) is not None:
                self.post(raw, to, on_outcome)
            else:  # the producer looks for a newer plan, which blocks
                await asyncio.to_thread(self.post, raw, to, on_outcome)
        except AmcastError:
            self._release(len(raw))
            raise
        return future

    def close(self) -> None:
        """Flush for 2 s at most, then give up what is left. Nothing may be posted afterwards."""
        with self._opening:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(_FLUSH_S)

    # -- inside -----------------------------------------------------------------------------

    def _open(self) -> None:
        with self._opening:
            if self._producer is None:
                self._producer = self._open_producer()

    def _fits(self, size: int) -> bool:
        if not self._count:
            return True
        return self._count < _IN_FLIGHT_MAX and self._bytes + size <= _IN_FLIGHT_BYTES_MAX

    def _release(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        self._freed.set()

    def _settle(
        self,
        loop: asyncio.AbstractEventLoop,
        future: asyncio.Future[AppendOutcome],
        size: int,
        outcome: AppendOutcome,
    ) -> None:
        """Note an outcome, in the driver's thread; wake the event loop where it is not awake."""
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


async def started(posts: Posts, raw: bytes, to: tuple[str, ...]) -> asyncio.Future[AppendOutcome]:
    """Post a record; give its future outcome. Raises `Refused`."""
    try:
        return await posts.start(raw, to)
    except UsageError as error:  # no log holds messages to these chains
        raise Refused(Status.NOT_FOUND, str(error)) from error
    except AmcastError as error:
        raise Refused(Status.SERVICE_UNAVAILABLE, str(error)) from error


def stored(outcome: AppendOutcome, *, in_doubt: str) -> Appended:
    """Give where the record is stored; raises `Refused`, with `in_doubt` where it may be stored."""
    if isinstance(outcome, Appended):
        return outcome
    why = str(outcome.error)
    raise Refused(
        Status.SERVICE_UNAVAILABLE, why if outcome.error.definite else f"{why} {in_doubt}"
    )


@dataclass(slots=True, eq=False)
class _Held:
    """A record to store: while `needed` says so; without `needed`, in any case."""

    raw: bytes
    on_outcome: OnOutcome
    needed: Callable[[], bool] | None
    post_at: float = 0.0
    on_its_way: bool = False
    stored: bool = False
    outcome: AppendOutcome | None = None


class Outbox:
    """The records that one chain must have in its log. For that chain's thread only."""

    def __init__(
        self, post: Callable[[bytes, OnOutcome], None], *, retry_s: float = _RETRY_S
    ) -> None:
        self._post = post
        self._retry_s = retry_s
        self._held: list[_Held] = []
        self._settled = threading.Event()

    def put(
        self, raw: bytes, on_outcome: OnOutcome, *, needed: Callable[[], bool] | None = None
    ) -> None:
        """Add a record, which is posted until it is stored, or until `needed()` is false.

        `post_due` posts it, and calls `on_outcome` with the outcome of each posting.
        """
        self._held.append(_Held(raw, on_outcome, needed))

    @property
    def owes(self) -> bool:
        """Whether a record that is needed in any case is not stored yet."""
        return any(held.needed is None for held in self._held)

    def wait(self, timeout_s: float) -> None:
        """Wait for the outcome of any posting, for `timeout_s` at most."""
        self._settled.wait(timeout_s)
        self._settled.clear()

    def post_due(self, now: float) -> float | None:
        """Post what is due; say when something will be due next, None: nothing waits for time."""
        if not self._held:
            return None
        for held in self._held:
            outcome = held.outcome
            if outcome is not None:
                held.outcome, held.on_its_way = None, False
                held.stored = isinstance(outcome, Appended)
                held.post_at = now + self._retry_s
                held.on_outcome(outcome)
        self._held = [held for held in self._held if held.on_its_way or _lacks(held)]
        # A copy that is stored behind a later record's copy is ignored, and its transaction lost.
        # So of the records that are needed in any case one is on its way at a time, in their order.
        ready, owed = [], False
        for held in self._held:
            if held.needed is not None or not owed:
                ready.append(held)
            owed = owed or held.needed is None
        for held in ready:
            if not held.on_its_way and held.post_at <= now:
                self._start(held, now)
        return min((held.post_at for held in ready if not held.on_its_way), default=None)

    def _start(self, held: _Held, now: float) -> None:
        def settle(outcome: AppendOutcome) -> None:
            held.outcome = outcome
            self._settled.set()

        held.on_its_way = True
        try:
            self._post(held.raw, settle)
        except AmcastError as error:
            held.on_its_way = False
            held.post_at = now + self._retry_s
            held.on_outcome(AppendFailed(error))


def _lacks(held: _Held) -> bool:
    return not held.stored and (held.needed is None or held.needed())
