"""Decisions on conditional messages: the records of one log go in, in order; decisions come out.

A decision is a function of the log's records alone. All consumers deliver a log in the order of its
offsets, so they come to the same decision, whatever else they read, whenever they start. No I/O.

    effective    a message without a condition, or one whose condition holds; void: the others
    segment      the log's offsets from a border on; borders are the multiples of `SEGMENT`
    base         all messages of the segment from this offset on are in the index

The rule, for a message at offset m whose condition names offset x. The first that applies decides:

    1. the condition cannot be read                                        void: unreadable
    2. x > m: no reader can have been there                                void: ahead
    3. x is below the border of m's segment                                void: too old
    4. an effective message in [x, m) matches one of the items             void: conflict
    5. otherwise                                                           effective

Only effective messages conflict: of several messages that exclude each other one wins, so writers
cannot starve each other. Because of rule 3 a decision depends on one segment only, so a reader that
starts anywhere needs at most `SEGMENT` earlier records (`lookback.py`), and an index is bounded.

Invariant: border <= base <= next, and x >= base => a decision is known unless a match is uncertain.
A log whose retention removed part of the segment (border < base) can leave decisions unknown; those
messages are *uncertain*, and a later message that one of them matches is unknown, too. An unknown
decision is never guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from multicast.conditional.condition import NO_MARKS, Condition, Item, key_token, marks
from multicast.drivers.protocol import Record
from multicast.messages import Covered, MessageID, special

# Offsets of a segment. Part of the protocol: other readers would judge otherwise. A smaller one
# makes more conditions too old, a larger one costs memory (docs/conditional.md) and longer
# look-backs.
SEGMENT = 1 << 16


class WhyVoid(Enum):
    """Why a conditional message has no effect."""

    CONFLICT = "conflict"
    TOO_OLD = "too old"
    AHEAD = "ahead"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a message takes effect; else why not, and the message that conflicts."""

    reason: WhyVoid | None = None
    conflict: MessageID | None = None

    @property
    def takes_effect(self) -> bool:
        """Whether the message takes effect."""
        return self.reason is None

    def __str__(self) -> str:
        """Say it in words."""
        if self.reason is None:
            return "takes effect"
        if self.reason is WhyVoid.CONFLICT:
            return f"void: message {self.conflict} conflicts"
        return f"void: {_EXPLAINED[self.reason]}"


_EXPLAINED = {
    WhyVoid.TOO_OLD: "the condition's position is before the message's segment of the log",
    WhyVoid.AHEAD: "the condition's position is after the message itself",
    WhyVoid.UNREADABLE: "the condition cannot be read",
}
EFFECTIVE = Decision()


def border(offset: int) -> int:
    """Give the first offset of an offset's segment."""
    return offset - offset % SEGMENT


class LogJudge:
    """Judges the messages of one log, in the order of their offsets, from `base` on."""

    def __init__(self, log: str, base: int) -> None:
        self.log = log
        self.base = base
        self._conditions = 0  # of this segment
        self._had_conditions = True  # the segment before; of the first one nothing is known
        self._border = border(base)
        # By token: the offsets of the segment's messages that have it and are not void. "" has all.
        self._offsets: dict[str, list[int]] = {}
        self._tokens: dict[int, frozenset[str]] = {}  # of messages with several, by offset
        self._uncertain: set[int] = set()

    @property
    def idle(self) -> bool:
        """Whether neither this segment nor the one before had a condition so far."""
        return not (self._conditions or self._had_conditions)

    def judge(self, record: Record) -> Decision | None:
        """Judge the next record; None: unknown, and the record was not taken.

        A record that is no message (a skip, a marker) takes effect and matches nothing.
        """
        offset = record.offset
        if offset >= self._border + SEGMENT:
            self._turn(border(offset))
        own = NO_MARKS
        if record.headers:
            meaning = special(self.log, record.headers)
            if meaning is not None and not isinstance(meaning, Covered):
                return EFFECTIVE
            own = marks(self.log, record.headers)
        decision: Decision | None = EFFECTIVE
        if own.condition is not None:
            decision = self._decision(offset, own.condition)
            if decision is None:
                return None
            self._conditions += 1
        if decision is EFFECTIVE:
            self._enter(record, own.tokens)
        return decision

    def replay(self, record: Record) -> Decision | None:
        """Take a record that was handed out earlier, whatever is known of it."""
        decision = self.judge(record)
        if decision is None:
            self._uncertain.add(record.offset)
            self._enter(record, marks(self.log, record.headers).tokens)
        return decision

    def _turn(self, first: int) -> None:
        """Begin another segment: nothing before it matters any more."""
        self._had_conditions, self._conditions = self._conditions > 0, 0
        self.base = self._border = first
        self._offsets = {}
        self._tokens = {}
        self._uncertain = set()

    def _enter(self, record: Record, tags: Sequence[str]) -> None:
        offset = record.offset
        tokens = tags if record.key is None else (*tags, key_token(record.key))
        offsets = self._offsets
        offsets.setdefault("", []).append(offset)
        for token in tokens:
            offsets.setdefault(token, []).append(offset)
        if len(tokens) > 1:
            self._tokens[offset] = frozenset(tokens)

    def _decision(self, offset: int, condition: Condition) -> Decision | None:
        if not condition.items:
            return Decision(WhyVoid.UNREADABLE)
        if condition.next > offset:
            return Decision(WhyVoid.AHEAD)
        if condition.next < self._border:
            return Decision(WhyVoid.TOO_OLD)
        known = condition.next >= self.base
        conflict = -1
        for item in condition.items:
            for match in self._matches(item, condition.next):
                if match not in self._uncertain:
                    conflict = max(conflict, match)
                    break
                known = False
        if conflict >= 0:
            return Decision(WhyVoid.CONFLICT, MessageID(self.log, conflict))
        return EFFECTIVE if known else None

    def _matches(self, item: Item, first: int) -> list[int]:
        """List the indexed messages from `first` on that have all tokens of an item, newest first.

        After the first certain one the others may be missing.
        """
        lists = [self._offsets.get(token, []) for token in item or ("",)]
        shortest = min(lists, key=len)
        matches: list[int] = []
        for offset in reversed(shortest):
            if offset < first:
                break
            if len(item) < 2 or item <= self._tokens.get(offset, frozenset()):
                matches.append(offset)
                if offset not in self._uncertain:
                    break
        return matches
