"""Sends a producer's messages in its own order: waits until a message may be sent.

`own_order.py` says what a message has to wait for. Who sends holds `turn` from the wait to the
append, so the messages of all threads have one order. Messages to one log follow each other without
a wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from multicast.conditional.condition import LogPosition
from multicast.consuming.batches import Message
from multicast.control import log_partition
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import AppendOutcome, DoneAll, Driver, TopicPartition
from multicast.errors import (
    AmcastError,
    ClusterUnreachable,
    EarlierPending,
    EarlierUnknown,
    TimedOut,
    UsageError,
)
from multicast.messages import MessageID
from multicast.producing.order_follower import OrderFollower
from multicast.producing.own_order import Earlier, Missing, OwnOrder, SendingWait, wait_of
from multicast.producing.receipts import OneMessage
from topology.tree import Log

# Between two questions for a high watermark, which a message on its way to the log is to move.
_END_EVERY_S = 0.005
_WAIT_S = 0.5  # one wait for the order; then all is looked at again


Done = Callable[[AppendOutcome], None]
After = MessageID | OneMessage | Message | LogPosition


class SendingOrder:
    """The order in which one producer sends; with `fifo` it is also that of deliveries.

    `newest` reads which epoch has the newest plan.
    """

    def __init__(
        self,
        driver: Driver,
        follower: Callable[[], OrderFollower],
        newest: Callable[[], int],
        *,
        fifo: bool,
    ) -> None:
        self.fifo = fifo
        self.turn = threading.RLock()
        self._driver = driver
        self._follower = follower
        self._newest = newest
        self._clock = clock_of(driver)
        self._own = OwnOrder()
        self._ends: dict[TopicPartition, int] = {}
        self._moves = 0  # of the order, when it was looked at last
        self._changed = threading.Condition()

    def sent(self, log: str, count: int = 1) -> None:
        """Report that messages are sent now."""
        with self._changed:
            self._own.sent(log, count)

    def settled(self, log: str, count: int, outcome: AppendOutcome | None) -> None:
        """Report an outcome, or None for messages that were not sent after all."""
        with self._changed:
            self._own.settled(log, count, outcome)
            self._changed.notify_all()

    def noting(self, log: Log, count: int, done: DoneAll) -> DoneAll:
        """Report that messages are sent now; give `done`, which reports their outcomes first."""
        self.sent(log.name, count)

        def noted(index: int, number: int, outcome: AppendOutcome) -> None:
            self.settled(log.name, number, outcome)
            done(index, number, outcome)

        return noted

    def noting_one(self, log: Log, done: Done) -> Done:
        """Report one message as `noting` does."""
        noted = self.noting(log, 1, lambda _index, _count, outcome: done(outcome))
        return partial(noted, 0, 1)

    def is_free(self, log: Log) -> bool:
        """Whether a message to this log may be sent without a wait; does not block."""
        with self._changed:
            return self._own.is_free(log.name)

    def wait(self, log: Log, deadline: float) -> None:
        """Wait until a message to this log follows all that this producer sent.

        Raises `EarlierPending` at `deadline`, in the clock's time, and `EarlierUnknown` at once.
        """
        while not self.is_free(log):
            with self._changed:
                place = self._own.place
            wait = self.missing(log)
            if wait is None:
                continue
            if wait.missing is Missing.END:
                self._reach(wait, log, deadline)
                with self._changed:
                    self._own.free(log.name, place)
            else:
                self._wait(wait, log, deadline)

    def wait_after(self, log: Log, earlier: After | Iterable[After], deadline: float) -> None:
        """Wait until a message to this log follows the given ones; raises as `wait`."""
        if isinstance(earlier, MessageID) or not isinstance(earlier, Iterable):
            earlier = (earlier,)
        stored = [self._named(named, deadline) for named in earlier]
        others = [each for each in stored if each.log != log.name]
        while others and (wait := self._judged(log, others)) is not None:
            if wait.missing is Missing.END:
                return self._reach(wait, log, deadline)
            self._wait(wait, log, deadline)
        return None

    def missing(self, log: Log) -> SendingWait | None:
        """Say what a message to this log waits for now; asks the cluster if that is needed."""
        with self._changed:
            stored, place = self._own.stored(log.name), self._own.place
        wait = stored if isinstance(stored, SendingWait) else self._judged(log, stored)
        if wait is None:
            with self._changed:
                self._own.free(log.name, place)
        return wait

    # -- inside -----------------------------------------------------------------------------

    def _judged(self, log: Log, stored: Sequence[Earlier]) -> SendingWait | None:
        if not stored:
            return None
        wait: SendingWait | None = SendingWait(Missing.ORDER, stored[0].log)
        follower = self._follower()
        self._moves, view = follower.moves, follower.view()
        if view is None:
            return wait
        name, partition = log.name, log_partition(log)
        newest = view.plan.epoch
        try:
            if any(
                not view.plan.has_log(each.log) or not view.plan.top(each.log) for each in stored
            ):
                newest = self._newest()
            wait = wait_of(name, stored, view, newest=newest, end=self._ends.get(partition, 0))
            if wait is not None and wait.missing is Missing.END:
                self._ends.update(self._driver.high_watermarks([partition]))
                wait = wait_of(name, stored, view, newest=newest, end=self._ends[partition])
        except ClusterUnreachable:
            pass  # who waits has a deadline
        return wait

    def _reach(self, wait: SendingWait, log: Log, deadline: float) -> None:
        """Wait until the log has reached the bound of `wait`: a later look would give a later one.

        What others send to the log moves both, so a bound that is not kept may never be reached.
        """
        partition = log_partition(log)
        while self._ends.get(partition, 0) < wait.bound:
            self._wait(wait, log, deadline)
            with suppress(ClusterUnreachable):  # who waits has a deadline
                self._ends.update(self._driver.high_watermarks([partition]))

    def _wait(self, wait: SendingWait, log: Log, deadline: float) -> None:
        why = wait.missing.value.format(wait.log)
        if wait.missing is Missing.CERTAINTY:
            raise EarlierUnknown(
                f"The message to {log.name} was not sent: {why}. Send one to {wait.log} "
                f"first, or open another producer"
            )
        remaining = deadline - self._clock.monotonic()
        if remaining <= 0:
            raise EarlierPending(f"The message to {log.name} was not sent in time: {why}")
        if wait.missing is Missing.OUTCOME:
            self._clock.wait_for(self._changed, lambda: self._own.is_settled(wait.log), remaining)
        elif wait.missing is Missing.ORDER:
            self._follower().wait_moved(self._moves, min(remaining, _WAIT_S))
        else:
            self._clock.wait_for(self._changed, lambda: False, min(remaining, _END_EVERY_S))

    def _named(self, named: After, deadline: float) -> Earlier:
        """Give where a message is that the caller names; waits for a receipt's outcome."""
        message_id: object = named.message_id if isinstance(named, Message) else named
        if isinstance(named, LogPosition):
            message_id = MessageID(named.log, named.next - 1)
        elif isinstance(named, OneMessage):
            try:
                message_id = named.stored(deadline - self._clock.monotonic())
            except AmcastError as error:
                if error.definite:
                    raise
                kind = EarlierPending if isinstance(error, TimedOut) else EarlierUnknown
                raise kind(f"The message was not sent: of one that it follows, {error}") from error
        if not isinstance(message_id, MessageID):
            raise UsageError(f"{named!r} is no message to follow: give receipts, messages or IDs")
        return Earlier(message_id.log, message_id.offset)
