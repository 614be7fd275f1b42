"""Reads the order between two places, at once."""

from __future__ import annotations

from datetime import datetime

from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import SubscriptionRequest
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import TimedOut, UsageError
from multicast.tables.order_walk import OrderWalk, Piece, Where

_PAUSE_S = 0.05  # between two looks at an order that is not complete yet


def between(
    driver: Driver,
    topic: str,
    request: SubscriptionRequest,
    start: Where,
    until: Cursor | datetime | None,
    *,
    timeout_s: float,
) -> list[Piece]:
    """Give the order from `start` up to a cursor, a time, or (None) all that the logs hold now.

    Messages that come meanwhile may be in it. Waits until they are ordered; raises `TimedOut` if
    the order has not gone on for `timeout_s` seconds, and what `OrderWalk` raises.
    """
    goal = until if isinstance(until, Cursor) else None
    with OrderWalk(driver, topic, request, start, until=goal) as walk:
        if isinstance(until, datetime):
            until = walk.cursor_of(until)
        end = walk.end() if until is None else None
        if until is not None:
            _refuse_reversed(walk.position, until)
        clock = clock_of(driver)
        pieces: list[Piece] = []
        moved = clock.monotonic()
        while True:
            more = walk.advance(until=until)
            pieces += more
            if more:
                moved = clock.monotonic()
            if end is not None:
                cause = walk.lacks(end)
            elif until is not None and not walk.passed(until):
                cause = f"the order does not reach cursor {until} yet"
            else:
                cause = None
            if cause is None:
                return pieces
            if clock.monotonic() - moved > timeout_s:
                raise TimedOut(f"the order did not go on for {timeout_s:g} s: {cause}")
            walk.wait(_PAUSE_S)


def _refuse_reversed(start: Cursor, until: Cursor) -> None:
    if until.rank < start.rank:
        raise UsageError(f"the end, cursor {until}, lies before the start, cursor {start}")
    if until.epoch == start.epoch and until.source != start.source:
        raise UsageError(f"cursor {until} is of another interest than cursor {start}")
