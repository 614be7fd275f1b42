"""Announcements: a producer tells a log's collector that a message is on its way.

Goes in: what a producer has sent to a log, datagrams in any order and number, how the log grew.
Comes out: how many offsets beyond the log's end are promised. No I/O, no clock. Nothing here
decides an order: a promise too many or too few shifts who waits, never what comes first.

    sent        how many appends to a log a producer has started
    settled     how many of these it knows the outcome of
    promised    announced and not yet seen in the log; below 0: seen, and not announced (so far)

The bytes of an announcement are specified in `docs/protocol.md`; one that has another token than
the collector's own (it stands in the control topic) is ignored.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MAGIC = b"TA"
VERSION = 1
TOKEN_BYTES = 8
LOGS_MAX = 50  # in one datagram, which then fits into any network's packet
PRODUCERS_MAX = 4096  # remembered for each log; the one that was heard first is forgotten first
DEBT_TICKS = 4
LATE_MAX = 64  # messages that an announcement may be the first to tell of though they are stored

_HEAD = struct.Struct(f">2sB{TOKEN_BYTES}sQ")
_COUNT = struct.Struct(">IQQ")


class Count(NamedTuple):
    """What a producer says of log number `log` of the plan: cumulative, so the newest says all."""

    log: int
    sent: int
    settled: int


class Announcement(NamedTuple):
    """One datagram: `producer` tells a producer's process from all others."""

    producer: int
    counts: Sequence[Count]


class Address(NamedTuple):
    """Where a collector's instance takes announcements, and the token that they must carry."""

    host: str
    port: int
    token: bytes


def encode(token: bytes, announcement: Announcement) -> bytes:
    """Write a datagram."""
    head = _HEAD.pack(MAGIC, VERSION, token, announcement.producer)
    return head + b"".join([_COUNT.pack(*count) for count in announcement.counts])


def decode(token: bytes, raw: bytes) -> Announcement | None:
    """Read a datagram; None where it is none, of another version, or meant for somebody else."""
    if len(raw) < _HEAD.size or (len(raw) - _HEAD.size) % _COUNT.size:
        return None
    magic, version, found, producer = _HEAD.unpack_from(raw)
    if magic != MAGIC or version != VERSION or found != token:
        return None
    counts = [Count(*count) for count in _COUNT.iter_unpack(raw[_HEAD.size :])]
    return Announcement(producer, counts)


def token_of(raw: bytes) -> bytes | None:
    """Give the token of a datagram, whose it may be; None where it is no announcement."""
    if len(raw) < _HEAD.size or raw[: len(MAGIC)] != MAGIC:
        return None
    token: bytes = _HEAD.unpack_from(raw)[2]
    return token


@dataclass(slots=True)
class Promises:
    """What is promised of one log.

    Messages of producers that announce nothing make `promised` sink below 0, so that none of the
    others is ordered early while they come. What stayed below 0 all the time for so many ticks is
    forgotten; not at once, because an announcement may come later than its message.
    """

    most: int  # that is ever promised
    promised: int = 0
    _sent: dict[int, int] = field(default_factory=dict)
    _highest: int = 0  # that `promised` was in the ticks that `_ticks` counts
    _ticks: int = 0
    _forgotten: int = 0  # debt, at most `LATE_MAX` of it

    def announced(self, producer: int, sent: int, settled: int) -> None:
        """Take a producer's counts; old and repeated ones change nothing."""
        known = self._sent.get(producer, settled)
        if sent <= known or settled > sent:
            return
        if producer not in self._sent and len(self._sent) >= PRODUCERS_MAX:
            del self._sent[next(iter(self._sent))]
        self._sent[producer] = sent
        # Announcements get lost, or are held back where they follow each other closely, so this one
        # may be the first to tell of messages that are stored. Their debt is made up for, unless it
        # is forgotten already, or they are so many that the log was ordered without any of this.
        late = max(0, settled - known)
        forgotten = min(late, self._forgotten) if late <= LATE_MAX else late
        self._forgotten -= min(forgotten, self._forgotten)
        self.promised = min(self.promised + sent - known - forgotten, self.most)
        self._note()

    def grown(self, by: int) -> None:
        """Note that so many of the log's offsets are filled that were not before."""
        self.promised -= by
        self._note()

    def tick(self) -> None:
        """Say that a while has passed; forget the debt that has stood for long."""
        self._ticks += 1
        if self._ticks == DEBT_TICKS:
            self._ticks = 0
            if self._highest < 0:
                self.promised -= self._highest
                self._forgotten = min(self._forgotten - self._highest, LATE_MAX)
            self._highest = self.promised

    def _note(self) -> None:
        self._highest = max(self._highest, self.promised)
