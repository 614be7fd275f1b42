"""Receipts for asyncio: the outcomes of multicasts, and their places in the order, awaited.

Threads of the driver report outcomes. A receipt that nobody awaits costs the loop nothing; one that
is awaited gets a call in the loop's inbox. No thread waits for a message.

    settle    in any thread: store the outcome, then look if anybody waits
    await     in the loop: enter the waiters, then look if the outcome is there

So either the thread sees the waiter, or the waiter sees the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

from multicast.conditional.judge import Decision
from multicast.drivers.protocol import AppendOutcome
from multicast.messages import MessageID
from multicast.producing.receipts import FAILOVER_S, OneMessage, Receipts, Route, Settlement
from topology.tree import Log

_STILL_OPEN = (
    "the message was sent, and may be stored and delivered: its receipt can be awaited again"
)


class _Waiters:
    """The futures of those who wait for one outcome; each may be cancelled alone."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        for future in self._futures:
            if not future.done():
                future.set_result(None)
        self._futures.clear()

    async def until(self, settled: Callable[[], bool]) -> None:
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        if not settled():
            try:
                await future
            except asyncio.CancelledError as error:
                error.add_note(_STILL_OPEN)
                raise


class AsyncReceipt(OneMessage):
    """The state of one multicast; `await receipt` is `await receipt.accepted()`."""

    __slots__ = ("_home", "_waiters")

    def __init__(self, home: Any, settlement: Settlement, route: Route) -> None:
        super().__init__(settlement, route)
        self._home = home
        self._waiters: _Waiters | None = None

    def __await__(self) -> Generator[Any, None, MessageID]:
        return self.accepted().__await__()

    async def accepted(self) -> MessageID:
        """Wait until all in-sync replicas hold the message; give its ID.

        Raises `AppendRefused` (the log does not contain it) or `AppendUnknown` (the log may contain
        it). The outcome comes within the producer's delivery time-out; use `asyncio.timeout` to
        wait less. Cancelled or timed out: the message was sent, its outcome is open, and may be
        awaited again.
        """
        if self._outcome is None:
            waiters = self._waiters = self._waiters or _Waiters()
            await waiters.until(lambda: self._outcome is not None)
        return self._message_id()

    async def ordered(self, timeout: float = FAILOVER_S) -> MessageID:  # noqa: ASYNC109 - as `Receipt`
        """Wait until the message has its place in the order; give its ID.

        A log without a collector is its own order: there this is `accepted`. Raises what
        `Receipt.ordered` raises; `TimedOut` if an accepted message is not ordered within `timeout`
        seconds, which usually means that no collector is running. Cancelled: as for `accepted`.
        """
        message = await self.accepted()
        await self._home.wait_ordered(message, timeout)
        return message

    async def decided(self, timeout: float = FAILOVER_S) -> Decision:  # noqa: ASYNC109 - as `Receipt`
        """Wait until it is known whether the message takes effect; give the decision.

        Costs what `Receipt.decided` costs, and raises what it raises. Cancelled: as for `accepted`.
        """
        message = await self.accepted()
        decision: Decision = await self._home.wait_decided(message, timeout)
        return decision

    def settle(self, outcome: AppendOutcome) -> None:
        """Take the outcome. The driver calls this once, in any thread; not for applications."""
        super().settle(outcome)
        if self._waiters is not None:
            self._home.inbox.post(self._waiters.wake)
        self._home.outcome_came()


class AsyncReceipts:
    """The states of the messages of one `multicast_all`, in their order; `len` counts them."""

    def __init__(self, home: Any) -> None:  # the `AsyncProducer`, which imports this
        self._home = home
        self._waiters = _Waiters()
        self._receipts: Receipts

    def take(self, receipts: Receipts) -> None:
        """Stand for these. For the producer, not for applications."""
        self._receipts = receipts

    @property
    def log(self) -> Log:
        """The log that the messages go to."""
        return self._receipts.log

    @property
    def to(self) -> tuple[str, ...]:
        """The destination set, sorted."""
        return self._receipts.to

    def __len__(self) -> int:
        return len(self._receipts)

    @property
    def outcomes(self) -> list[AppendOutcome | None]:
        """Kafka's answer for each message; None for one that is not known yet."""
        return self._receipts.outcomes

    def __await__(self) -> Generator[Any, None, list[MessageID]]:
        return self.accepted().__await__()

    async def accepted(self) -> list[MessageID]:
        """Wait until every message has its outcome; give their IDs.

        Raises the error of the first message that failed (`outcomes` gives each); it is
        `BufferFull` if there was no room to send that message. Cancelled: as `AsyncReceipt`.
        """
        if not self._receipts.settled:
            await self._waiters.until(lambda: self._receipts.settled)
        return self._receipts.accepted(0.0)

    async def ordered(self, timeout: float = FAILOVER_S) -> list[MessageID]:  # noqa: ASYNC109 - as `Receipts`
        """Wait until every message has its place in the order; give their IDs."""
        messages = await self.accepted()
        if messages:
            # The order of one log is that of its offsets: the last one comes last.
            await self._home.wait_ordered(max(messages), timeout)
        return messages

    def settled(self) -> None:
        """Take the news that all outcomes are known, in any thread; not for applications."""
        self._home.inbox.post(self._waiters.wake)
        self._home.outcome_came()
