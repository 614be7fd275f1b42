"""Conditions: what a producer expects of a log, as objects and as headers.

A condition looks at one log, its *boundary*: the one that stores the message itself. So whoever
delivers the message reads everything that decides it (docs/conditional.md).

    amcast.tags      "LOG|a,b"           the message's tags
    amcast.expect    "LOG|17|ITEM;ITEM"  nothing at offset 17 or above, and before the message,
                                         matches an item

    item     "*", or tokens joined by ",": a message matches if it has all of them
    token    "t:TAG"; "k:HEX", the record's key; "h:HEX", the digest of a longer key

Any client may write any header. A header that does not name the record's log has no meaning, and
the first of each kind that does decides. Tags that do not have the form above count as no tags; a
condition that does not is `UNREADABLE`, and its message is void. Nothing here raises for what was
read. No I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from multicast.drivers.protocol import Headers
from multicast.errors import UsageError
from multicast.messages import MessageID, name_set
from multicast.producing.keyed.partitioners import Key, key_bytes
from topology.tree import log_name

TAGS = "amcast.tags"
EXPECT = "amcast.expect"
# Limits of memory and time at every reader; a header beyond them is not readable.
TAGS_MAX = 8  # of a message, and of an item: an index holds an entry for each tag of each message
TAG_CHARACTERS_MAX = 100  # of a tag: an index holds each once
ITEMS_MAX = 16  # of a condition: each is looked up, one of several tags in the whole segment
CONDITION_BYTES_MAX = 4096  # of a header, so that a forged one is refused before it is parsed
_KEY_BYTES_MAX = 64  # a longer key is compared by its digest, so an index holds no large keys
_DIGEST_BYTES = 16  # as all digests of this project (docs/protocol.md)
_OFFSET_DIGITS_MAX = 19  # Kafka's offsets are below 2^63
_OFFSET_MAX = (1 << 63) - 1  # Kafka's largest
_ANYTHING = "*"
# By code points, not by `str.isprintable`: that differs between versions of Python, and all readers
# must agree. U+FFFD stands for bytes that are not UTF-8.
_TAG = re.compile(rf"[^\x00-\x1f\x7f,;\ud800-\udfff\ufffd]{{1,{TAG_CHARACTERS_MAX}}}")

Item = frozenset[str]


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in a log: everything below offset `next` was handed out or is not delivered."""

    log: str
    next: int

    def __str__(self) -> str:
        """Give "LOG:OFFSET", the ID that the next message of the log may have."""
        return f"{self.log}:{self.next}"


@dataclass(frozen=True, slots=True)
class Condition:
    """No message at offset `next` or above has all tokens of an item; without items: unreadable."""

    next: int
    items: tuple[Item, ...]


UNREADABLE = Condition(0, ())


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition on a log; `nothing_after` makes it."""

    log: str
    condition: Condition


class Marks(NamedTuple):
    """What the headers of a message say to a judge."""

    tokens: tuple[str, ...]
    condition: Condition | None


NO_MARKS = Marks((), None)


def nothing_after(
    position: LogPosition | MessageID,
    *,
    key: Key | None = None,
    tags: Iterable[str] = (),
    any_of: Iterable[Iterable[str]] = (),
) -> Expectation:
    """Expect that nothing that matches comes after a position, or after a message of that ID.

    With `key` and `tags` a message matches that has this key and all these tags; without both every
    message of the log matches. With `any_of`, sets of tags, one matches that has all tags of one of
    these sets, as in a query of dcb.events. A void message never matches. Raises `UsageError` for a
    malformed tag, or more than the limits allow (docs/conditional.md).
    """
    items = [_item(one_of, None) for one_of in _sets(any_of)]
    if not items:
        items = [_item(checked_tags(tags), key)]
    elif key is not None or tags:
        raise UsageError("give 'any_of', or 'key' and 'tags' of a single match, not both")
    after = position.next if isinstance(position, LogPosition) else position.offset + 1
    if not 0 <= after <= _OFFSET_MAX:
        raise UsageError(f"{position} is not a position in a log")
    if len(items) > ITEMS_MAX:
        raise UsageError(f"a condition has {len(items)} sets of tags; {ITEMS_MAX} are allowed")
    expectation = Expectation(position.log, Condition(after, tuple(items)))
    if len(expect_header(expectation)[1]) > CONDITION_BYTES_MAX:
        raise UsageError(f"a condition takes more than {CONDITION_BYTES_MAX:,} bytes")
    return expectation


def checked_tags(tags: Iterable[str]) -> list[str]:
    """Give the tags of a message, sorted; raises `UsageError` for a malformed one or too many."""
    if isinstance(tags, str):
        raise UsageError(f"tags are a set of texts, like {{{tags!r}}}, not a str")
    if not isinstance(tags, Iterable):
        raise UsageError(f"tags are a set of texts, like {{'a'}}, not {tags!r}")
    named = list(tags)
    for tag in named:
        if not isinstance(tag, str) or not _TAG.fullmatch(tag):
            raise UsageError(
                f"{tag!r} is not a tag: a text of 1 to {TAG_CHARACTERS_MAX} characters without "
                f"',', ';' and control characters"
            )
    named = sorted(set(named))
    if len(named) > TAGS_MAX:
        raise UsageError(f"{len(named)} tags are given; {TAGS_MAX} are allowed")
    return named


def key_token(key: bytes) -> str:
    """Give the token that a record's key is."""
    if len(key) <= _KEY_BYTES_MAX:
        return f"k:{key.hex()}"
    return f"h:{blake2b(key, digest_size=_DIGEST_BYTES).hexdigest()}"


