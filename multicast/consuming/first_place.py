"""The first place from which a consumer can have everything: "earliest", or what a time means.

Old epochs may not cover the interest, and retention removes old messages and old order records.
Whoever begins later than it asked to learns why: in the log, and from `FirstPlace.omitted`.

    chain    what is read in the epochs that cover the interest, from the newest back, without a gap
    gone     per log: its first retained offset, where that is behind the epoch's start

Invariant: from the first place on, the order and all logs of the interest are retained.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from operator import attrgetter

from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SourceLink, SubscriptionRequest, chain_back
from multicast.control import ControlState, log_partition
from multicast.drivers.protocol import Driver
from multicast.drivers.reading import read_upto
from multicast.errors import ProtocolViolation
from multicast.order.runs import order_checksum
from multicast.order.stream import StreamCheckpoint

_LOGGER = logging.getLogger("amcast.consumer")
_rank = attrgetter("rank")


@dataclass(frozen=True, slots=True)
class FirstPlace:
    """Where a consumer begins; `omitted`: why that is later than it asked for, "" if it is not."""

    cursor: Cursor
    omitted: str


def first_place(
    driver: Driver, control: ControlState, request: SubscriptionRequest, since_ms: int | None = None
) -> FirstPlace:
    """Find the first place from which all is covered and retained; with a time, from that on.

    Blocks for requests; reads the order only where messages are gone. Raises what `chain_back`
    raises for the newest epoch.
    """
    if since_ms is None:
        chain, omitted = chain_back(control, request, control.epoch)
    else:
        least = control.epoch_at(since_ms)
        chain, omitted = chain_back(control, request, control.begun_epoch, least=least)
    sources = {link.source: None for link in chain}
    sources |= {log_partition(log): None for link in chain for log in link.logs}
    begins = driver.log_start_offsets(list(sources))
    for link in chain:
        order, starts = link.source, link.starts
        is_cut = not link.alone and link.start.record < begins[order]
        gone = {log.name: begins[log_partition(log)] for log in link.logs}
        gone = {name: begin for name, begin in gone.items() if begin > starts[name]}
        if gone or is_cut:
            break
    cursor = link.start
    if since_ms is not None:
        offset = driver.offsets_at([order], since_ms)[order]
        cursor = max(cursor, link.cursor_at(offset), key=_rank)
    if link is not chain[-1]:
        omitted = ""
    if gone or is_cut:
        retained = _retained(driver, control, link, gone, begins[order])
        if retained is not None and (retained.rank > cursor.rank or link is not chain[-1]):
            cursor = max(cursor, retained, key=_rank)
            kept = [f"log {name} is retained from offset {gone[name]} on" for name in gone]
            kept += [f"the order of collector {link.start.source} is retained in part"] * is_cut
            omitted = f"{', '.join(kept)}: what was ordered before that is left out"
    if omitted:
        who = request.name or "+".join(request.interest or ())
        omitted = f"consumer {who} begins at cursor {cursor}: {omitted}"
        _LOGGER.warning("%s", omitted)
    return FirstPlace(cursor, omitted)


def _retained(
    driver: Driver,
    control: ControlState,
    link: SourceLink,
    gone: Mapping[str, int],
    order_begin: int,
) -> Cursor | None:
    """Give the place in a source after everything that is gone, which may be its end.

    None if nobody can read the order from anywhere on: whoever tries hears what is missing.
    """
    if link.alone:
        return link.cursor_at(gone[link.logs[0].name])
    below = {link.plan.number(name): offset for name, offset in gone.items()}
    points: list[StreamCheckpoint | None] = [None] if link.start.record >= order_begin else []
    points += [
        point
        for point in control.checkpoints(link.plan.epoch, link.start.source)
        if point.read_from >= order_begin
    ]
    if not points:
        return None
    # Who reads from a checkpoint on can begin behind its record only.
    least = link.start if points[0] is None else link.cursor_at(points[0].offset + 1)
    before = [p for p in points if p and any(p.positions[n] < at for n, at in below.items())]
    try:
        place = _behind(driver, control, link, below, before[-1] if before else points[0])
    except ProtocolViolation:  # a checkpoint that does not match the stream
        place = _behind(driver, control, link, below, points[0])
    return max(least, place, key=_rank)


def _behind(
    driver: Driver,
    control: ControlState,
    link: SourceLink,
    below: Mapping[int, int],
    point: StreamCheckpoint | None,
) -> Cursor:
    """Read an order from a checkpoint, or its start, to behind the last that it orders `below`."""
    source, place = link.source, link.start
    stream = control.opened(link.plan.epoch, link.start.source, point)
    end = driver.last_stable_offsets([source])[source]
    for fetched in read_upto(driver, source, stream.offset_next, end):
        for record in fetched.records:
            is_over = all(stream.state.positions[log] >= end for log, end in below.items())
            if stream.proven and is_over:
                return place
            judged = stream.read(record.offset, record.value, order_checksum(record))
            for index, run in enumerate(judged if isinstance(judged, tuple) else ()):
                if run.first < below.get(run.log, 0):
                    after = min(run.next, below[run.log])
                    place = replace(place, record=record.offset, run=index, next=after)
        stream.passed(fetched.position)
    return place
