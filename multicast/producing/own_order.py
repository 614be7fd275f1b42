"""A producer's own order: the offset that a message must not get below, to come after another one.

No I/O, no clock: `sending_order.py` asks the cluster, and waits. Messages to one log keep their
order by its offsets. Of two logs, C is the lower one of their tops, if it knows both: whoever reads
both reads C's stream, or one that relays it. A message comes after one of another log, that C has
ordered, if and only if its offset is at least its log's position in C's stream there. Neither
"accepted" nor "ordered" is enough: tickets may have moved that position beyond the end of the log,
and the message would take a free offset below it.

    bound     the offset that a message must not get below. Nothing is stored below the high
              watermark any more, so it may be sent once that has reached the bound of each earlier
              message. A later position of the stream is a higher bound: it is safe, too
    epoch     in which a log's offset is ordered. Where no collector knows both logs, a consumer may
              still read one log in an epoch and the other one in a later epoch: so the later
              message must not be of an epoch before the earlier one's
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from multicast.messages import MessageID
from topology.tree import CollectorSpec, Plan


class OrderView(NamedTuple):
    """The newest epoch that has begun, as far as its streams were read."""

    plan: Plan
    starts: Mapping[str, int]  # by log: its first offset in this epoch
    # Of a collector and a log of its bag: the position in its stream, -1 if that is not known. A
    # later call never gives an earlier state of the stream.
    position: Callable[[str, str], int]


def bound_of(log: str, earlier: MessageID, view: OrderView, *, newest: int) -> int | None:
    """Give the offset that a message to `log` must not get below; None while it is not known.

    `newest` is the newest epoch that has a plan, read after the earlier message was acknowledged.
    It counts only if this epoch does not have that one's log, or no collector orders it.
    """
    plan, starts, position = view
    if not has_log(plan, earlier):
        # Its first epoch has not begun, or its last one has ended.
        return starts.get(log, 0) if newest == plan.epoch else None
    known = comparing(plan, earlier.log, log)
    if known is not None:
        if position(known.name, earlier.log) <= earlier.offset:
            return None
        return position(known.name, log)  # after the other one: never an earlier state
    top = plan.top(earlier.log)
    # A log without a collector ends an epoch at a marker, which is appended after the plan.
    if earlier.offset >= starts[earlier.log] and (
        newest > plan.epoch if top is None else position(top.name, earlier.log) <= earlier.offset
    ):
        return None
    return starts.get(log, 0)


def has_log(plan: Plan, message: MessageID) -> bool:
    """Whether a plan has the log that stores a message, in this life or a later one."""
    return plan.has_log(message.log) and message.life <= plan.log(message.log).life


def comparing(plan: Plan, first: str, second: str) -> CollectorSpec | None:
    """Give the lower of the tops of two logs, if it knows both; None: nobody reads both."""
    for log, other in ((first, second), (second, first)):
        top = plan.top(log) if plan.has_log(log) else None
        if top is not None and other in top.bag:
            return top
    return None
