"""A producer's own order: what a message has to wait for, so that it comes after earlier ones.

No I/O, no clock: `sending_order.py` asks the cluster, and waits. Messages to one log keep their
order by its offsets. Of two logs, C is the lower one of their tops, if it knows both: whoever reads
both reads C's stream, or one that relays it. A message comes after one of another log, that C has
ordered, if and only if its offset is at least its log's position in C's stream there. Neither
"accepted" nor "ordered" is enough: tickets may have moved that position beyond the end of the log,
and the message would take a free offset below it.

    earlier   of a message: the last ones sent to other logs since the last one to its own log. What
              came before these is before that one, or was waited for then
    bound     the offset that a message must not get below. Nothing is stored below the high
              watermark any more, so it may be sent once that has reached the bound of each earlier
              message. A later position of the stream is a higher bound: it is safe, too
    epoch     in which a log's offset is ordered. Where no collector knows both logs, a consumer may
              still read one log in an epoch and the other one in a later epoch: so the later
              message must not be of an epoch before the earlier one's
    in doubt  of a log: it may get a message late whose outcome is unknown. A message that is
              acknowledged there afterwards ends that: it follows that one in the sequence of the
              producer's ID, or has a higher epoch of the ID, and fences what is still on its way

Invariant: what is free of a wait stays so until something is sent to another log.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome
from topology.tree import CollectorSpec, Plan


class OrderView(NamedTuple):
    """The newest epoch that has begun, as far as its streams were read."""

    plan: Plan
    starts: Mapping[str, int]  # by log: its first offset in this epoch
    # Of a collector and a log of its bag: the position in its stream, -1 if that is not known. A
    # later call never gives an earlier state of the stream.
    position: Callable[[str, str], int]


class Missing(enum.Enum):
    """What a message waits for."""

    CERTAINTY = "it is unknown whether log {} holds an earlier message"
    OUTCOME = "an earlier message to log {} is not acknowledged yet"
    ORDER = "an earlier message of log {} has no place in the order yet"
    END = "its log has not reached the place of an earlier message of log {} yet"


class SendingWait(NamedTuple):
    """What is missing, of which earlier message's log; for `END` also the bound."""

    missing: Missing
    log: str
    bound: int = 0


class Earlier(NamedTuple):
    """A message that is stored."""

    log: str
    offset: int


@dataclass(slots=True)
class _Sent:
    place: int = 0  # of the last message: how many were sent before, to all logs
    free: int = 0  # the messages before this place need no wait any more
    unsettled: int = 0
    stored: int = -1  # the last offset that is known
    in_doubt: bool = False


class OwnOrder:
    """What one producer has sent to each log, and what became of it."""

    def __init__(self) -> None:
        self._logs: dict[str, _Sent] = {}
        self._count = 0

    def sent(self, log: str, count: int) -> None:
        """Report that messages are sent: they follow all others."""
        entry = self._logs.setdefault(log, _Sent())
        self._count += 1
        entry.place = entry.free = self._count
        entry.unsettled += count

    def settled(self, log: str, count: int, outcome: AppendOutcome | None) -> None:
        """Report the outcome of messages, in the order of the appends; None: they were not sent."""
        entry = self._logs[log]
        entry.unsettled -= count
        match outcome:
            case Appended(offset):
                entry.stored, entry.in_doubt = offset + count - 1, False
            case AppendFailed(error) if not error.definite:
                entry.in_doubt = True

    def is_settled(self, log: str) -> bool:
        """Whether all that was sent to a log has its outcome."""
        return not self._logs[log].unsettled

    def is_free(self, log: str) -> bool:
        """Whether a message to this log waits for nothing."""
        return not self._earlier(log)

    @property
    def place(self) -> int:
        """How many sends there were; `free` takes it as it was when `stored` was asked."""
        return self._count

    def free(self, log: str, place: int) -> None:
        """Report that of what was sent up to `place` nothing is missing for this log."""
        entry = self._logs.setdefault(log, _Sent())
        entry.free = max(entry.free, place)

    def stored(self, log: str) -> list[Earlier] | SendingWait:
        """Give the earlier messages of a message to this log, or what is not known of them."""
        earlier = self._earlier(log)
        for name, entry in earlier.items():
            if entry.unsettled:
                return SendingWait(Missing.OUTCOME, name)
        for name, entry in earlier.items():
            if entry.in_doubt:
                return SendingWait(Missing.CERTAINTY, name)
        return [Earlier(name, entry.stored) for name, entry in earlier.items() if entry.stored >= 0]

    def _earlier(self, log: str) -> dict[str, _Sent]:
        own = self._logs.get(log)
        since = 0 if own is None else own.free
        if since == self._count:
            return {}
        return {
            name: entry for name, entry in self._logs.items() if entry.place > since and name != log
        }


def wait_of(
    log: str, earlier: Iterable[Earlier], view: OrderView, *, newest: int, end: int
) -> SendingWait | None:
    """Say what a message to `log` waits for; None: it may be sent now.

    `newest` is the newest epoch that has a plan, read after the earlier messages were acknowledged.
    `end` is the log's high watermark, or less.
    """
    highest = SendingWait(Missing.END, "", end)
    for each in earlier:
        bound = bound_of(log, each, view, newest=newest)
        if bound is None:
            return SendingWait(Missing.ORDER, each.log)
        if bound > highest.bound:
            highest = SendingWait(Missing.END, each.log, bound)
    return highest if highest.bound > end else None


def bound_of(log: str, earlier: Earlier, view: OrderView, *, newest: int) -> int | None:
    """Give the offset that a message to `log` must not get below; None while it is not known."""
    plan, starts, position = view
    if not plan.has_log(earlier.log):
        # Its first epoch has not begun, or its last one has ended.
        return starts.get(log, 0) if newest == plan.epoch else None
    known = comparing(plan, earlier.log, log)
    if known is not None:
        if position(known.name, earlier.log) <= earlier.offset:
            return None
        return position(known.name, log)  # after the other one: never an earlier state
    top = plan.top(earlier.log)
    if earlier.offset >= starts[earlier.log]:
        # A log without a collector ends an epoch at a marker, which is appended after the plan.
        is_ordered = (
            newest == plan.epoch
            if top is None
            else position(top.name, earlier.log) > earlier.offset
        )
        if not is_ordered:
            return None
    return starts.get(log, 0)


def comparing(plan: Plan, first: str, second: str) -> CollectorSpec | None:
    """Give the lower of the tops of two logs, if it knows both; None: nobody reads both."""
    for log, other in ((first, second), (second, first)):
        top = plan.top(log) if plan.has_log(log) else None
        if top is not None and other in top.bag:
            return top
    return None
