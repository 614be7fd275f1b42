"""What several guarantees ask of one history, each worked out at most once.

A `History` goes in. Sets of readings are bits of one whole number, so that "all readings that are
addressed by this message and lack it" is one operation, whatever their number. No verdicts here.

    class      messages with the same destination set, of the same epoch (where interests change
               with it), delivered by the same readings: what is missing somewhere is decided once
               a class, not once a message
    addressed  a reading by a message: its consumer's interest meets the destination set. Where
               the interest is unknown: another reading of the same consumer delivered the message
    absent     readings that are addressed by the class and did not deliver it
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cached_property
from itertools import repeat
from typing import NamedTuple

from multicast.history import History, UnbrokenDeliveries
from multicast.verification.acyclic import Core, core

OFFSET_DIGITS_MAX = 18  # below 2 ** 63


class MessageClass(NamedTuple):
    """Destination set, and the readings (bits) that delivered its messages, and that lack them.

    `addressed` are the readings whose known interest meets the set.
    """

    destination: int
    delivered: int
    absent: int
    addressed: int
    epoch: int


class Logs(NamedTuple):
    """By message: the number of its log (-1: its ID is not "LOG:OFFSET"), and the offset."""

    names: list[str]
    log_of: array[int]
    offset_of: array[int]


def bits(mask: int) -> Iterator[int]:
    """Give the places of the bits that are set, the lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class HistoryIndex:
    """A history and what follows from it."""

    def __init__(self, history: History) -> None:
        self.history = history

    @cached_property
    def sequences(self) -> list[array[int]]:
        """By reading: what it delivered; of a message that it delivered twice, the first."""
        return [
            messages if len(set(messages)) == len(messages) else array("i", dict.fromkeys(messages))
            for messages in (reading.messages for reading in self.history.readings)
        ]

    @cached_property
    def core(self) -> Core:
        """What no single order of all messages can hold."""
        return core(self.sequences, len(self.history.messages))

    @cached_property
    def readings_of(self) -> dict[str, int]:
        """By consumer: its readings, as bits."""
        found: dict[str, int] = {}
        for index, reading in enumerate(self.history.readings):
            found[reading.consumer] = found.get(reading.consumer, 0) | 1 << index
        return found

    @cached_property
    def ended(self) -> int:
        """The readings that had read all that there was, as bits."""
        return sum(1 << i for i, reading in enumerate(self.history.readings) if reading.ended)

    @cached_property
    def interested(self) -> int:
        """The readings of consumers whose interest is known, as bits."""
        return sum(
            mask for name, mask in self.readings_of.items() if name in self.history.interests
        )

    @cached_property
    def complete(self) -> dict[str, int]:
        """Consumers that must have delivered all that they are addressed by, with their readings.

        Their interest is known, and one of their readings ended that did not join late.
        """
        names = [r.consumer for r in self.history.readings if r.ended and not r.late]
        return {
            name: self.readings_of[name]
            for name in dict.fromkeys(names)
            if name in self.history.interests
        }

    @cached_property
    def _subscribed(self) -> dict[str, int]:
        """By partition: the readings whose consumer's interest always has it, as bits."""
        history = self.history
        found: dict[str, int] = {}
        for name, mask in self.readings_of.items():
            if name not in history.changing:
                for partition in history.interests.get(name, ()):
                    found[partition] = found.get(partition, 0) | mask
        return found

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
        """Give the readings of consumers whose interest meets a set in some epochs, as bits."""
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
        """By message: the number of its class."""
        return self._classified[0]

    @property
    def classes(self) -> list[MessageClass]:
        """All classes, by number."""
        return self._classified[1]

    @cached_property
    def logs(self) -> Logs:
        """Take message IDs of the form "LOG:OFFSET" apart.

        LOG must name the message's destination set or a wider one ("P1+P3" for P1), so an ID of
        another system that happens to end in a number is not taken for one.
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
                found = known.get((name, destination))
                if found is None:
                    covers = set(name.split("+")).issuperset(self.history.destinations[destination])
                    found = names.setdefault(name, len(names)) if covers else -1
                    known[name, destination] = found
                log = found
                offset = int(digits)
            log_of.append(log)
            offset_of.append(offset)
        return Logs(list(names), log_of, offset_of)

    def reading(self, mask: int) -> tuple[int, UnbrokenDeliveries]:
        """Give the first reading of a set of bits, and its place."""
        index = (mask & -mask).bit_length() - 1
        return index, self.history.readings[index]
