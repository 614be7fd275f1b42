"""`AsyncProducer`: the calls of `Producer`, for an event loop.

A message is sent in the loop's own thread, by a call that never waits. Where it would have to wait
(for room in the buffer, for a plan, for a client that is not ready), the coroutine waits instead,
and the calls behind it queue up, so that the messages are sent in the order of the calls.

    sent    the append has started: the log contains the message, or may get it
    turn    the right to send while others wait; calls take turns in their order

Invariant: a cancelled `multicast` has sent nothing; one that returned has sent its message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

from multicast.aio.inbox import Inbox
from multicast.aio.loop_bound import LoopBound, arguments_of, made_later
from multicast.aio.order_waits import OrderWaits
from multicast.aio.receipts import AsyncReceipt, AsyncReceipts
from multicast.aio.turns import Turns
from multicast.conditional.condition import Expectation, boundary, checked_tags
from multicast.conditional.follower import DecisionFollower
from multicast.conditional.judge import Decision
from multicast.drivers.protocol import Headers
from multicast.errors import BufferFull
from multicast.messages import MessageID
from multicast.metrics.counts import ProducerCounts
from multicast.producing.keyed.calls import addressed, batched
from multicast.producing.keyed.partitioners import Key, Keys
from multicast.producing.producer import Producer
from multicast.producing.receipts import FAILOVER_S, not_decided, not_ordered
from multicast.producing.sending_order import After
from topology.tree import Plan

# A call that found the buffer full tries again after this long, if no outcome wakes it first. A
# driver frees the room of a message just after it has reported the outcome.
_RETRY_S = 0.05
# Messages of one call of the driver in `multicast_all`: kafka-python takes some 40 us for each, and
# other tasks wait meanwhile.
_CALL_MESSAGES = 200
_CHECKED_IN_LOOP = 1000  # messages; with headers 1 us each, so the loop has a turn in time
_REUSABLE = (frozenset, set, tuple, list, str, Keys)
_Sent = TypeVar("_Sent")


class AsyncProducer(LoopBound):
    """Multicasts messages from one event loop: `async with AsyncProducer(…) as producer`.

    The arguments are those of `Producer`. The constructor does not connect; `open` and `async with`
    do. Any number of tasks of the loop may use it at the same time. An open driver that is passed
    stays open.
    """

    @arguments_of(Producer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self._make_producer = made_later(Producer, *arguments, **options)
        self._block_s: float = options.get("block_s", FAILOVER_S)
        self._producer: Producer
        self.inbox: Inbox
        self._make_receipt = partial(AsyncReceipt, self)
        self._turns: Turns
        self._turn = asyncio.Lock()
        self._queued = 0  # calls that have, or wait for, the turn
        self._close_s = FAILOVER_S
        self._order_waits: OrderWaits | None = None
        self._decision_waits: OrderWaits | None = None
        self._decisions: DecisionFollower
        # Set by the call that waits for room; whoever reports an outcome clears it and wakes it.
        self.room_wanted = False
        self._room: asyncio.Future[None] | None = None

    @property
    def plan(self) -> Plan:
        """The plan in which destination sets are looked up: the newest that was read."""
        self.check_loop()
        return self._producer.plan

    async def declares(self, to: Iterable[str] | Keys) -> bool:
        """Whether exactly this set is declared; looks for a newer plan as `Producer.declares`."""
        self.check_loop()
        return await self._threads.run(partial(self._producer.declares, _reusable(to)))

    async def multicast(
        self,
        payload: bytes | None,
        *,
        to: Iterable[str] | Keys | None = None,
        key: Key | None = None,
        headers: Headers | Mapping[str, bytes] = (),
        tags: Iterable[str] = (),
        expect: Expectation | None = None,
        within: Iterable[str] | None = None,
        after: After | Iterable[After] = (),
    ) -> AsyncReceipt:
        """Multicast a message to a set of partitions; return its receipt once it is sent.

        Arguments and errors are those of `Producer.multicast`. While the buffer is full this waits,
        for at most `block_s` seconds; calls are served in their order, and so are the messages of
        one log. One that has to follow others (`fifo`, `after`) holds up the calls behind it until
        then. Returns without waiting for Kafka: `await receipt.accepted()` does that.

        After an error, a cancellation or a time-out of this call nothing was sent. A producer
        that writes tickets, or uses kafka-python, also raises `ClusterUnreachable` here, after some
        seconds, if no broker has told where the topic's logs are or the log's leader is away.
        """
        self.check_loop()
        to, key = addressed(to if to is None else _reusable(to), key)
        start, inside = self._producer.start, boundary(within, expect)
        if tags or expect is not None or within is not None:
            start = partial(start, tags=checked_tags(tags), expect=expect, within=inside)
        make = self._make_receipt
        if not self._queued and not self._turns.due() and not after:
            try:
                receipt = start(make, payload, to=to, key=key, headers=headers)
            except BufferFull:
                receipt = None
            if receipt is not None:
                return receipt
        again = partial(start, make, payload, to=to, key=key, headers=headers)
        async with self._my_turn() as deadline:
            if after:
                await self._threads.run(partial(self._producer.prepare, to, inside, after))
            return await self._started(again, to=to, deadline=deadline, within=inside)

    async def multicast_all(
        self,
        payloads: Sequence[bytes | None],
        *,
        to: Iterable[str] | Keys,
        keys: Sequence[Key | None] | None = None,
        headers: Sequence[Headers | Mapping[str, bytes]] | None = None,
    ) -> AsyncReceipts:
        """Multicast messages to one set of partitions, in this order; return their receipts.

        As `Producer.multicast_all` with `to`: `keys` and `headers` hold an entry for each message,
        and a message that got no room within `block_s` seconds was not sent; its outcome is
        `BufferFull`. Cancelled: the messages sent so far may be stored, the others are not sent;
        the `CancelledError` has a note that says how many.
        """
        self.check_loop()
        to, key = addressed(_reusable(to), None)
        receipts = AsyncReceipts(self)
        start = partial(self._producer.start_all, len(payloads), to=to, done=receipts.settled)
        async with self._my_turn() as deadline:
            check = partial(batched, payloads, keys, headers)
            few = len(payloads) <= _CHECKED_IN_LOOP
            messages = check() if few else await self._threads.run(check)
            if key is not None and keys is None:
                messages = messages._replace(keys=[key] * len(payloads))
            made = await self._started(start, to=to, deadline=deadline)
            receipts.take(made)
            sent = 0
            try:
                while sent < len(payloads):
                    some = messages.of(range(sent, min(sent + _CALL_MESSAGES, len(payloads))))
                    taken = self._producer.send_some(made, sent, some)
                    sent += taken
                    if taken < len(some.payloads) and not await self._room_before(deadline):
                        break
                    if self._turns.due():
                        await asyncio.sleep(0)
            except asyncio.CancelledError as error:
                error.add_note(f"{sent} of {len(payloads)} messages were sent, and may be stored")
                made.drop(sent, BufferFull("room was waited for no longer: cancelled"))
                raise
            made.drop(sent, self._no_room())
        return receipts

    def counts(self) -> ProducerCounts:
        """Count by log the messages sent and their outcomes, since this producer was opened.

        As `Producer.counts`: does not block; from any thread, and after `close`.
        """
        self.check_opened()
        return self._producer.counts()

    async def flush(self, timeout: float = FAILOVER_S) -> None:  # noqa: ASYNC109 - as `Producer`
        """Wait until every message so far has its outcome; raises `TimedOut` as `Producer.flush`.

        Cancelled: nothing changes for the messages.
        """
        self.check_loop()
        await self._threads.run(partial(self._producer.flush, timeout))

    async def close(self, timeout: float = FAILOVER_S) -> None:  # noqa: ASYNC109 - as `Producer`
        """Flush for at most `timeout` seconds, then release everything.

        Messages without an outcome are settled as unknown then. Cancelled: the closing goes on.
        """
        self._close_s = timeout
        await super().close()

    # -- for receipts ---------------------------------------------------------------------------

    def outcome_came(self) -> None:
        """Wake the call that waits for room, if there is one. From any thread."""
        if self.room_wanted:
            self.room_wanted = False
            self.inbox.post(self._wake_for_room)

    async def wait_ordered(self, message: MessageID, timeout: float) -> None:  # noqa: ASYNC109
        """Wait until an accepted message is ordered; raises `TimedOut` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                if self._order_waits is None:
                    self.check_loop()
                    follower = await self._threads.run(self._producer.orders)
                    if self._order_waits is None:
                        self._order_waits = OrderWaits(follower.is_ordered, self.inbox)
                        follower.listen(self._order_waits.moved)
                await self._order_waits.wait(message)
        except TimeoutError:
            raise not_ordered(message) from None

    async def wait_decided(self, message: MessageID, timeout: float) -> Decision:  # noqa: ASYNC109
        """Wait for the decision on a message; raises `TimedOut` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                if self._decision_waits is None:
                    self.check_loop()
                    follower = await self._threads.run(self._producer.decisions)
                    if self._decision_waits is None:
                        self._decision_waits = OrderWaits(follower.is_decided, self.inbox)
                        follower.listen(self._decision_waits.moved)
                        self._decisions = follower
                place = message.log, message.offset
                while (decision := self._decisions.decision(*place)) is None:
                    await self._decision_waits.wait(message)
                return decision
        except TimeoutError:
            raise not_decided(message) from None

    # -- inside ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        self.inbox = Inbox(self._loop)
        self._turns = Turns(self._loop)
        self._producer = await self._threads.run(self._make_producer, undo=Producer.close)

    async def _close(self) -> None:
        try:
            await self._threads.run(partial(self._producer.close, self._close_s))
        finally:
            for waits in (self._order_waits, self._decision_waits):
                if waits is not None:
                    waits.close()

    @asynccontextmanager
    async def _my_turn(self) -> AsyncIterator[float]:
        """Wait for the turn; give the time at which to stop waiting for room."""
        deadline = self._loop.time() + self._block_s
        self._queued += 1
        try:
            try:
                async with asyncio.timeout_at(deadline):
                    await self._turn.acquire()
            except TimeoutError:
                raise self._no_room() from None
            try:
                if self._turns.due():
                    await asyncio.sleep(0)
                yield deadline
            finally:
                self._turn.release()
        finally:
            self._queued -= 1

    async def _started(
        self,
        start: Callable[[], _Sent | None],
        *,
        to: Iterable[str] | Keys,
        deadline: float,
        within: frozenset[str] | None = None,
    ) -> _Sent:
        """Start until nothing has to be waited for any more."""
        while True:
            try:
                sent = start()
            except BufferFull:
                if not await self._room_before(deadline):
                    raise self._no_room() from None
                continue
            if sent is not None:
                return sent
            await self._threads.run(partial(self._producer.prepare, to, within))
            if self._loop.time() >= deadline:
                raise self._no_room()

    async def _room_before(self, deadline: float) -> bool:
        """Wait until there may be room; False after the deadline. Only the call that has the turn.

        An outcome that comes between the refused append and this wait is not seen: it costs
        `_RETRY_S`.
        """
        left_s = deadline - self._loop.time()
        if left_s <= 0:
            return False
        self._room = self._loop.create_future()
        again = self._loop.call_later(min(_RETRY_S, left_s), self._wake_for_room)
        self.room_wanted = True
        try:
            await self._room
        finally:
            again.cancel()
            self.room_wanted = False
        self.check_loop()
        return True

    def _wake_for_room(self) -> None:
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _no_room(self) -> BufferFull:
        return BufferFull(f"the producer had no room for a message within {self._block_s:g} s")


def _reusable(to: Iterable[str] | Keys) -> Iterable[str] | Keys:
    """Give a destination set that may be read twice."""
    return to if isinstance(to, _REUSABLE) else tuple(to)
