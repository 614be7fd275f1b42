"""Who watches what consumers hand out: nobody, except in tests.

A driver with an attribute `observe` (`multicast/testing/`) learns of every consumer that it serves,
also of those that the code under test opens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from multicast.consuming.batches import Batch
from multicast.consuming.cursor import Cursor
from multicast.consuming.subscription import End, SubscriptionRequest
from multicast.control import ControlState
from multicast.drivers.protocol import Record

# Called with a batch, and those of its records that the application gets now.
HandedOut = Callable[[Batch, Sequence[Record]], None]
# Whether a consumer has handed out everything before an end, as the control topic's state says.
AtEnd = Callable[[ControlState, End], bool]


class Observe(Protocol):
    """Called where a consumer begins to read, at its start and at each `seek`."""

    def __call__(
        self, request: SubscriptionRequest, position: Cursor, /, *, earliest: bool, at_end: AtEnd
    ) -> HandedOut:
        """Return what to call with each batch; `earliest`: it begins at its earliest position."""


def _nobody(_: SubscriptionRequest, __: Cursor, /, *, earliest: bool, at_end: AtEnd) -> HandedOut:
    del earliest, at_end
    return lambda _batch, _records: None


def observer_of(driver: object) -> Observe:
    """Return who watches a driver's consumers."""
    observe: Observe = getattr(driver, "observe", _nobody)
    return observe
