"""Retention in the simulation: what is removed of streams and logs, and who needed it. No I/O.

Order records are kept longer than messages, so where a record is removed, all that it orders is
removed, too. Nobody delivers it any more, and its order matters to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.tickets.epochs import TicketEpoch, TicketSpan
from bench.tickets.processes import TicketCollectorProcess, TicketReaderProcess
from bench.tickets.world import REMOVED, UNSEEN


def needed_from(
    span: TicketSpan,
    epochs: Sequence[TicketEpoch],
    collectors: Sequence[TicketCollectorProcess],
    consumers: Sequence[TicketReaderProcess],
) -> int:
    """Give the first offset of a stream that somebody needs who starts anew at a checkpoint.

    `collectors` are the instances that retention must not overtake.
    """
    before = [one for epoch in epochs[:-1] for one in epoch.spans]
    needed = [span.mark(len(span.records))]
    for consumer in consumers:
        if consumer.span is span:
            cursor, place = consumer.core.cursor, consumer.core.stream.offset_next
            needed += [span.mark(cursor.record), place]
        elif consumer.span in before and consumer.span not in epochs[-1].spans:
            return 0  # it will begin somewhere at the epoch's start
    for instance in collectors:
        if instance.span is span:
            needed.append(instance.core.own.offset_next)
        elif instance.span.parent is span and instance.core.relay is not None:
            child = instance.span.checkpoint(len(instance.span.records))
            below = child.parent_next if child else span.shape.first
            needed += [span.mark(below), instance.core.relay.parent.offset_next]
    return min(needed)


def remove_with_messages(span: TicketSpan, below: int) -> None:
    """Remove a stream's records below an offset, and the messages that they order.

    A record whose messages are not all stored and visible is too young to be removed.
    """
    world = span.world
    _, runs = span.whole()
    for offset, run in runs:
        if offset < below and world.stable_end(run.log) < run.next:
            below = offset
    for offset, (log, first, end) in runs:
        if offset < below:
            for place in range(first, end):
                if world.logs[log][place] not in UNSEEN:
                    world.logs[log][place] = REMOVED
                    world.faults["message removed"] += 1
    span.kept_from = max(span.kept_from, below)
