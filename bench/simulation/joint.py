"""A joint appender on the simulated cluster: messages, and the tickets that go beside them.

`multicast.tickets.appender` writes the tickets, as it does with the product's own joint appender.
A message (or a batch of one log) and its ticket go to two leaders: either may be stored first, and
each has a fate of its own. This file is the only place that knows so.

    in order    records of one Kafka partition are stored, and their outcomes reported, in the order
                of their appends. What is stored late although its outcome was given up, or a second
                time, comes out of order
    cut short   a producer that dies in the middle of a request: only its messages are stored, or
                only its tickets. It hears nothing of them
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from bench.simulation.schedule import Fate
from bench.simulation.world import World
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    Appended,
    AppendFailed,
    AppendOutcome,
    Beside,
    DoneAll,
    Headers,
    TopicPartition,
)
from multicast.errors import AppendRefused, AppendUnknown


class CutShort(Enum):
    """What is stored of the request in which a producer dies."""

    MESSAGES = "messages without tickets"
    TICKETS = "tickets without messages"


@dataclass(slots=True)
class _Line:
    """A Kafka partition, as one producer writes it: nothing of it may overtake these times."""

    stored: int = 0
    answered: int = 0


Record = tuple[bytes | None, bytes | None, Headers]


class SimulatedJoint:
    """One producer's appender; `bits` of the next request choose fates, delays and their order."""

    def __init__(self, world: World, beside: Beside | None) -> None:
        self.bits = 0
        self.cut: CutShort | None = None  # dies with the next request
        self._world = world
        self._beside = beside
        self._lines: dict[TopicPartition, _Line] = {}

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Send a message by a request of its own."""
        self._send(partition, [(value, key, headers)], done)

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Send messages by one request."""
        count = len(values)
        records = list(zip(values, keys or [None] * count, headers or [()] * count, strict=True))
        self._send(partition, records, lambda outcome: done(0, count, outcome))
        return count

    def ready(self, partition: TopicPartition) -> bool:  # noqa: ARG002 - no append waits here
        """Return True."""
        return True

    def prepare(self, partition: TopicPartition) -> None:
        """Do nothing."""

    def flush(self, timeout_s: float) -> bool:  # noqa: ARG002 - nobody here waits
        """Do nothing."""
        return True

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Do nothing."""

    # -- inside -----------------------------------------------------------------------------

    def _send(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        settle: Callable[[AppendOutcome], None],
    ) -> None:
        bits, cut = self.bits, self.cut
        beside = () if self._beside is None else self._beside({partition: len(records)})
        parts = [
            (
                record.partition,
                [(record.value, record.key, record.headers)],
                record.done,
                bits >> 16,
            )
            for record in beside
        ]
        if cut is CutShort.MESSAGES:
            parts.clear()
        if cut is not CutShort.TICKETS:
            # The brokers of messages and tickets work at the same time.
            place = len(parts) if bits >> 32 & 1 else 0
            parts.insert(place, (partition, list(records), settle, bits))
        for part in parts:
            self._carry(*part, heard=cut is None)

    def _carry(
        self,
        partition: TopicPartition,
        records: Sequence[Record],
        settle: Callable[[AppendOutcome], None],
        bits: int,
        *,
        heard: bool,
    ) -> None:
        """Carry out a batch of one Kafka partition."""
        world = self._world
        fate, delay = world.fate(bits), world.delay(bits)
        line = self._lines.setdefault(partition, _Line())
        if fate is not Fate.STORED:
            world.fault(fate.name.lower())
        outcomes: list[AppendOutcome] = []

        def store() -> None:
            offsets = []
            for value, key, headers in records:
                offsets.append(world.log.write(partition, value, key=key, headers=headers))
                world.stored(partition, offsets[-1], value)
            outcomes.append(Appended(offsets[0]))

        def answer() -> None:
            if heard:
                settle(outcomes[0])

        if fate in (Fate.STORED, Fate.HEARD_LATE, Fate.LATE, Fate.UNHEARD, Fate.DOUBLED):
            line.stored = self._do_at(line.stored, delay if fate is Fate.LATE else 0, store)
        if fate in (Fate.LOST, Fate.UNHEARD, Fate.GHOST):
            outcomes.insert(0, AppendFailed(AppendUnknown("nobody knows")))
        if fate is Fate.REFUSED:
            outcomes.append(AppendFailed(AppendRefused("refused")))
        if fate in (Fate.GHOST, Fate.DOUBLED):
            world.later(delay, store)
        heard_late = fate in (Fate.HEARD_LATE, Fate.LOST, Fate.UNHEARD)
        line.answered = max(line.answered, line.stored)
        line.answered = self._do_at(line.answered, delay if heard_late else 0, answer)

    def _do_at(self, least: int, delay: int, what: Callable[[], None]) -> int:
        """Do something, not before a time; give when."""
        now = self._world.now
        time = max(least, now + delay)
        if time == now and self._world.next_event != now:
            what()
        else:
            self._world.later(time - now, what)
        return time
