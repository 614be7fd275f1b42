"""Sends a producer's messages in its own order: waits until a message may be sent.

`own_order.py` says what a message has to wait for. Of each earlier one its bound is found, once:
later looks would give higher ones, which others' messages may move for ever. Then the message's log
has to reach the highest of them. With `fifo`, who sends holds the turn from the wait to the append,
so the messages of all threads have one order. Messages to one log follow each other without a wait.

    earlier   of a message: the last ones sent to other logs since the last one to its own log. What
              came before these is before that one, or was waited for then
    in doubt  of a log: it may get a message late whose outcome is unknown. A message that is
              acknowledged there afterwards ends that: it follows that one in the sequence of the
              producer's ID, or has a higher epoch of the ID, and fences what is still on its way

Invariant: what is free of a wait stays so until something is sent to another log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress

from multicast.conditional.condition import LogPosition
from multicast.consuming.batches import Message
from multicast.control import ControlState, groups_topic, log_partition
from multicast.drivers.protocol import Driver
from multicast.errors import (
    AmcastError,
    ClusterUnreachable,
    EarlierPending,
    EarlierUnknown,
    TimedOut,
    UsageError,
)
from multicast.messages import MessageID
from multicast.producing.own_order import OrderView, bound_of, has_log
from multicast.producing.receipts import OneMessage, Route, Settlement
from topology.tree import Log

# Between two questions for a high watermark, which a message on its way to the log is to move.
_END_EVERY_S = 0.01
_ASK_S_MIN = 0.5  # for one question to the cluster, also where no time is left to wait

After = MessageID | OneMessage | Message | LogPosition


class SendingOrder:
    """The order in which one producer sends; with `fifo` it is also that of deliveries.

    `newest` reads the control topic, for at most so many seconds.
    """

    def __init__(
        self,
        driver: Driver,
        topic: str,
        settlement: Settlement,
        newest: Callable[[float], ControlState],
        *,
        fifo: bool,
    ) -> None:
        self.fifo = fifo
        self._turn = threading.RLock()
        self._driver = driver
        self._topics = topic, groups_topic(topic)
        self._settlement = settlement
        self._newest = newest
        self._clock = settlement.clock
        self._count = 0  # sends so far, to all logs
        self._last: dict[str, tuple[int, Route]] = {}  # by log: the last send, and its route
        self._free: dict[str, int] = {}  # by log: sends up to this one need no wait any more
        self._never = threading.Condition()  # notified by nobody

    def sent(self, route: Route) -> None:
        """Report that messages were sent; who sends has the turn."""
        self._count += 1
        self._last[route.log.name] = self._count, route
        self._free[route.log.name] = self._count

    def is_free(self, log: Log) -> bool:
        """Whether a message to this log may be sent without a wait; does not block."""
        return not self._earlier(log.name)

    @contextmanager
    def turn(self, log: Log, after: After | Iterable[After], deadline: float) -> Iterator[None]:
        """Wait as `wait`; with `fifo` have the turn from then on, for which this waits, too."""
        left_s = max(0.0, deadline - self._clock.monotonic())
        if self.fifo and not self._turn.acquire(timeout=left_s):
            raise _pending(log, "others of this producer wait before it")
        try:
            self.wait(log, after, deadline)
            yield
        finally:
            if self.fifo:
                self._turn.release()

    def wait(self, log: Log, after: After | Iterable[After], deadline: float) -> None:
        """Wait until a message to this log follows these, with `fifo` also all that was sent.

        Raises `EarlierPending` at `deadline`, in the clock's time, `EarlierUnknown` at once,
        `Truncated` if a log has lost what is waited for, and `UsageError` for no message.
        """
        if isinstance(after, MessageID) or not isinstance(after, Iterable):
            after = (after,)
        place = self._count
        earlier = [self._named(each, deadline) for each in after]
        if self.fifo:
            for route in self._earlier(log.name):
                earlier += self._stored(log, route, deadline)
        bounds = [self._bound(log, each, deadline) for each in earlier]
        self._reach(log, max(bounds, default=0), deadline)
        if self.fifo:
            self._free[log.name] = max(place, self._free.get(log.name, 0))

    # -- inside -----------------------------------------------------------------------------

    def _earlier(self, log: str) -> list[Route]:
        since = self._free.get(log, 0)
        if since == self._count:
            return []
        sent = list(self._last.items())  # one that was cancelled may wait while others send
        return [route for name, (place, route) in sent if place > since and name != log]

    def _stored(self, log: Log, route: Route, deadline: float) -> list[MessageID]:
        """Wait for all outcomes of another log; give the last message that it holds, if any."""
        appends, name = route.appends, route.log.name
        try:
            self._settlement.wait(lambda: not appends.pending, deadline - self._clock.monotonic())
        except TimedOut:
            why = f"an earlier message to log {name} is not acknowledged yet"
            raise _pending(log, why) from None
        if appends.in_doubt:
            raise EarlierUnknown(
                f"The message to {log.name} was not sent: it is unknown whether log {name} holds "
                f"an earlier message. Send one to {name} first, or open another producer"
            ).about(route.partition)
        return [MessageID(name, appends.stored, route.log.life)] if appends.stored >= 0 else []

    def _bound(self, log: Log, earlier: MessageID, deadline: float) -> int:
        """Wait until it is known which offset a message to this log must not get below."""
        if earlier.log == log.name and earlier.life <= log.life:
            return earlier.offset + 1 if earlier.life == log.life else 0
        follower = self._settlement.follower()
        follower.wait_moved(follower.moves, 0.0)
        while True:
            moves, view = follower.moves, follower.view()
            bound = None
            with suppress(ClusterUnreachable):  # who waits has a deadline
                if view is not None:
                    left_s = deadline - self._clock.monotonic()
                    bound = self._judged(log.name, earlier, view, left_s)
            if bound is not None:
                return bound
            follower.lost.refuse(earlier.log, earlier.offset)
            why = f"an earlier message of log {earlier.log} has no place in the order yet"
            follower.wait_moved(moves, self._left(log, why, deadline))

    def _judged(self, log: str, earlier: MessageID, view: OrderView, left_s: float) -> int | None:
        plan, newest = view.plan, view.plan.epoch
        if not has_log(plan, earlier) or plan.top(earlier.log) is None:
            state = self._newest(max(left_s, _ASK_S_MIN))
            newest = state.epoch
            if state.lives.get(earlier.log, -1) < earlier.life:
                raise UsageError(
                    f"{earlier} is no message of topic {plan.topic}: no plan had that log or life"
                )
        elif (
            earlier.life < plan.log(earlier.log).life
            and self._end(plan.log(earlier.log), left_s) <= earlier.offset
        ):
            earlier = earlier._replace(offset=-1)  # lost, and an operator has accepted that
        if earlier.log == log:  # of a life that a newer plan has than the sender's
            return earlier.offset + 1
        return bound_of(log, earlier, view, newest=newest)

    def _reach(self, log: Log, bound: int, deadline: float) -> None:
        """Wait until the log has reached a bound, which is kept: others' messages move both."""
        while bound > 0:
            with suppress(ClusterUnreachable):  # who waits has a deadline
                if self._end(log, deadline - self._clock.monotonic()) >= bound:
                    return
            self._settlement.follower().lost.refuse(log.name, bound - 1)
            why = "its log has not reached the place of an earlier message yet"
            left_s = min(self._left(log, why, deadline), _END_EVERY_S)
            self._clock.wait_for(self._never, lambda: False, left_s)

    def _end(self, log: Log, left_s: float) -> int:
        partition = log_partition(log)
        timeout_s = max(left_s, _ASK_S_MIN)
        return self._driver.high_watermarks([partition], timeout_s=timeout_s)[partition]

    def _left(self, log: Log, why: str, deadline: float) -> float:
        left_s = deadline - self._clock.monotonic()
        if left_s <= 0:
            raise _pending(log, why)
        return left_s

    def _named(self, named: object, deadline: float) -> MessageID:
        """Give where a message is that the caller names; waits for a receipt's outcome."""
        if isinstance(named, OneMessage | Message) and named.log.topic not in self._topics:
            what = f"a message of topic {named.log.topic}"
            raise UsageError(f"nothing in topic {self._topics[0]} can follow {what}: name another")
        match named:
            case MessageID():
                return named
            case Message():
                return named.message_id
            case LogPosition(log, offset_next):
                return MessageID(log, offset_next - 1)
            case OneMessage():
                try:
                    return named.stored(deadline - self._clock.monotonic())
                except AmcastError as error:
                    if error.definite:
                        raise
                    kind = EarlierPending if isinstance(error, TimedOut) else EarlierUnknown
                    text = f"The message was not sent: of one that it follows, {error}"
                    raise kind(text) from error
        raise UsageError(f"{named!r} is no message to follow: give receipts, messages or IDs")


def _pending(log: Log, why: str) -> EarlierPending:
    return EarlierPending(f"The message to {log.name} was not sent in time: {why}")
