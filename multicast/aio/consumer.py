"""`AsyncConsumer`: the calls of `Consumer`, for an event loop.

A thread reads ahead (`reader_thread.py`); the loop takes whole batches from it and hands messages
out. What is at hand belongs to the consumer, not to an iterator: whoever reads next gets it.

    at hand    taken from the thread, and not handed out; begins at `_index` of the first batch,
               less what is in `_next`
    handed out returned by a read; `position` is right after the last one

Invariant: a message leaves what is at hand only in the step that returns it. So a cancelled read
loses nothing, and nothing is delivered twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from operator import length_hint
from time import monotonic
from typing import Any, Self, Unpack

from multicast.aio.inbox import Inbox
from multicast.aio.loop_bound import LoopBound, arguments_of, made_later
from multicast.aio.reader_thread import ReaderThread
from multicast.aio.tasks import AsyncHandler, LoopTasks
from multicast.aio.threads import Threads
from multicast.aio.turns import Turns
from multicast.conditional.condition import LogPosition
from multicast.consuming.batches import Batch, Message
from multicast.consuming.buffers import Waiting
from multicast.consuming.consumer import Consumer, Where
from multicast.consuming.cursor import Cursor
from multicast.consuming.entries_read import ConsumerEntries
from multicast.consuming.subscription import End
from multicast.consuming.wrong_calls import refuse_no_messages
from multicast.drivers.protocol import Record
from multicast.errors import TimedOut, UsageError
from multicast.metrics.counts import ConsumerCounts
from multicast.workers.workers import KeysOf, WorkOptions, own_key

_POLL_S = 1.0  # as `Consumer.poll`
_MESSAGES_MAX = 5000  # as `Consumer.poll`
# So many messages are handed out between two looks at the clock, which costs as much as a message.
_NEXT_MAX = 8
_QUIET_S = 30.0  # as `Consumer.until_end`: a broker's failure must not end it
# The thread may be in a request to the cluster, or in a few in turn; each is bounded (`REFRESH_S`).
_JOIN_S = 30.0


class AsyncConsumer(LoopBound):
    """Delivers to one event loop: `async with AsyncConsumer(…) as consumer`.

    The arguments are those of `Consumer`. The constructor does not connect; `open` and `async with`
    do. `async for message in consumer` delivers without end, in the agreed order; it raises what
    `Consumer.poll` raises, after the messages before. One task at a time may wait for messages.
    A few thousand messages are read ahead; `position` and commits know only those handed out.
    """

    @arguments_of(Consumer)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__()
        self._make_consumer = made_later(Consumer, *arguments, **options)
        self._consumer: Consumer
        self._reader: ReaderThread
        self._inbox: Inbox
        self._turns: Turns
        self._commits: Threads
        self._hand: deque[Batch] = deque()
        self._index = 0
        self._batch: Batch  # the first one at hand, while it is read message by message
        self._next: Iterator[Record] = iter(())  # its records before `_index` not yet handed out
        self._generation = 0
        self._reached: End | None = None  # the end that is reached with what is at hand
        self._waiter: asyncio.Future[None] | None = None
        self._handed_out: Message | Batch | None = None
        self._start: Cursor
        self._work_ends: threading.Event | None = None  # while workers handle messages

    # -- reading ----------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """Give the next message; it is handed out in the step that returns it."""
        for record in self._next:  # the way of most messages
            self._handed_out = message = Message(self._batch, record)
            return message
        self.check_loop()
        if not self._settled() or monotonic() >= self._turns.ends:
            await self._ready()
        self._batch, first = self._hand[0], self._index
        records = self._batch.records[first : first + _NEXT_MAX]
        self._index = first + len(records)
        self._next = iter(records)
        self._handed_out = message = Message(self._batch, next(self._next))
        return message

    async def batches(self, *, messages_max: int = _MESSAGES_MAX) -> AsyncGenerator[Batch]:
        """Deliver in batches, without end: faster than message by message.

        The messages of one batch are of one log and one destination set. Raises what `poll` raises.
        """
        refuse_no_messages(messages_max)
        while True:
            self.check_loop()
            await self._ready()
            yield self._cut(messages_max)

    async def poll(
        self,
        timeout: float = _POLL_S,  # noqa: ASYNC109 - as `Consumer.poll`
        *,
        messages_max: int = _MESSAGES_MAX,
    ) -> list[Batch]:
        """Deliver the next messages, at most `messages_max`; [] if none came within `timeout` s.

        Raises what `Consumer.poll` raises, and `UsageError` while another task waits for messages.
        """
        self.check_loop()
        refuse_no_messages(messages_max)
        try:
            async with asyncio.timeout(timeout):
                await self._ready()
        except TimeoutError:
            return []
        batches: list[Batch] = []
        room = messages_max
        while self._hand and room > 0:
            batches.append(self._cut(room))
            room -= len(batches[-1].records)
        return batches

    async def until_end(
        self,
        *,
        timeout: float = _QUIET_S,  # noqa: ASYNC109 - as `Consumer.until_end`
        end: End | None = None,
    ) -> AsyncGenerator[Batch]:
        """Deliver everything that the interest's logs contain now, then stop.

        As `Consumer.until_end`: raises `TimedOut` if no message came for `timeout` seconds before
        the end. Messages that come later may be delivered too.
        """
        self.check_loop()
        end = await self._reader.call(partial(self._reader.aim, end))
        while self._hand or self._reached is not end:
            try:
                async with asyncio.timeout(timeout):
                    await self._ready(end)
            except TimeoutError:
                if self._consumer.stands_by:
                    continue
                lacking = self._reader.lacking
                raise TimedOut(f"no message came for {timeout:g} s: {lacking}") from None
            if self._hand:
                yield self._cut(_MESSAGES_MAX)

    # -- positions --------------------------------------------------------------------------

    @property
    def position(self) -> Cursor:
        """The cursor after the last message handed out; before the first one, the start."""
        self.check_loop()
        last = self._handed_out
        if last is None:
            return self._start
        return last.cursor if isinstance(last, Message) else last.cursor()

    @property
    def omitted(self) -> str:
        """Why it begins later than it was asked to, as `Consumer.omitted`; "": it does not."""
        self.check_loop()
        return self._consumer.omitted

    @property
    def fence(self) -> int:
        """That of the messages that this exclusive consumer delivers; 0: it stands by."""
        self.check_loop()
        return self._consumer.fence

    @property
    def by_collector(self) -> bool:
        """Whether a collector orders the interest; a single log is its own order."""
        self.check_loop()
        return self._consumer.by_collector

    @property
    def interest(self) -> tuple[str, ...]:
        """The partitions subscribed to, sorted."""
        self.check_loop()
        return self._consumer.interest

    @property
    def waiting(self) -> Waiting | None:
        """For which log messages wait, and since when, as `Consumer.waiting`; None if none does."""
        self.check_loop()
        return self._consumer.waiting

    def seen(self, log: Iterable[str], cursor: Cursor | None = None) -> LogPosition:
        """Give the position in the log of a declared set at a cursor (default: `position`).

        As `Consumer.seen`; it does not block.
        """
        self.check_loop()
        return self._consumer.seen(log, cursor or self.position)

    @property
    def void(self) -> dict[str, int]:
        """Count by reason the messages judged void so far, those read ahead included."""
        self.check_loop()
        return self._consumer.void

    async def entries(self) -> ConsumerEntries:
        """Count by log the order entries read since the consumer was opened, and those dropped."""
        self.check_loop()
        return await self._threads.run(self._consumer.entries)

    def counts(self) -> ConsumerCounts:
        """Count what was read, and delivered or read ahead.

        As `Consumer.counts`: from any thread, and after `close`. Blocks for a request only while
        an epoch begins: then call it in a thread, as a scrape does.
        """
        self.check_opened()
        return self._consumer.counts()

    async def seek(self, where: Where) -> None:
        """Continue at a cursor (or its text form), "earliest", "latest", or a time.

        As `Consumer.seek`; what was read ahead is dropped. Cancelled: it may take effect or not,
        but never in part.
        """
        self.check_loop()

        def sought() -> None:
            self._consumer.seek(where)
            self._reader.renew()

        await self._reader.call(sought)

    async def commit(self, cursor: Cursor | str | None = None) -> None:
        """Store a cursor (default: `position`) under the group; wait until Kafka has stored it.

        As `Consumer.commit`. Commits are stored in the order of the calls. Cancelled: the cursor
        may be stored or not.
        """
        self.check_loop()
        chosen = self.position if cursor is None else cursor
        await self._commits.run(partial(self._consumer.commit, chosen))

    async def workers(
        self,
        handler: AsyncHandler,
        *,
        n: int,
        keys: KeysOf = own_key,
        **options: Unpack[WorkOptions],
    ) -> None:
        """Handle messages in n tasks, those of a key in their order (docs/workers.md).

        Until then other reads wait. Cancelled: it ends as by `stop`, once the handlers have ended.
        """
        self.check_loop()
        if self._work_ends is not None:
            raise UsageError("workers of this AsyncConsumer are at work; let them end first")
        consumer = self._consumer
        asked = options.pop("stop", lambda: False)
        options["runner"] = LoopTasks(handler, self._loop, n)
        ends = self._work_ends = threading.Event()
        options["stop"] = lambda: asked() or ends.is_set()
        reader, position, generation = self._reader, self.position, self._generation

        def run() -> None:
            at = position if reader.generation == generation else reader.begun_at
            if consumer.position != at:  # it was read ahead
                consumer.seek(at)
            reader.renew()
            try:
                consumer.workers(handler, n=n, keys=keys, **options)
            finally:
                reader.renew()

        work = asyncio.ensure_future(reader.call(run))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            ends.set()
            await asyncio.wait([work])
            raise
        finally:
            self._work_ends = None

    # -- inside -----------------------------------------------------------------------------

    async def _open(self) -> None:
        self._inbox = Inbox(self._loop)
        self._turns = Turns(self._loop)
        self._consumer = await self._threads.run(self._make_consumer, undo=Consumer.close)
        self._start = self._consumer.position
        self._commits = Threads("amcast-commit", 1)  # one: commits keep their order
        self._reader = ReaderThread(self._consumer, self._inbox, self._arrived, self._renew)

    async def _close(self) -> None:
        if self._work_ends is not None:
            self._work_ends.set()
        self._settled()
        self._arrived()  # whoever waits learns that this is closed
        await self._threads.run(self._commits.end)
        self._reader.stop()
        await self._threads.run(partial(self._reader.join, _JOIN_S))

    async def _ready(self, end: End | None = None) -> None:
        """Wait until a message is at hand, or `end` is reached; give the loop its turns."""
        if self._turns.due():
            await asyncio.sleep(0)
        while not self._settled():
            read = self._reader.take()
            if read is None:
                if end is not None and self._reached is end:
                    return
                await self._wait()
                continue
            if read.batches:  # else `_renew` begins it
                self._generation = read.generation
            self._reached = read.reached
            self._index = 0
            self._hand.extend(read.batches)
            if read.error is not None:
                raise read.error
            if end is not None and read.reached is end:
                return

    async def _wait(self) -> None:
        """Wait until the thread has read something."""
        if self._waiter is not None:
            raise UsageError(
                "another task waits for messages of this AsyncConsumer; let one task read, and "
                "give the messages to others through an asyncio.Queue"
            )
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        self.check_loop()

    def _arrived(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _settled(self) -> bool:
        """Put back what is in `_next`; return whether a message is at hand."""
        self._index -= length_hint(self._next)
        self._next = iter(())
        if self._hand and self._index == len(self._hand[0].records):
            self._hand.popleft()
            self._index = 0
        return bool(self._hand)

    def _cut(self, messages_max: int) -> Batch:
        """Hand out the rest of the batch at hand, or its first `messages_max` messages."""
        batch, first = self._hand[0], self._index
        after = min(first + messages_max, len(batch.records))
        if after == len(batch.records):
            self._hand.popleft()
            self._index = 0
        else:
            self._index = after
        if after - first < len(batch.records):
            batch = replace(batch, records=batch.records[first:after])
        self._handed_out = batch
        return batch

    def _renew(self, generation: int, position: Cursor) -> None:
        """After a seek: drop what was at hand, unless it was read after the seek."""
        if self._generation < generation:
            self._generation = generation
            self._hand.clear()
            self._index = 0
            self._next = iter(())
            self._handed_out = None
            self._start = position
