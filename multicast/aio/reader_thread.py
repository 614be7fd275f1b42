"""`ReaderThread`: polls a `Consumer` in a thread of its own, and hands what it reads to a loop.

    read        the result of one poll: batches, or the error that the poll raised
    ahead       read, and not taken by the loop: `_AHEAD_MAX` reads at most; then the thread rests
    call        something else that needs the consumer, such as a seek; made between two polls
    generation  counts the seeks and activations; what was read before one is dropped

One wake-up of the loop hands over a whole read. After an error the thread polls again only once the
loop has taken the error, as a synchronous caller would.

Invariants: only this thread uses the consumer, but for `Consumer.commit`, `entries` and `counts`;
reads are taken in the order of the polls; ahead <= `_AHEAD_MAX`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from multicast.aio.inbox import Inbox
from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import End
from multicast.errors import UsageError

# How late a call or a stop is noticed while no message comes. A message ends a poll at once. Twenty
# polls a second cost an idle consumer less than 1 % of a core.
_POLL_S = 0.05
# Two reads ahead keep the thread busy while the loop works on a third. Of them all, the group's
# trail (`group_positions.py`) must remember each batch: 10,000 at most.
_AHEAD_MAX = 2
_MESSAGES_MAX = 2000
_Result = TypeVar("_Result")


class Read(NamedTuple):
    """What one poll gave. `reached`: with these batches everything up to that end is delivered."""

    generation: int
    batches: list[Batch]
    error: Exception | None = None
    reached: End | None = None


class ReaderThread:
    """Reads one consumer, and closes it in the end. All methods are for the loop's thread."""

    def __init__(
        self,
        consumer: Consumer,
        inbox: Inbox,
        arrived: Callable[[], None],
        renewed: Callable[[int, Cursor], None],
    ) -> None:
        self._consumer = consumer
        self._renewed = renewed
        self.generation = 0
        self.begun_at = consumer.position  # where this generation began
        self._inbox = inbox
        self._arrived = arrived
        self._changed = threading.Condition()  # held for moments only: the loop takes it, too
        self._ahead: deque[Read] = deque()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._stopped = False
        self._end: End | None = None
        self.lacking = ""  # what is missing up to the end that is awaited
        self._thread = threading.Thread(target=self._run, name="amcast-aio-reader", daemon=True)
        self._thread.start()

    def take(self) -> Read | None:
        """Take the next read, if there is one; the thread may read on."""
        with self._changed:
            read = self._ahead.popleft() if self._ahead else None
            if read is not None:
                self._changed.notify()
        return read

    async def call(self, call: Callable[[], _Result]) -> _Result:
        """Await a call that the thread makes between two polls.

        Cancelled: it is not made, or, if it has begun, finished.
        """
        future: Future[_Result] = Future()
        with self._changed:
            if self._stopped:
                raise UsageError("this AsyncConsumer is closed; open another one")
            self._calls.append((future, call))
            self._changed.notify()
        return await asyncio.wrap_future(future)

    def stop(self) -> None:
        """End the thread after the poll or call that it is in."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait until the thread has closed the consumer; blocks."""
        self._thread.join(timeout_s)

    # -- in the thread, as a `call` -------------------------------------------------------------

    def renew(self) -> None:
        """Drop what is ahead, as the consumer has gone elsewhere: another generation begins."""
        with self._changed:
            self._ahead.clear()
            self.generation += 1
        self.begun_at = self._consumer.position
        # In the inbox before the result of the call: it takes effect even if nobody awaits that.
        self._inbox.post(partial(self._renewed, self.generation, self.begun_at))

    def aim(self, end: End | None) -> End:
        """Mark the read that reaches an end; None: the end as it is now. Gives that end."""
        now = self._consumer.end()
        self._end = now if end is None else end
        return self._end

    # -- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(self._has_work)
                    if self._stopped:
                        return
                    call = self._calls.popleft() if self._calls else None
                if call is not None:
                    _make(*call)
                else:
                    self._poll()
        finally:
            for future, _ in self._calls:
                future.cancel()
            self._consumer.close()

    def _has_work(self) -> bool:
        ahead = self._ahead
        rests = len(ahead) >= _AHEAD_MAX or (ahead and ahead[-1].error is not None)
        return self._stopped or bool(self._calls) or not rests

    def _poll(self) -> None:
        batches: list[Batch] = []
        error, reached = None, None
        fence = self._consumer.fence
        try:
            batches = self._consumer.poll(_POLL_S, messages_max=_MESSAGES_MAX)
            if self._consumer.fence != fence:  # this poll has begun to be active, and gives nothing
                self.renew()
            reached = self._look_for_end()
        except Exception as failure:  # noqa: BLE001 - raised to whoever reads next
            error = failure
        if batches or error is not None or reached is not None:
            read = Read(self.generation, batches, error, reached)
            with self._changed:
                self._ahead.append(read)
            self._inbox.post(self._arrived)

    def _look_for_end(self) -> End | None:
        if self._end is None:
            return None
        lacking = self._consumer.lacks(self._end)
        if lacking is not None:
            self.lacking = lacking
            return None
        reached, self._end = self._end, None
        return reached


def _make(future: Future[Any], call: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised to whoever awaits the call
            future.set_exception(error)
