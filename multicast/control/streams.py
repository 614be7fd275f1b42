"""Opens an order stream in the version of its epoch, and says what all its readers may rely on.

Version 1 is `multicast.order.OrderStream`, version 2 `multicast.tickets.stream.TicketOrder`. No
I/O.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol

from multicast.drivers.protocol import Record
from multicast.errors import UnknownVersion
from multicast.order import Checkpoint, OrderStream, Run, decode
from multicast.tickets.stream import TicketCheckpoint
from topology.tree import ORDER_VERSION_FIRST, ORDER_VERSIONS, Plan

AnyCheckpoint = Checkpoint | TicketCheckpoint


class Positions(Protocol):
    """The part of a stream's state that all versions have."""

    positions: dict[int, int]  # by log number, the first offset that is not ordered yet
    frozen: bool


class AnyStream(Protocol):
    """A collector's stream of some epoch and version, read record by record.

    `own` and `inherited` are the logs of its bag by number, `starts` where they begin in it,
    `offset_first` is where the stream begins, and `offset_next` the next offset to read. `proven`
    is False until the checkpoint at which it was opened is confirmed by the stream. `count` is the
    number of accepted records, of version 2 since reading began.
    """

    plan: Plan
    collector: str
    own: frozenset[int]
    inherited: frozenset[int]
    starts: Mapping[int, int]
    offset_first: int
    offset_next: int

    @property
    def proven(self) -> bool:
        """Whether the checkpoint is confirmed."""

    @property
    def count(self) -> int:
        """The number of accepted records."""

    @property
    def state(self) -> Positions:
        """The effect of what was read."""

    def runs(self, offset: int, raw: bytes | None) -> tuple[Run, ...] | enum.Enum | None:
        """Read the record at `offset`; give the runs that it orders, or why it is void.

        None: it confirms the checkpoint, and the state has its effect already. Offsets must rise
        from call to call. Raises `UnknownVersion`, and `ProtocolViolation` if the checkpoint is
        wrong.
        """

    def passed(self, position: int) -> None:
        """Report that the reader has passed every offset below `position`; raises as `runs`."""


def refuse_unknown(plan: Plan) -> None:
    """Raise `UnknownVersion` if this program cannot read the streams of a plan's epoch."""
    if plan.order_version not in ORDER_VERSIONS:
        raise UnknownVersion(
            f"epoch {plan.epoch} of topic {plan.topic} has order records of version "
            f"{plan.order_version}; this program knows versions "
            f"{' and '.join(map(str, ORDER_VERSIONS))}: upgrade it"
        )


def of_version_1(stream: AnyStream) -> OrderStream:
    """Give the stream itself; raise `UnknownVersion` if it has order records of another version."""
    plan = stream.plan
    if plan.order_version != ORDER_VERSION_FIRST:
        raise UnknownVersion(
            f"epoch {plan.epoch} of topic {plan.topic} has order records of version "
            f"{plan.order_version}, which this command does not read yet"
        )
    assert isinstance(stream, OrderStream)
    return stream


def written_ms(stream: AnyStream, record: Record) -> int | None:
    """Give when an accepted record of a stream was written, in milliseconds since 1970.

    In version 1 the record itself says that; in version 2 it is Kafka's timestamp, which the
    broker has set. None: it has none.
    """
    if isinstance(stream, OrderStream):
        return decode(record.value or b"").time_ms
    return record.timestamp_ms
