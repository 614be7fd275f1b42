"""The receipts of multicasts, and the waiting for outcomes and for places in the order.

    route       the log that the messages to a destination set go to
    outcome     Kafka's answer to one append: stored at an offset, or failed with an error
    accepted    all in-sync replicas hold the message; its ID is known
    decided     whether the message takes effect (docs/conditional.md)
    ordered     the order stream of the log's top collector contains the message's offset

The driver reports each outcome exactly once, in any thread; any thread may wait for it. The
appending itself is in `producer.py`.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeVar

from multicast.conditional.follower import DecisionFollower
from multicast.conditional.judge import Decision
from multicast.drivers.clock import ClientClock, seconds
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome, TopicPartition
from multicast.errors import AmcastError, TimedOut
from multicast.messages import MessageID
from multicast.producing.append_counts import LogAppends
from multicast.producing.order_follower import OrderFollower
from topology.tree import Log

# A broker's failure must not end a wait: Kafka elects other leaders once the broker's session has
# expired, after 9 s by default (broker.session.timeout.ms).
FAILOVER_S = 30.0
_PENDING = -1  # in place of an offset: no offset is known. Kafka's offsets are 0 or more
# A producer with a full buffer tries again after this long, if no outcome wakes it first. An
# outcome that comes between the failed append and the wait wakes nobody: it costs up to this long.
_RETRY_S = 0.05
_T = TypeVar("_T")


class Route(NamedTuple):
    """Where messages to the set `exact` go; `header` if that is a strict subset of the log's."""

    log: Log
    partition: TopicPartition
    exact: tuple[str, ...]
    header: tuple[str, bytes] | None
    appends: LogAppends


