"""The rule of conditions once more, word by word and quadratic, and logs to try it on.

It shares no code with `multicast/conditional/judge.py` but the two that make headers.
"""

from dataclasses import dataclass

from hypothesis import strategies as st

from multicast import LogPosition, nothing_after
from multicast.conditional.condition import EXPECT, Expectation, expect_header, tags_header
from multicast.drivers.protocol import Record

LOG = "P1+P2"
SEGMENT = 8  # so that a log of some messages has borders


@dataclass(frozen=True)
class Expected:
    """A condition as the model sees it: a position, and sets of tags; None: unreadable."""

    next: int
    sets: tuple[frozenset[str], ...] | None


@dataclass(frozen=True)
class Event:
    """A record of the model's log."""

    offset: int
    tags: frozenset[str]
    key: bytes | None = None
    expected: Expected | None = None
    is_skip: bool = False

    @property
    def record(self):
        headers = []
        if self.is_skip:
            headers.append(("amcast.skip", LOG.encode()))
        if self.tags:
            headers.append(tags_header(LOG, self.tags))
        if self.expected is not None:
            headers.append(self._expect())
        return Record(self.offset, b"", self.key, headers)

    def _expect(self):
        position = LogPosition(LOG, max(0, self.expected.next))
        if self.expected.sets is None:
            return EXPECT, f"{LOG}|{position.next}|nonsense".encode()
        if frozenset() in self.expected.sets:
            return expect_header(nothing_after(position))
        made = nothing_after(position, any_of=self.expected.sets)
        return expect_header(Expectation(LOG, made.condition))


def decisions(events, segment=SEGMENT):
    """Give (offset, None or why it is void, the offset of the conflict) of each message."""
    given = []
    effective = []
    for event in events:
        if event.is_skip:
            continue
        reason, conflict = None, None
        if event.expected is not None:
            after = max(0, event.expected.next)
            matches = [
                other.offset
                for other in effective
                if after <= other.offset
                and any(tags <= other.tags for tags in event.expected.sets or ())
            ]
            if event.expected.sets is None:
                reason = "unreadable"
            elif after > event.offset:
                reason = "ahead"
            elif after // segment < event.offset // segment:
                reason = "too old"
            elif matches:
                reason, conflict = "conflict", max(matches)
        if reason is None:
            effective.append(event)
        given.append((event.offset, reason, conflict))
    return given


def as_model(offset, decision):
    """A decision of the product in the model's form."""
    conflict = None if decision.conflict is None else decision.conflict.offset
    return offset, None if decision.reason is None else decision.reason.value, conflict


TAG_SETS = st.frozensets(st.sampled_from(["a", "b", "c"]), max_size=3)


@st.composite
def logs(draw, size_max=40):
    """Draw a log: messages with tags and conditions, skips, and offsets without a record."""
    events = []
    offset = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, size_max))):
        expected = None
        if draw(st.booleans()):
            back = draw(st.one_of(st.integers(0, 6), st.integers(-2, 3 * SEGMENT)))
            sets = draw(st.one_of(st.just(()), st.lists(TAG_SETS, min_size=1, max_size=2)))
            if sets:
                items = (frozenset(),) if frozenset() in sets else tuple(sets)
            else:
                items = None if draw(st.integers(0, 9)) == 0 else (frozenset("a"),)
            expected = Expected(offset - back, items)
        is_skip = expected is None and draw(st.integers(0, 9)) == 0
        events.append(Event(offset, draw(TAG_SETS), None, expected, is_skip))
        offset += 1 + (draw(st.integers(0, 9)) == 0)
    return events