# -- headers --------------------------------------------------------------------------------


def tags_header(log: str, tags: Iterable[str]) -> tuple[str, bytes]:
    """Make the header of a message with tags; raises `UsageError` as `checked_tags`."""
    return TAGS, f"{log}|{','.join(checked_tags(tags))}".encode()


def expect_header(expectation: Expectation) -> tuple[str, bytes]:
    """Make the header of a conditional message."""
    items = ";".join(",".join(sorted(item)) or _ANYTHING for item in expectation.condition.items)
    return EXPECT, f"{expectation.log}|{expectation.condition.next}|{items}".encode()


def marks(log: str, headers: Headers) -> Marks:
    """Read the tags and the condition of a message in this log. Never raises.

    The caller knows that the record is a message, and that its headers have a meaning
    (`multicast.messages.special`).
    """
    tokens: tuple[str, ...] | None = None
    condition: Condition | None = None
    for name, value in headers:
        if "\ufffd" in name:
            return NO_MARKS
        if value is None or name not in (TAGS, EXPECT):
            continue
        named, bar, rest = value.decode("utf-8", "replace").partition("|")
        if not bar or named != log:
            continue
        if name == TAGS:
            tokens = _tags(rest) if tokens is None else tokens
        elif condition is None:
            fits = len(value) <= CONDITION_BYTES_MAX
            condition = _condition(rest) if fits else UNREADABLE
    return Marks(tokens or (), condition)


def _tags(text: str) -> tuple[str, ...]:
    tags = text.split(",")
    if len(tags) > TAGS_MAX or not all(map(_TAG.fullmatch, tags)):
        return ()
    return tuple(f"t:{tag}" for tag in dict.fromkeys(tags))


def _condition(text: str) -> Condition:
    number, bar, rest = text.partition("|")
    if not bar or not (number.isascii() and number.isdecimal()):
        return UNREADABLE
    if len(number) > _OFFSET_DIGITS_MAX or int(number) > _OFFSET_MAX:
        return UNREADABLE
    items = rest.split(";")
    if len(items) > ITEMS_MAX:
        return UNREADABLE
    tokens = [[] if item == _ANYTHING else item.split(",") for item in items]
    if any(len(each) > TAGS_MAX + 1 or not all(map(_is_token, each)) for each in tokens):
        return UNREADABLE
    return Condition(int(number), tuple(map(frozenset, tokens)))


def _is_token(text: str) -> bool:
    kind, rest = text[:2], text[2:]
    if kind == "t:":
        return _TAG.fullmatch(rest) is not None
    if kind == "k:":
        return len(rest) <= 2 * _KEY_BYTES_MAX and len(rest) % 2 == 0 and _is_hex(rest)
    return kind == "h:" and len(rest) == 2 * _DIGEST_BYTES and _is_hex(rest)


def _is_hex(text: str) -> bool:
    return not text.strip("0123456789abcdef")


def _item(tags: Iterable[str], key: Key | None) -> Item:
    own = [] if key is None else [key_token(key_bytes(key))]
    return frozenset([*own, *(f"t:{tag}" for tag in tags)])


def _sets(any_of: Iterable[Iterable[str]]) -> list[list[str]]:
    if isinstance(any_of, str):
        raise UsageError(f"'any_of' is a list of sets of tags, like [{{{any_of!r}}}], not a str")
    sets = [checked_tags(tags) for tags in any_of]
    if not all(sets):
        raise UsageError("a set of tags in 'any_of' is empty; name at least one tag")
    return sets


# -- what a producer sends ------------------------------------------------------------------


def boundary(within: Iterable[str] | None, expect: Expectation | None) -> frozenset[str] | None:
    """Give the partitions of the log that must store a message; None: the plan says which one.

    Raises `UsageError` if `within` is not the set of the expectation's log.
    """
    named = None if within is None else name_set(within, "'within'")
    if expect is None:
        return named
    if not isinstance(expect, Expectation):
        raise UsageError(f"'expect' is {expect!r}; give what nothing_after() returns")
    looks_at = frozenset(expect.log.split("+"))
    if named not in (None, looks_at):
        raise UsageError(
            f"the condition looks at log {expect.log}, but 'within' names {log_name(within or ())}"
        )
    return looks_at


def reserved_headers(
    log: str, covered: tuple[str, bytes] | None, tags: Iterable[str], expect: Expectation | None
) -> list[tuple[str, bytes]]:
    """List the headers of ours that a message to a log gets; `covered` is that of its exact set."""
    headers = [] if covered is None else [covered]
    if tags:
        headers.append(tags_header(log, tags))
    if expect is not None:
        headers.append(expect_header(expect))
    return headers
