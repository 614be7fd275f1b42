"""What the headers of a message say: for whom it is, or that it is none.

Goes in: a log's name and a record's headers. Comes out: what the record is to a consumer. A record
needs no header at all; a header of ours counts only where it names the log it stands in, so that a
record copied elsewhere with its headers is an ordinary message there.

    amcast.to      "LOG|P1,P3"  covered: addressed to a strict subset of the log's destination set
    amcast.skip    "LOG"        an empty record that fills a hole; nobody delivers it
    amcast.epoch   "LOG|7"      an epoch marker: epoch 7 takes over from here; nobody delivers it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from multicast.log import Headers

TO = "amcast.to"
SKIP = "amcast.skip"
EPOCH = "amcast.epoch"


class MessageID(NamedTuple):
    """The identity that Kafka itself gives: a log's name and an offset. Prints as "P1+P3:17"."""

    log: str
    offset: int

    def __str__(self) -> str:
        """Give the form that histories and JSON lines use."""
        return f"{self.log}:{self.offset}"


@dataclass(frozen=True, slots=True)
class Covered:
    """Addressed to these partitions only, a strict subset of its log's."""

    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """Fills an offset that was ordered early and stayed empty."""


@dataclass(frozen=True, slots=True)
class EpochMarker:
    """Says that this epoch takes over."""

    epoch: int


Special = Covered | Skip | EpochMarker


def special(log: str, headers: Headers) -> Special | None:
    """Say what our headers make of a record that stands in that log; None: an ordinary message."""
    for name, value in headers:
        if not name.startswith("amcast."):
            continue
        text = value.decode("utf-8", "replace")
        if name == SKIP and text == log:
            return Skip()
        place, bar, rest = text.partition("|")
        if not bar or place != log:
            continue
        if name == EPOCH and rest.isdecimal() and rest.isascii():
            return EpochMarker(int(rest))
        if name == TO:
            to = tuple(rest.split(","))
            if list(to) == sorted(set(to)) and set(to) < set(log.split("+")):
                return Covered(to)
    return None


def covered_header(log: str, to: Iterable[str]) -> tuple[str, bytes]:
    """Make the header of a message whose exact destination set nobody declared."""
    return TO, f"{log}|{','.join(sorted(set(to)))}".encode()


def skip_header(log: str) -> tuple[str, bytes]:
    """Make the header of a record that fills a hole."""
    return SKIP, log.encode()


def epoch_header(log: str, epoch: int) -> tuple[str, bytes]:
    """Make the header of an epoch marker."""
    return EPOCH, f"{log}|{epoch}".encode()
