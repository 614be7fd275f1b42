"""Announcements: a producer tells a log's collector that messages are on their way.

An announcement is a datagram with a producer's running counts; datagrams may be lost, repeated, or
come late. `Promises` computes from them, and from the growth of the log, how many offsets beyond
the log's end will probably be filled; the collector may order that many early. No I/O, no clock.
No count decides an order: a wrong one makes consumers wait, but never changes what comes first.

    sent        the appends to a log that a producer has started
    settled     those of them whose outcome it knows
    promised    messages announced minus messages stored; negative if messages were stored that
                nobody has announced (so far)

docs/protocol.md specifies the bytes. A collector publishes its token in the control topic and
ignores announcements that carry another one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAGIC = b"TA"
VERSION = 1  # of the datagram's layout
TOKEN_BYTES = 8  # 64 random bits: a datagram of another system matches once in 2^64
LOGS_MAX = 50  # in one datagram: 1,019 bytes, which every IPv6 network carries in one packet
# Producers whose counts are kept for each log; beyond it the longest known is forgotten, and its
# next announcement counts as its first. Bounds the memory to some 500 kB a log.
PRODUCERS_MAX = 4096
# After so many ticks below 0 (1 s: a collector's tick is 0.25 s) the debt is forgiven. With ten
# times more, one message of a producer without announcements could stop early orders for 10 s.
DEBT_TICKS = 4
# The most stored messages that one late announcement is credited for. Announcements are at least
# 0.2 ms apart, so a few messages may be stored before they are announced.
LATE_MAX = 64

_HEAD = struct.Struct(f">2sB{TOKEN_BYTES}sQ")
_COUNT = struct.Struct(">IQQ")


class Count(NamedTuple):
    """A producer's counts for log number `log` of the plan; cumulative: the newest replace all."""

    log: int
    sent: int
    settled: int


class Announcement(NamedTuple):
    """One datagram; `producer` is the random number of the producer's process."""

    producer: int
    counts: Sequence[Count]


class Address(NamedTuple):
    """Where a collector's instance receives announcements, and the token that they must carry."""

    host: str
    port: int
    token: bytes


def encode(token: bytes, announcement: Announcement) -> bytes:
    """Encode an announcement as a datagram."""
    head = _HEAD.pack(MAGIC, VERSION, token, announcement.producer)
    return head + b"".join([_COUNT.pack(*count) for count in announcement.counts])


def decode(token: bytes, raw: bytes) -> Announcement | None:
    """Decode a datagram; None if it is malformed, of another version, or has another token."""
    if len(raw) < _HEAD.size or (len(raw) - _HEAD.size) % _COUNT.size:
        return None
    magic, version, its_token, producer = _HEAD.unpack_from(raw)
    if magic != MAGIC or version != VERSION or its_token != token:
        return None
    counts = [Count(*count) for count in _COUNT.iter_unpack(raw[_HEAD.size :])]
    return Announcement(producer, counts)


def token_of(raw: bytes) -> bytes | None:
    """Read only the token, to find the collector that it addresses; None: not an announcement."""
    if len(raw) < _HEAD.size or raw[: len(MAGIC)] != MAGIC:
        return None
    token: bytes = _HEAD.unpack_from(raw)[2]
    return token


@dataclass(slots=True)
class Promises:
    """The promises for one log.

    A message that was not announced lowers `promised`; while it is below 0, nothing is ordered
    early. This debt is forgiven only after `DEBT_TICKS` ticks in a row below 0, because the
    announcement of a stored message may still come.

    Invariant: promised <= promised_max.
    """

    promised_max: int
    promised: int = 0
    _sent: dict[int, int] = field(default_factory=dict)  # by producer: its newest count
    _highest: int = 0  # the highest `promised` during the last `_ticks` ticks
    _ticks: int = 0
    _forgiven: int = 0  # debt whose announcements may still come, at most `LATE_MAX`

    def announced(self, producer: int, sent: int, settled: int) -> None:
        """Report a producer's counts; old and repeated ones change nothing.

        Of a producer that is not known yet, only what is not settled counts from now on.
        """
        if settled > sent:
            return
        if producer not in self._sent:
            if len(self._sent) >= PRODUCERS_MAX:
                del self._sent[next(iter(self._sent))]
            self._sent[producer] = settled
        known = self._sent[producer]
        if sent <= known:
            return
        self._sent[producer] = sent
        # `late` appends are settled already, but announced only now: their announcements got lost
        # or were held back. Each stored message has lowered `promised`, so its announcement
        # restores the balance, unless that debt was forgiven in the meantime. More than `LATE_MAX`
        # of them say nothing about the present debt.
        late = max(0, settled - known)
        uncredited = min(late, self._forgiven) if late <= LATE_MAX else late
        self._forgiven -= min(uncredited, self._forgiven)
        self.promised = min(self.promised + sent - known - uncredited, self.promised_max)
        self._note_highest()

    def grown(self, by: int) -> None:
        """Report that the log has grown by so many offsets."""
        self.promised -= by
        self._note_highest()

    def tick(self) -> None:
        """Report that a tick has passed; forgive a debt that lasted for `DEBT_TICKS` ticks."""
        self._ticks += 1
        if self._ticks == DEBT_TICKS:
            self._ticks = 0
            if self._highest < 0:
                self.promised -= self._highest
                self._forgiven = min(self._forgiven - self._highest, LATE_MAX)
            self._highest = self.promised

    def _note_highest(self) -> None:
        self._highest = max(self._highest, self.promised)
