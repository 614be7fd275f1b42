"""Message IDs and the reserved headers: what a record in a log is to a consumer.

A record needs none of our headers. Three headers have a meaning, and only if their value names the
log that contains the record; a record that was copied to another log together with its headers is
an ordinary message there.

    amcast.to      "LOG|P1,P3"  covered: addressed to a strict subset of the log's destination set
    amcast.skip    "LOG"        an empty record that fills a hole; it is not delivered
    amcast.epoch   "LOG|7"      an epoch marker: epoch 7 begins after it; it is not delivered

Any client may write any header, so `special` is a total function: it never raises. A header that
deviates from these forms has no meaning, and the record is an ordinary message. A record in the
form of a marker is never delivered; whether a single-log subscription ends its epoch there is
decided by the control topic (`subscription.py`).

All drivers and all readers must come to the same result, but Kafka's clients read a header name
with a NUL, or one that is not UTF-8, in different ways. `header_name` defines it for us: a name
ends before its first NUL. If it is not UTF-8 up to there, or contains U+FFFD (which some clients
put in place of invalid bytes), no header of that record has a meaning.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from multicast.drivers.protocol import Headers, Record
from multicast.errors import UsageError

# Offset, milliseconds since 1970, leader epoch, bytes of key and value; -1 for null.
_CHECKED = struct.Struct(">Qqiii")
_LABEL = re.compile("([^~]+)(?:~([1-9][0-9]{0,17}))?")
TO = "amcast.to"
SKIP = "amcast.skip"
EPOCH = "amcast.epoch"
# `topology.tree.EPOCH_MAX` has 9 digits; no topic ever has 10^9 plans. Without a bound a forged
# marker could make every reader parse a number of thousands of digits.
EPOCH_DIGITS_MAX = 9
_NOT_UTF8 = "\ufffd"


class MessageID(NamedTuple):
    """A message's identity, given by Kafka: its log's name and its offset. Prints as "P1+P3:17".

    Where a log has lost its end and an operator has accepted that, other messages get these offsets
    again: `life` counts how often that happened to the log. "P1~1:17" is of its first life after.
    """

    log: str
    offset: int
    life: int = 0

    def __str__(self) -> str:
        """Give the text form, which histories and JSON lines use, and `parse` reads back."""
        return f"{self.log}~{self.life}:{self.offset}" if self.life else f"{self.log}:{self.offset}"

    @staticmethod
    def parse(text: str) -> MessageID:
        """Read the text form; raises `UsageError` for any other text."""
        label, _, offset = text.rpartition(":")
        of_log = log_and_life(label)
        if of_log is None or not (offset.isascii() and offset.isdecimal()):
            raise UsageError(f"{text!r} is not a message's ID, such as P1+P3:17")
        return MessageID(of_log[0], int(offset), of_log[1])


def log_and_life(label: str) -> tuple[str, int] | None:
    """Read what `Log.label` gives, which stands before a message's offset; None: it is no label."""
    parts = _LABEL.fullmatch(label)
    return None if parts is None else (parts[1], int(parts[2] or 0))


@dataclass(frozen=True, slots=True)
class Covered:
    """A message to a strict subset of its log's destination set; `to` is sorted."""

    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """An empty record in a hole: an offset that was ordered before a message came, and got none."""


@dataclass(frozen=True, slots=True)
class EpochMarker:
    """The record after which `epoch` begins in this log."""

    epoch: int


Special = Covered | Skip | EpochMarker


def special(log: str, headers: Headers) -> Special | None:
    """Give the meaning of a record's reserved headers in this log; None for an ordinary message.

    The first header that has a meaning decides. Never raises.
    """
    meaning: Special | None = None
    for name, value in headers:
        if _NOT_UTF8 in name:
            return None
        if meaning is None and value is not None and name.startswith("amcast."):
            meaning = _meaning(log, name, value.decode("utf-8", "replace"))
    return meaning


