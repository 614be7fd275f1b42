"""What the engine needs of a collector's core, in either version of the order records.

Version 1 is `collectors.collector.Collector`, version 2 `collectors.ticket_core.TicketCore`. Both
are told of events, and give the actions that are due.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from collectors.collector import Action, Collector, CollectorLimits
from collectors.entry_counts import EntryCounts
from collectors.ticket_core import LIMITS, TicketCore
from multicast.control import AnyStream
from multicast.order import OrderStream
from multicast.tickets.collector import TicketLimits
from multicast.tickets.stream import TicketOrder


class CollectorCore(Protocol):
    """One instance of a collector in one epoch; `writer` is the instance's number.

    `counted` minus `ours` is how many accepted records other instances wrote, and `last_writer`
    wrote the last one, as far as records say so. While `ours` grows with each record, the stream
    need not be read back.
    """

    writer: int
    counted: int
    ours: int
    last_writer: int

    @property
    def own(self) -> AnyStream:
        """The collector's stream."""

    @property
    def parent(self) -> AnyStream | None:
        """Its parent's stream."""

    @property
    def void(self) -> Mapping[enum.Enum, int]:
        """Count the records of the own stream that did not count, by reason."""

    @property
    def held(self) -> set[int]:
        """The logs with an open transaction at rest."""

    @property
    def strayed(self) -> bool:
        """Whether the own stream contradicts the parent's."""

    # -- events

    def own_end(self, offset: int) -> None:
        """Report the end of the own stream at the start; see `caught_up`."""

    def own_read(self, offset: int, raw: bytes | None, age_ms: int = 0) -> None:
        """Read the next record of the own stream, whoever wrote it, and so long after Kafka."""

    def own_passed(self, position: int) -> None:
        """Note that the own stream is read up to `position`."""

    def parent_read(self, offset: int, raw: bytes | None) -> None:
        """Read the next record of the parent's stream."""

    def parent_passed(self, position: int) -> None:
        """Note that the parent's stream is read up to `position`."""

    def log_end(self, log: int, end: int) -> None:
        """Report the last stable offset of a log."""

    def tick(self, highs: Mapping[int, int] | None = None) -> None:
        """Report that time has passed; `highs` are high watermarks above the ends of logs."""

    def filled(self, log: int, end: int | None) -> None:
        """Report the high watermark of a log after a `Fill`; None: it failed, or is unknown."""

    def append_failed(self) -> None:
        """Report that an append failed or has an unknown outcome."""

    def freeze_after(self, positions: Mapping[int, int]) -> None:
        """Freeze as soon as each of these logs is ordered up to its position."""

    # -- actions and state

    def step(self, now_ms: int) -> Sequence[Action]:
        """Give the actions that are due."""

    def caught_up(self) -> bool:
        """Whether the own stream is read up to its end at the start; only then `step` appends."""

    def parent_paused(self, *, paused: bool = False) -> bool:
        """Whether to pause, or with `paused` to stay paused, reading of the parent's stream."""

    def unordered(self, log: int, end: int) -> int:
        """Count the offsets below `end` that this instance has to order, and did not yet."""

    @property
    def frozen(self) -> bool:
        """Whether the own stream is frozen."""

    @property
    def ahead(self) -> dict[int, int]:
        """By own log, how many offsets it is ordered ahead of its end; below 0, what it lags."""

    @property
    def lag(self) -> int:
        """The number of offsets below the ends of own logs that are not ordered yet."""

    @property
    def early(self) -> int:
        """The number of offsets of own logs that are ordered ahead of their log's end."""

    @property
    def too_far(self) -> dict[int, int]:
        """By how much own logs are ordered beyond their ends, if further than holes are filled."""

    @property
    def due(self) -> bool:
        """Whether there is a record to append that was not handed out yet.

        In version 2 also whether a hole or a correction has waited for an instance to act.
        """

    @property
    def waits(self) -> bool:
        """Whether something becomes due soon, although no event comes."""

    @property
    def pending(self) -> int:
        """The number of this instance's records in flight."""


def make_core(
    own: AnyStream,
    parent: AnyStream | None,
    *,
    writer: int,
    clock_ms: Callable[[], int],
    limits: CollectorLimits | None,
    entries: EntryCounts,
) -> CollectorCore:
    """Make the core of an instance in the version of its streams, which is one for both.

    Those `limits` that version 2 has no word for concern version 1 only.
    """
    if isinstance(own, TicketOrder):
        assert parent is None or isinstance(parent, TicketOrder)
        bounds = LIMITS if limits is None else _bounds(limits)
        return TicketCore(
            own, parent, writer=writer, clock=clock_ms, limits=bounds, entries=entries
        )
    assert isinstance(own, OrderStream)
    assert parent is None or isinstance(parent, OrderStream)
    return Collector(own, parent, writer=writer, limits=limits, entries=entries)


def _bounds(limits: CollectorLimits) -> TicketLimits:
    return replace(
        LIMITS,
        checkpoint_records=limits.checkpoint_every,
        run_length_max=limits.run_length_max,
        runs_max=limits.runs_max,
    )
