"""The stamp at the beginning of each measured message, and a consumer's tally of stamps.

All times are of one machine's monotonic clock, in nanoseconds. No clock is read here.

    intended    when the message should have been sent; latency counts from here, so that a sender
                that falls behind does not hide it (no coordinated omission)
    sent        when its append was started
    round       the number of its round
    sequence    its index in the round
    log         the number of the partition that it is addressed to
"""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Container, Sequence
from typing import NamedTuple

from bench.comparison.workload import STAMP_BYTES
from multicast.drivers.protocol import Record

_STAMP = struct.Struct("<qqHIH")
assert _STAMP.size == STAMP_BYTES
pack = _STAMP.pack
unpack = _STAMP.unpack_from


def padding(message_bytes: int, seed: int) -> bytes:
    """Return the incompressible bytes after the stamp."""
    rng = random.Random(seed)  # noqa: S311 - repeatable
    return rng.randbytes(message_bytes - STAMP_BYTES)


class DeliveryStamp(NamedTuple):
    """What a consumer notes of one delivery, to write its event."""

    offset: int
    size: int
    intended: int
    sent: int
    number: int
    log: int
    delivered: int

    @property
    def place(self) -> tuple[int, int, int]:
        """Return the offset, the index in the round and the size."""
        return self.offset, self.number, self.size


class RoundTally:
    """One consumer's deliveries of one round.

    With `wanted`, only messages to those partitions count. The rate covers all deliveries from the
    round's first intended time to its last delivery. A backlog was sent before, so its rate covers
    the deliveries after the first poll that returned a measured message. With `noted`, every
    counted delivery is appended to it.
    """

    def __init__(
        self,
        number: int,
        *,
        warm_up: int,
        wanted: Container[int] | None,
        noted: list[DeliveryStamp] | None = None,
    ) -> None:
        self._noted = noted
        self._number = number
        self._warm_up = warm_up
        self._wanted = wanted
        self.delivered = 0
        self.measured = 0
        self.latencies = array("q")
        self.began_ns = 0  # the first intended time; 0 of a backlog
        self.first_ns = 0
        self.last_ns = 0
        self.first_measured = 0

    def take(self, records: Sequence[Record], now_ns: int) -> None:
        """Count the records of one poll, and note the latency of each measured message."""
        number, warm_up, wanted = self._number, self._warm_up, self._wanted
        noted = self._noted
        note = self.latencies.append
        before = len(self.latencies)
        for record in records:
            assert record.value is not None
            intended, sent, round_, sequence, log = unpack(record.value)
            if round_ != number or (wanted is not None and log not in wanted):
                continue
            self.delivered += 1
            if intended < self.began_ns or not self.began_ns:
                self.began_ns = intended
            if noted is not None:
                size = len(record.value)
                noted.append(
                    DeliveryStamp(record.offset, size, intended, sent, sequence, log, now_ns)
                )
            if sequence >= warm_up:
                note(now_ns - intended)
        self._measured(len(self.latencies) - before, now_ns)

    def count(self, records: Sequence[Record], now_ns: int) -> None:
        """Count the records of one poll of a backlog; stamps are read only with `wanted`."""
        count = len(records)
        if self._wanted is not None:
            count = sum(unpack(record.value or b"")[4] in self._wanted for record in records)
        self.delivered += count
        self._measured(count if self.delivered > self._warm_up else 0, now_ns)

    def _measured(self, count: int, now_ns: int) -> None:
        if count == 0:
            return
        if self.first_ns == 0:
            self.first_ns, self.first_measured = now_ns, count
        self.measured += count
        self.last_ns = now_ns

    @property
    def rate(self) -> float | None:
        """Deliveries a second; None if one poll returned a whole backlog."""
        if self.began_ns and self.last_ns:
            return self.delivered * 1e9 / max(1, self.last_ns - self.began_ns)
        if self.last_ns <= self.first_ns:
            return None
        return (self.measured - self.first_measured) * 1e9 / (self.last_ns - self.first_ns)