class Settlement:
    """What a producer and its receipts share: outcomes wake the threads that wait for them.

    `follower` opens the reader of the order streams, or gives the one that is open; it is called
    only once somebody waits for an order. `decisions` is the same for decisions.
    """

    def __init__(
        self,
        follower: Callable[[], OrderFollower],
        decisions: Callable[[], DecisionFollower],
        clock: ClientClock,
    ) -> None:
        self.follower = follower
        self._decisions = decisions
        self.clock = clock
        self._outcome_came = threading.Condition()
        self._waiting = 0
        self._count = 0  # outcomes that came while somebody waited

    def outcome_came(self) -> None:
        """Wake who waits for an outcome."""
        if self._waiting:
            with self._outcome_came:
                self._count += 1
                self._outcome_came.notify_all()

    def pause(self) -> None:
        """Wait until an outcome may have made room in the buffer; at most `_RETRY_S` seconds."""
        came = self._count
        with suppress(TimedOut):
            self.wait(lambda: self._count != came, _RETRY_S)

    def wait(self, is_settled: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `is_settled` gives True; raises `TimedOut` after `timeout_s` seconds."""
        with self._outcome_came:
            self._waiting += 1
        try:
            # `wait_for` looks first, so it sees an outcome that came before `_waiting` grew.
            if not self.clock.wait_for(self._outcome_came, is_settled, timeout_s):
                raise TimedOut(f"no acknowledgement came within {timeout_s:g} s")
        finally:
            with self._outcome_came:
                self._waiting -= 1

    def wait_ordered(self, message: MessageID, deadline: float) -> None:
        """Wait until a message is ordered; raises `TimedOut` at `deadline` (the clock's time)."""
        remaining_s = deadline - self.clock.monotonic()
        if not self.follower().wait(message.log, message.offset, remaining_s):
            raise not_ordered(message)

    def wait_decided(self, message: MessageID, deadline: float) -> Decision:
        """Wait for a message's decision; raises `TimedOut` at `deadline` (the clock's time)."""
        remaining_s = deadline - self.clock.monotonic()
        decision = self._decisions().wait(message.log, message.offset, remaining_s)
        if decision is None:
            raise not_decided(message)
        return decision


def not_ordered(message: MessageID) -> TimedOut:
    """Make the error for an accepted message that was not ordered in time."""
    return TimedOut(
        f"message {message} was accepted, but not ordered in time; "
        f"'amcast collectors status' shows whether its collector is running"
    )


def not_decided(message: MessageID) -> TimedOut:
    """Make the error for an accepted message whose log could not be read in time."""
    return TimedOut(f"message {message} was accepted, but its log was not read up to it in time")


class _Routed:
    """What goes to one log, for one destination set."""

    __slots__ = ("_route", "_settlement")
    _route: Route
    _settlement: Settlement

    @property
    def log(self) -> Log:
        """The log that stores it."""
        return self._route.log

    @property
    def to(self) -> tuple[str, ...]:
        """The destination set, sorted."""
        return self._route.exact


class OneMessage(_Routed):
    """The state of one multicast: the part that needs no waiting."""

    __slots__ = ("_outcome",)

    def __init__(self, settlement: Settlement, route: Route) -> None:
        self._settlement, self._route = settlement, route
        self._outcome: AppendOutcome | None = None

    @property
    def outcome(self) -> AppendOutcome | None:
        """Kafka's answer; None until it is known. Does not block."""
        return self._outcome

    def settle(self, outcome: AppendOutcome) -> None:
        """Take the outcome. The driver calls this once, in any thread; not for applications."""
        self._outcome = outcome
        self._route.appends.settled(outcome)
        self._settlement.outcome_came()

    def stored(self, timeout_s: float) -> MessageID:
        """Wait as `Receipt.accepted`, in this thread. For producers, not for applications."""
        self._settlement.wait(lambda: self._outcome is not None, timeout_s)
        return self._message_id()

    def _message_id(self) -> MessageID:
        """Give the ID once the outcome is known, or raise the error that it is."""
        if isinstance(self._outcome, Appended):
            return MessageID(self.log.name, self._outcome.offset, self.log.life)
        assert isinstance(self._outcome, AppendFailed)
        raise self._outcome.error


class Receipt(OneMessage):
    """The state of one multicast. Its methods block, and may be called from any thread."""

    __slots__ = ("_done",)

    def __init__(
        self, settlement: Settlement, route: Route, done: Callable[[AppendOutcome], None] | None
    ) -> None:
        super().__init__(settlement, route)
        self._done = done

    def accepted(self, timeout: float = FAILOVER_S) -> MessageID:
        """Wait until all in-sync replicas hold the message; give its ID.

        Raises `AppendRefused` (the log does not contain it), `AppendUnknown` (the log may contain
        it), or `TimedOut` after `timeout` seconds: the outcome is still open, and may be waited for
        again.
        """
        return self.stored(seconds(timeout))

    def ordered(self, timeout: float = FAILOVER_S) -> MessageID:
        """Wait until the message has its place in the order; give its ID.

        A log without a collector is its own order: there this is `accepted`. The wait outlives an
        outage. Raises what `accepted` raises, `Truncated` if the log has lost the message,
        `TimedOut` (of an accepted message: usually no collector is running), `UsageError` once the
        producer is closed, and errors that waiting does not end, such as `AccessDenied` and
        `TopicChanged`. None of the others means that the message will not be ordered.
        """
        deadline = self._settlement.clock.monotonic() + seconds(timeout)
        message = self.accepted(timeout)
        self._settlement.wait_ordered(message, deadline)
        return message

    def decided(self, timeout: float = FAILOVER_S) -> Decision:
        """Wait until it is known whether the message takes effect; give the decision.

        A message without a condition takes effect. The producer reads the message's log for this,
        payloads included: the first time from the border of a segment on (docs/conditional.md), and
        up to the message. It needs no collector. Raises what `accepted` raises, `Trimmed` if
        retention has removed what decides, `Truncated` if the log has lost the message,
        `ClusterUnreachable` if the log cannot be read (the next
        call reads again), `UsageError` once the producer is closed, and `TimedOut`.
        """
        deadline = self._settlement.clock.monotonic() + seconds(timeout)
        message = self.accepted(timeout)
        return self._settlement.wait_decided(message, deadline)

    def settle(self, outcome: AppendOutcome) -> None:
        """Take the outcome. The driver calls this once, in any thread; not for applications."""
        super().settle(outcome)
        if self._done is not None:
            self._done(outcome)


class Receipts(_Routed):
    """The states of the messages of one `multicast_all`, in their order; `len` counts them."""

    __slots__ = ("_done", "_failed", "_lock", "_offsets", "_pending", "_sent")

    def __init__(
        self,
        settlement: Settlement,
        route: Route,
        size: int,
        done: Callable[[], None] | None = None,
    ) -> None:
        self._settlement, self._route = settlement, route
        self._done = done  # called once, in any thread, when the last outcome is known
        # Numbers in an array instead of an object for each outcome: the garbage collector scans
        # every object that lives, but not the inside of an array.
        self._offsets = array("q", [_PENDING]) * size
        self._failed: dict[int, AppendFailed] = {}
        self._pending = self._sent = size
        self._lock = threading.Lock()

    @property
    def route(self) -> Route:
        """Where the messages go. For producers, not for applications."""
        return self._route

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def outcomes(self) -> list[AppendOutcome | None]:
        """Kafka's answer for each message; None for one that is not known yet. Does not block."""
        return [
            self._failed.get(index) if offset == _PENDING else Appended(offset)
            for index, offset in enumerate(self._offsets)
        ]

    @property
    def settled(self) -> bool:
        """Whether every outcome is known. Does not block."""
        return not self._pending

    def wait(self, timeout: float) -> None:
        """Wait until every message has its outcome; raises `TimedOut` after `timeout` seconds."""
        self._settlement.wait(lambda: not self._pending, seconds(timeout))

    def accepted(self, timeout: float = FAILOVER_S) -> list[MessageID]:
        """Wait until every message has its outcome; give their IDs.

        Raises the error of the first message that failed, as `Receipt.accepted` does (`outcomes`
        gives the error of each); it is `BufferFull` if there was no room to send that message.
        """
        self.wait(timeout)
        if self._failed:
            raise self._failed[min(self._failed)].error
        return [MessageID(self.log.name, offset, self.log.life) for offset in self._offsets]

    def ordered(self, timeout: float = FAILOVER_S) -> list[MessageID]:
        """Wait until every message has its place in the order; give their IDs.

        Raises what `accepted` and `Receipt.ordered` raise.
        """
        deadline = self._settlement.clock.monotonic() + seconds(timeout)
        messages = self.accepted(timeout)
        if messages:
            # The order of one log is that of its offsets: the last one comes last.
            self._settlement.wait_ordered(max(messages), deadline)
        return messages

    def drop(self, first: int, error: AmcastError) -> None:
        """Settle the messages from `first` on as not sent. For producers, not for applications."""
        self._sent = first
        if first < len(self):
            self.settle(first, 0, len(self) - first, AppendFailed(error))

    def settle(self, first: int, index: int, count: int, outcome: AppendOutcome) -> None:
        """Take the outcome of `count` messages from `first + index` on, as a `DoneAll` does.

        For drivers, not for applications.
        """
        at = first + index
        if at < self._sent:
            self._route.appends.settled(outcome, count)
        if isinstance(outcome, AppendFailed):
            self._failed.update(dict.fromkeys(range(at, at + count), outcome))
        elif count == 1:
            self._offsets[at] = outcome.offset
        else:
            offsets = range(outcome.offset, outcome.offset + count)
            self._offsets[at : at + count] = array("q", offsets)
        with self._lock:
            self._pending -= count
            is_last = not self._pending
        if is_last:
            self._settlement.outcome_came()
            if self._done is not None:
                self._done()


class KeyedReceipts:
    """The states of the messages of one `multicast_all` that went where their keys put them.

    `parts` are the receipts of one log each, and the indexes of its messages among all.
    """

    __slots__ = ("_clock", "_parts", "_size")

    def __init__(self, parts: Sequence[tuple[Receipts, Sequence[int]]], clock: ClientClock) -> None:
        self._parts = tuple(parts)
        self._clock = clock
        self._size = sum(len(indexes) for _, indexes in self._parts)

    def __len__(self) -> int:
        return self._size

    @property
    def outcomes(self) -> list[AppendOutcome | None]:
        """Kafka's answer for each message; None for one that is not known yet. Does not block."""
        return self._merged([(part.outcomes, indexes) for part, indexes in self._parts])

    def accepted(self, timeout: float = FAILOVER_S) -> list[MessageID]:
        """Wait until every message has its outcome; give their IDs. Raises as `Receipts` does."""
        deadline = self._clock.monotonic() + seconds(timeout)
        for part, _ in self._parts:
            part.wait(max(0.0, deadline - self._clock.monotonic()))
        for outcome in self.outcomes:
            if isinstance(outcome, AppendFailed):
                raise outcome.error
        return self._merged([(part.accepted(0), indexes) for part, indexes in self._parts])

    def ordered(self, timeout: float = FAILOVER_S) -> list[MessageID]:
        """Wait until every message has its place in the order; give their IDs.

        Raises what `accepted` and `Receipt.ordered` raise.
        """
        deadline = self._clock.monotonic() + seconds(timeout)
        messages = self.accepted(timeout)
        for part, _ in self._parts:
            part.ordered(max(0.0, deadline - self._clock.monotonic()))
        return messages

    def _merged(self, of: Sequence[tuple[Sequence[_T], Sequence[int]]]) -> list[_T]:
        """Give what each message has, by the messages' indexes."""
        by_index = {
            index: entry
            for entries, indexes in of
            for index, entry in zip(indexes, entries, strict=True)
        }
        return [by_index[index] for index in range(self._size)]
