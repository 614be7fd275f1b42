"""Records what consumers hand out, and judges it by the product's own guarantees.

    reading    what one consumer handed out from its start, or from a `seek`, on
    begun      of a consumer: its readings together begin at its earliest position, without a jump.
               Only such a consumer can be said to lack a message at the end
    read again each consumer of the plan is read once more from the start, by the product's consumer

The messages in the logs are taken as multicast (`multicast/verification/audit.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace

from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.consuming.cursor import Cursor
from multicast.consuming.ends import end_now
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlReader, ControlState
from multicast.drivers.protocol import Driver, Record
from multicast.errors import TimedOut
from multicast.properties import Report, verify
from multicast.verification.audit import AuditCollector
from multicast.verification.from_cluster import read_messages
from multicast.verification.observer import AtEnd, HandedOut

READ_AGAIN = "{} (read again)"


@dataclass(slots=True)
class ObservedReading:
    """What one consumer handed out since its start or its last `seek`."""

    consumer: str
    instance: str
    request: SubscriptionRequest
    epoch: int
    at_end: AtEnd
    batches: list[Batch] = field(default_factory=list)


class Recorder:
    """Watches all consumers of a driver."""

    def __init__(self) -> None:
        self.readings: list[ObservedReading] = []
        self._cursors: dict[str, set[Cursor]] = {}
        self._jumped: set[str] = set()

    def observe(
        self, request: SubscriptionRequest, position: Cursor, /, *, earliest: bool, at_end: AtEnd
    ) -> HandedOut:
        """Record a consumer from here on (`multicast.verification.observer.Observe`)."""
        consumer = request.name or "+".join(request.interest or ())
        known = self._cursors.setdefault(consumer, set())
        if not earliest and position not in known:
            self._jumped.add(consumer)
        known.add(position)
        instance = str(1 + sum(reading.consumer == consumer for reading in self.readings))
        reading = ObservedReading(consumer, instance, request, position.epoch, at_end)
        self.readings.append(reading)

        def handed_out(batch: Batch, records: Sequence[Record]) -> None:
            part = replace(batch, records=tuple(records))
            reading.batches.append(part)
            known.update(part.cursor(index) for index in range(len(part.records)))

        return handed_out

    def ended(self, reading: ObservedReading, state: ControlState, audit: AuditCollector) -> bool:
        """Whether a reading must have everything that addresses its consumer."""
        begun = reading.consumer not in self._jumped
        return begun and reading.at_end(state, audit.end)


def judge(driver: Driver, topic: str, recorder: Recorder, *, timeout_s: float) -> Report:
    """Judge all that was handed out; raise `OrderViolation`, whose text is the witness.

    `driver` is not watched. A consumer of the plan that cannot be read to the end, because no
    message came for `timeout_s` seconds, is judged by what it has.
    """
    with closing(ControlReader(driver, topic)) as control:
        audit = AuditCollector(end_now(driver, control))
        names = [entry.name for entry in control.state.plan().consumers]
        for reading in recorder.readings:
            audit.begins(reading.consumer, reading.request, reading.epoch)
            for batch in reading.batches:
                audit.delivered(reading.consumer, reading.instance, batch)
        for name in names:
            _read_again(driver, topic, name, audit, timeout_s)
        state = control.refresh()
        for reading in recorder.readings:
            if recorder.ended(reading, state, audit):
                audit.ended(reading.consumer, reading.instance)
        for log in state.plan(audit.end.epoch).logs:
            read_messages(driver, state, log, audit, timeout_s)
    return verify(audit.history(state))


def _read_again(
    driver: Driver, topic: str, name: str, audit: AuditCollector, timeout_s: float
) -> None:
    label = READ_AGAIN.format(name)
    with Consumer(topic=topic, name=name, committed=False, driver=driver) as consumer:
        audit.begins(label, SubscriptionRequest.of(name, None), consumer.position.epoch)
        with suppress(TimedOut):
            for batch in consumer.until_end(timeout=timeout_s, end=audit.end):
                audit.delivered(label, "", batch)
            audit.ended(label, "", late=bool(consumer.omitted))
