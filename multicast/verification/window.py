"""A window over the deliveries of running consumers: the newest of each, judged again and again.

Takes what consumers deliver, keeps a bounded number of messages, and judges them by the guarantees
of `properties.py`. No I/O, no clock.

    reading   what one consumer delivered from its start, or from a `seek`, on
    dropped   the oldest deliveries of the longest reading, once the window is full. What is left of
              a reading is what a consumer delivers that began later, so dropping makes no violation

A window cannot see two messages that are ordered differently if one was dropped before the other
came, a message that is lost at the end of a reading (it may still come), nor one that no reading
has. Invariant: `messages` <= `messages_max` after each call.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from multicast.consuming.batches import Batch
from multicast.consuming.subscription import End, SubscriptionRequest
from multicast.control import ControlState
from multicast.drivers.protocol import Record
from multicast.history import READINGS_MAX
from multicast.order.runs import OFFSET_MAX
from multicast.properties import Report, check_all
from multicast.verification.audit import AuditCollector
from topology.tree import Log


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive deliveries of messages of one log to one destination set."""

    log: Log
    to: tuple[str, ...]
    offsets: array[int]


@dataclass(slots=True)
class _Reading:
    request: SubscriptionRequest
    epoch: int  # of its first position
    parts: deque[_Part] = field(default_factory=deque)
    messages: int = 0


class DeliveryWindow:
    """The newest deliveries of the consumers of one topic, at most `messages_max` in all."""

    def __init__(self, messages_max: int) -> None:
        assert messages_max > 0
        self.messages_max = messages_max
        self.messages = 0
        # By consumer and instance, in the order in which they began.
        self._readings: dict[tuple[str, str], _Reading] = {}

    def begins(
        self, consumer: str, instance: str, request: SubscriptionRequest, epoch: int
    ) -> None:
        """Begin a reading, with nothing in it; `epoch` is that of its first position."""
        self.ends(consumer, instance)
        while len(self._readings) >= READINGS_MAX:
            self.ends(*next(iter(self._readings)))
        self._readings[consumer, instance] = _Reading(request, epoch)

    def ends(self, consumer: str, instance: str) -> None:
        """Drop a reading, if there is one."""
        reading = self._readings.pop((consumer, instance), None)
        if reading is not None:
            self.messages -= reading.messages

    def delivered(
        self, consumer: str, instance: str, batch: Batch, records: Sequence[Record]
    ) -> None:
        """Add these records of a batch to a reading that has begun; void messages are left out."""
        if not batch.decision.takes_effect:
            return
        newest = records[-self.messages_max :]
        offsets = array("q", [record.offset for record in newest])
        reading = self._readings[consumer, instance]
        reading.parts.append(_Part(batch.log, batch.to, offsets))
        reading.messages += len(offsets)
        self.messages += len(offsets)
        while self.messages > self.messages_max:
            longest = max(self._readings.values(), key=attrgetter("messages"))
            dropped = len(longest.parts.popleft().offsets)
            longest.messages -= dropped
            self.messages -= dropped

    def clear(self) -> None:
        """Drop all deliveries; the readings go on."""
        for reading in self._readings.values():
            reading.parts.clear()
            reading.messages = 0
        self.messages = 0

    def judge(self, control: ControlState) -> Report:
        """Judge what the window contains.

        `control` is the control topic as read after the last delivery.
        """
        parts = [part for reading in self._readings.values() for part in reading.parts]
        ends = {part.log.name: OFFSET_MAX for part in parts}
        audit = AuditCollector(End(control.epoch, control.epoch, ends))
        for (consumer, instance), reading in self._readings.items():
            if reading.parts:
                audit.begins(consumer, reading.request, reading.epoch)
            for part in reading.parts:
                audit.delivered_offsets(consumer, instance, part.log, part.to, part.offsets)
        return check_all(audit.history(control))
