"""What the headers of a message say: for whom it is, or that it is none.

Goes in: a log's name and a record's headers. Comes out: what the record is to a consumer. A record
needs no header at all; a header of ours counts only where it names the log it stands in, so that a
record copied elsewhere with its headers is an ordinary message there.

    amcast.to      "LOG|P1,P3"  covered: addressed to a strict subset of the log's destination set
    amcast.skip    "LOG"        an empty record that fills a hole; nobody delivers it
    amcast.epoch   "LOG|7"      an epoch marker: epoch 7 takes over from here; nobody delivers it

Any client may write any header, so `special` is a total function: it raises for no bytes. A header
that is not exactly as above makes an ordinary message. Nobody delivers a record that has the form
of a marker; what a lone reader does at one is decided by the control topic (`subscription.py`).

All drivers and all readers must come to the same verdict. Clients differ in what they make of a
name that holds a NUL or is not UTF-8, so `header_name` says what it is here: it ends at its first
NUL; where the rest is not UTF-8, or holds U+FFFD (which other clients put in the place of what is
not), none of the record's headers counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from multicast.drivers.protocol import Headers
from multicast.errors import UsageError

TO = "amcast.to"
SKIP = "amcast.skip"
EPOCH = "amcast.epoch"
EPOCH_DIGITS_MAX = 9  # more epochs than a topic will ever see
_NOT_UTF8 = "\ufffd"


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
    """Say what our headers make of a record that stands in that log; None: an ordinary message.

    The first header that has a meaning decides. Raises nothing, whatever the headers are.
    """
    found: Special | None = None
    for name, value in headers:
        if _NOT_UTF8 in name:
            return None
        if found is None and value is not None and name.startswith("amcast."):
            found = _meaning(log, name, value.decode("utf-8", "replace"))
    return found


def _meaning(log: str, name: str, text: str) -> Special | None:
    if name == SKIP and text == log:
        return Skip()
    place, bar, rest = text.partition("|")
    if not bar or place != log:
        return None
    if name == EPOCH and rest.isdecimal() and rest.isascii() and len(rest) <= EPOCH_DIGITS_MAX:
        return EpochMarker(int(rest))
    if name == TO:
        to = tuple(rest.split(","))
        if list(to) == sorted(set(to)) and set(to) < set(log.split("+")):
            return Covered(to)
    return None


def header_name(raw: bytes) -> str | None:
    """Read a header's name from its bytes; None: it is not UTF-8, so that no header counts."""
    try:
        return raw.partition(b"\0")[0].decode("utf-8")
    except UnicodeDecodeError:
        return None


def refuse_names(headers: Headers) -> None:
    """Raise `UsageError` for a header that not every consumer would read as it was written."""
    for name, _ in headers:
        if name.startswith("amcast."):
            raise UsageError(f'header {name!r} is refused: "amcast." names are reserved')
        if _NOT_UTF8 in name or header_name(name.encode("utf-8", "surrogatepass")) != name:
            raise UsageError(
                f"header {name!r} is refused: a name is UTF-8, without NUL and without U+FFFD"
            )


def covered_header(log: str, to: Iterable[str]) -> tuple[str, bytes]:
    """Make the header of a message whose exact destination set nobody declared."""
    return TO, f"{log}|{','.join(sorted(set(to)))}".encode()


def skip_header(log: str) -> tuple[str, bytes]:
    """Make the header of a record that fills a hole."""
    return SKIP, log.encode()


def epoch_header(log: str, epoch: int) -> tuple[str, bytes]:
    """Make the header of an epoch marker."""
    return EPOCH, f"{log}|{epoch}".encode()