def message_checksum(record: Record) -> int:
    """Give the checksum of a message: the CRC-32 of all that readers see of it, and of its leader.

    The leader's epoch tells a message that its producer sent again from the one that was lost. Of
    the headers only the reserved ones count: those a reader acts on. 0, which stands for no known
    message, if nobody knows the leader's epoch; else never.
    """
    if record.leader_epoch < 0:
        return 0
    key, value = record.key or b"", record.value or b""
    lengths = [-1 if part is None else len(part) for part in (record.key, record.value)]
    head = _CHECKED.pack(record.offset, record.timestamp_ms, record.leader_epoch, *lengths)
    checksum = zlib.crc32(value, zlib.crc32(key, zlib.crc32(head)))
    headers = record.headers or ()
    if any(_NOT_UTF8 in name for name, _ in headers):  # clients read these in different ways
        headers = ()
    for name, text in headers:
        if reserved(name):
            checksum = zlib.crc32(b"%s\0%s\0" % (name.encode(), text or b""), checksum)
    return checksum or 1


def has_reserved(headers: Headers) -> bool:
    """Whether a reserved name is among the headers; without one no header has a meaning."""
    return any(reserved(name) for name, _ in headers)


def reserved(name: str) -> bool:
    """Whether a header's name is one of this project's."""
    return name.startswith("amcast.")


def _meaning(log: str, name: str, text: str) -> Special | None:
    if name == SKIP and text == log:
        return Skip()
    named, bar, rest = text.partition("|")
    if not bar or named != log:
        return None
    if name == EPOCH and rest.isdecimal() and rest.isascii() and len(rest) <= EPOCH_DIGITS_MAX:
        return EpochMarker(int(rest))
    if name == TO:
        to = tuple(rest.split(","))
        if list(to) == sorted(set(to)) and set(to) < set(log.split("+")):
            return Covered(to)
    return None


def header_name(raw: bytes) -> str | None:
    """Read a header's name; None if it is not UTF-8: then no header of its record has a meaning."""
    try:
        return raw.partition(b"\0")[0].decode("utf-8")
    except UnicodeDecodeError:
        return None


def refuse_names(headers: Headers) -> None:
    """Raise `UsageError` for a name that is reserved, or that not all clients read alike."""
    for name, _ in headers:
        if name.startswith("amcast."):
            raise UsageError(f'header {name!r} is refused: "amcast." names are reserved')
        if _NOT_UTF8 in name or header_name(name.encode("utf-8", "surrogatepass")) != name:
            raise UsageError(
                f"header {name!r} is refused: a name must be UTF-8, without NUL and U+FFFD"
            )


def name_set(names: Iterable[str], what: str) -> frozenset[str]:
    """Give what a caller names as a set; raises `UsageError` for what cannot be one.

    Does not look at the names: `refuse_no_name` does.
    """
    if isinstance(names, str):
        raise UsageError(f"{what} is a set of names, like {{{names!r}}}, not a str")
    try:
        return frozenset(names)
    except TypeError as error:
        raise UsageError(f"{what} is a set of names, like {{'P1'}}, not {names!r}") from error


def refuse_no_name(name: object, what: str) -> None:
    """Raise `UsageError` for what is no text, is empty, or has no UTF-8: half a surrogate pair."""
    if name and isinstance(name, str):
        try:
            name.encode()
        except UnicodeEncodeError:
            pass
        else:
            return
    raise UsageError(f"{name!r} is no name of {what}")


def covered_header(log: str, to: Iterable[str]) -> tuple[str, bytes]:
    """Make the header of a message whose exact destination set has no log of its own."""
    return TO, f"{log}|{','.join(sorted(set(to)))}".encode()


def skip_header(log: str) -> tuple[str, bytes]:
    """Make the header of a skip, the record that fills a hole."""
    return SKIP, log.encode()


def epoch_header(log: str, epoch: int) -> tuple[str, bytes]:
    """Make the header of the marker after which `epoch` begins in the log."""
    return EPOCH, f"{log}|{epoch}".encode()
