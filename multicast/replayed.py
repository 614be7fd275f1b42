"""The history of a running system, replayed from its cluster.

What stands in the logs is what was multicast; what consumers deliver is read anew from the order
streams, from the start, by the same consumers that applications use. Reads only; commits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from multicast.consumer import Consumer
from multicast.control import ControlReader, log_partition
from multicast.errors import TimedOut
from multicast.history import History, HistoryBuilder
from multicast.log import Driver, Record
from multicast.messages import Covered, special
from topology.tree import Log


@dataclass(frozen=True, slots=True)
class Seat:
    """Whose deliveries are replayed: a consumer of the plan, or an interest."""

    name: str | None
    interest: tuple[str, ...] | None

    @property
    def label(self) -> str:
        """What the history calls it."""
        return self.name or ",".join(self.interest or ())


def replayed(
    driver: Driver, topic: str, seats: Sequence[Seat], *, replays: int = 2, timeout_s: float = 30.0
) -> History:
    """Replay each seat from its earliest position to the logs' ends as they are now.

    Each is replayed `replays` times, so that "replay" is judged, too. Messages that come meanwhile
    may be delivered and are not missed where they are not. Raises `TimedOut` where nothing came for
    `timeout_s` seconds though something must.
    """
    control = ControlReader(driver, topic)
    try:
        plan = control.refresh().plan()
    finally:
        control.close()
    builder = HistoryBuilder()
    for log in plan.logs:
        _acknowledge(driver, log, builder, timeout_s)
    for seat in seats:
        for number in range(replays):
            consumer = Consumer(
                topic=topic, name=seat.name, interest=seat.interest, committed=False, driver=driver
            )
            _replay(consumer, seat, str(number + 1), builder, timeout_s)
    return builder.history(plans=[plan], other_producers=True)


def _acknowledge(driver: Driver, log: Log, builder: HistoryBuilder, timeout_s: float) -> None:
    """Note every message that stands in a log."""
    at = log_partition(log)
    position, end = driver.begins([at])[at], driver.ends([at])[at]
    if position >= end:
        return
    reader = driver.reader({at: position})
    try:
        while position < end:
            moved = reader.poll(timeout_s)
            if not moved:
                raise TimedOut(f"log {log.name} could not be read within {timeout_s:g} s")
            for fetched in moved:
                _note(log, [r for r in fetched.records if r.offset < end], builder)
                position = fetched.position
    finally:
        reader.close()


def _note(log: Log, records: Iterable[Record], builder: HistoryBuilder) -> None:
    for record in records:
        found = special(log.name, record.headers)
        to = found.to if isinstance(found, Covered) else log.to
        if found is None or isinstance(found, Covered):
            builder.acknowledgement(
                producer="log",
                message_id=f"{log.name}:{record.offset}",
                to=to,
                outcome="accepted",
            )


def _replay(
    consumer: Consumer, seat: Seat, instance: str, builder: HistoryBuilder, timeout_s: float
) -> None:
    with consumer:
        builder.interest(consumer=seat.label, interest=consumer.interest)
        late = consumer.position.epoch > 1  # earlier epochs did not cover its interest
        for batch in consumer.until_end(timeout=timeout_s):
            for record in batch.records:
                builder.delivery(
                    consumer=seat.label,
                    instance=instance,
                    message_id=f"{batch.log.name}:{record.offset}",
                    to=batch.to,
                )
    builder.end(consumer=seat.label, instance=instance, late=late)
