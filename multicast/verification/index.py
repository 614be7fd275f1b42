"""Facts about one history that several guarantees need, each computed at most once.

A set of readings is one whole number, with one bit for each reading. So "all readings that this
message addresses and that lack it" is one operation on numbers. No verdicts here.

    class      messages with the same destination set, delivered by the same readings, and, if
               interests change, of the same epoch. Whether somebody lacks a message is decided once
               for each class, not for each message
    addressed  a reading by a message: its consumer's interest meets the destination set. If the
               interest is unknown: another reading of the same consumer delivered the message
    absent     the readings that the class addresses and that did not deliver it
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

from multicast.history import History, UnbrokenDeliveries
from multicast.messages import log_and_life
from multicast.verification.acyclic import Core, core

OFFSET_DIGITS_MAX = 18  # an `array("q")` holds every such number: 10^18 < 2^63


class MessageClass(NamedTuple):
    """A class of messages; `delivered`, `absent` and `addressed` are sets of readings (bits).

    `addressed` has only readings whose interest is known.
    """

    destination: int
    delivered: int
    absent: int
    addressed: int
    epoch: int


class Logs(NamedTuple):
    """By message: the index of its log in `names` (-1: the ID is not "LOG:OFFSET"), its offset."""

    names: list[str]
    log_of: array[int]
    offset_of: array[int]


def bits(mask: int) -> Iterator[int]:
    """Give the positions of the bits that are set, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class HistoryIndex:
    """A history, and facts computed from it on demand."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def sequences(self) -> list[array[int]]:
        """By reading: its messages in order of delivery, without repetitions."""
        return [
            messages if len(set(messages)) == len(messages) else array("i", dict.fromkeys(messages))
            for messages in (reading.messages for reading in self.history.readings)
        ]

    @cached_property
    def core(self) -> Core:
        """The parts of the sequences that have no common order."""
        return core(self.sequences, len(self.history.messages))

    @cached_property
    def readings_of(self) -> dict[str, int]:
        """By consumer: its readings, as bits."""
        masks: dict[str, int] = {}
        for index, reading in enumerate(self.history.readings):
            masks[reading.consumer] = masks.get(reading.consumer, 0) | 1 << index
        return masks

    @cached_property
    def ended(self) -> int:
        """The readings that have read everything, as bits."""
        return sum(1 << i for i, reading in enumerate(self.history.readings) if reading.ended)

    @cached_property
    def interested(self) -> int:
        """The readings of consumers whose interest is known, as bits."""
        return sum(
            mask for name, mask in self.readings_of.items() if name in self.history.interests
        )

    @cached_property
    def complete(self) -> dict[str, int]:
        """The consumers that must have delivered every message addressed to them, with readings.

        Their interest is known, and one of their readings ended and did not join late.
        """
        names = [r.consumer for r in self.history.readings if r.ended and not r.late]
        return {
            name: self.readings_of[name]
            for name in dict.fromkeys(names)
            if name in self.history.interests
        }

    @cached_property
    def _subscribed(self) -> dict[str, int]:
        """By partition: the readings of consumers with a fixed interest that has it, as bits."""
        history = self.history
        masks: dict[str, int] = {}
        for name, mask in self.readings_of.items():
            if name not in history.changing:
                for partition in history.interests.get(name, ()):
                    masks[partition] = masks.get(partition, 0) | mask
        return masks

    def _addressed(self, destination: int, epoch: int) -> int:
        """Give the readings whose known interest meets a destination set, as bits."""
        history = self.history
        to = history.destinations[destination]
        mask = 0
        for partition in to:
            mask |= self._subscribed.get(partition, 0)
        for name in history.changing:
            if not set(to).isdisjoint(history.interest(name, epoch)):
                mask |= self.readings_of.get(name, 0)
        return mask

    def addressed_at_times(self, destination: int) -> int:
        """Give the readings of consumers whose changing interest meets a set in some epoch."""
        history = self.history
        to = history.destinations[destination]
        return sum(
            self.readings_of.get(name, 0)
            for name in history.changing
            if not set(to).isdisjoint(history.interests[name])
        )

    @cached_property
    def _classified(self) -> tuple[array[int], list[MessageClass]]:
        history = self.history
        delivered = [0] * len(history.messages)
        for index, sequence in enumerate(self.sequences):
            bit = 1 << index
            for message in sequence:
                delivered[message] |= bit
        epochs = history.epoch_of if history.changing else repeat(0, len(delivered))
        numbers: dict[tuple[int, int, int], int] = {}
        class_of = array("i")
        for key in zip(history.destination_of, delivered, epochs, strict=True):
            class_of.append(numbers.setdefault(key, len(numbers)))
        audiences: dict[tuple[int, int], int] = {}
        classes = []
        for destination, mask, epoch in numbers:
            audience = audiences.get((destination, epoch))
            if audience is None:
                audience = self._addressed(destination, epoch)
                audiences[destination, epoch] = audience
            absent = self._absent(audience, mask)
            classes.append(MessageClass(destination, mask, absent, audience, epoch))
        return class_of, classes

    @cached_property
    def _interest_unknown(self) -> list[int]:
        interests = self.history.interests
        return [mask for name, mask in self.readings_of.items() if name not in interests]

    def _absent(self, addressed: int, delivered: int) -> int:
        mask = addressed
        for readings in self._interest_unknown:
            if readings & delivered:
                mask |= readings
        return mask & ~delivered

    @property
    def class_of(self) -> array[int]:
        """By message: the index of its class."""
        return self._classified[0]

    @property
    def classes(self) -> list[MessageClass]:
        """All classes."""
        return self._classified[1]

    @cached_property
    def logs(self) -> Logs:
        """The logs and offsets in message IDs of the form "LOG:OFFSET".

        LOG must be the message's destination set or a wider one ("P1+P3" for P1), perhaps with a
        life ("P1~1"; each counts as a log). So an ID of another system that happens to end in a
        number is not mistaken for one.
        """
        known: dict[tuple[str, int], int] = {}
        names: dict[str, int] = {}
        log_of, offset_of = array("i"), array("q")
        for message_id, destination in zip(
            self.history.messages, self.history.destination_of, strict=True
        ):
            name, colon, digits = message_id.rpartition(":")
            log = offset = -1
            if colon and digits.isdecimal() and len(digits) <= OFFSET_DIGITS_MAX:
                number = known.get((name, destination))
                if number is None:
                    log_name, _ = log_and_life(name) or ("", 0)
                    covers = set(log_name.split("+")).issuperset(
                        self.history.destinations[destination]
                    )
                    number = names.setdefault(name, len(names)) if covers else -1
                    known[name, destination] = number
                log = number
                offset = int(digits)
            log_of.append(log)
            offset_of.append(offset)
        return Logs(list(names), log_of, offset_of)

    def reading(self, mask: int) -> tuple[int, UnbrokenDeliveries]:
        """Give the first reading of a set of bits, after its index."""
        index = (mask & -mask).bit_length() - 1
        return index, self.history.readings[index]
