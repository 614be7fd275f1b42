"""What a collector states of logs: how far they reached, and what they have lost. No I/O, no clock.

Kafka may lose the end of a log after it was acknowledged, and gives its offsets to other messages
(docs/protocol.md, "Lost tails"). Whoever reads the stream later can only notice if it says where
the log ended, and under which leader.

    question   to the leaders of some own logs, with what the stream says of each before
               it is asked: what others state meanwhile may be newer than the answer
    end        of a log: its last stable offset and its leader's epoch, from one answer
    has        a leader has a seen end of an earlier epoch if its own records of epochs up to that
               one reach as far; and one of its own epoch if its log does
    judged     of a log: its leader has all seen ends of which the stream knew
    behind     the leader's epoch is below that of a seen end: either this leader was deposed and
               does not know it, or the cluster is an older copy. After `_BEHIND_MS` it is the copy

Order: a log is judged BEFORE another end of it is stated, as a newer end hides what is lost below
it. Of a lost log no end is stated any more.

A child repeats what its parent's stream has: losses at once, seen ends once a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from multicast.drivers.protocol import LeaderEnd
from multicast.order.records import Loss, SeenEnd, SightRecord
from multicast.order.rule import RecordStream, StreamState, undominated
from multicast.order.runs import ORDERED_MAX

# A leader that was cut off from its controllers leads for so long at most where clients look up who
# leads every second. Ten times more, a restored copy would be read for minutes without a word.
_BEHIND_MS = 30_000
# Of a child's repetitions; the parent's own statements come as often.
_REPEAT_MS = 1000


class Question(NamedTuple):
    """By number, the logs to ask for, each with the seen ends that the stream has of it."""

    seen: Mapping[int, tuple[SeenEnd, ...]]


class EpochEnd(NamedTuple):
    """Where the records of leader epochs up to this one end on the present leader; -1: unknown."""

    leader_epoch: int
    end: int


@dataclass(slots=True)
class _Leader:
    epoch: int
    compared: set[SeenEnd] = field(default_factory=set)  # of other epochs


class Sights:
    """What one instance has to state. `own` and `parent` are its core's streams."""

    def __init__(self, own: RecordStream, parent: RecordStream | None) -> None:
        self._own = own
        self._parent = parent
        self._moved: dict[int, int] = {}  # the ends of logs of which the stream may say less
        self._leaders: dict[int, _Leader] = {}
        self._seen: dict[int, SeenEnd] = {}  # to state
        # What was stated here last; the stream may not have been read so far.
        self._stated: dict[int, SeenEnd] = {}
        self._lost: dict[int, int] = {}  # by log: the first offset, as found here
        self._stating: dict[int, int] = {}  # losses that are handed out
        self._behind: dict[int, int] = {}  # by log, since when
        self._parent_says = parent is not None  # perhaps something that is not repeated
        self._repeated: int | None = None  # when seen ends were repeated last

    # -- events -----------------------------------------------------------------------------

    def log_end(self, log: int, end: int) -> None:
        """Report the end of an own log, which may be lower than before."""
        self._moved[log] = end

    def parent_read(self) -> None:
        """Report that the parent's stream says more of its logs."""
        self._parent_says = True

    def append_failed(self) -> None:
        """Report that an append may be lost: losses are handed out again, and ends asked for."""
        self._stating.clear()
        self._parent_says = self._parent is not None

    @property
    def to_ask(self) -> bool:
        """Whether logs have moved since the stream said how far they reach."""
        return bool(self._moved)

    # -- questions --------------------------------------------------------------------------

    def question(self, logs: Collection[int] | None = None) -> Question | None:
        """Give the question for those of these own logs of which something is to be compared.

        By default it is for those that have moved, whatever is known of them.
        """
        if logs is None:
            self._moved = {log: end for log, end in self._moved.items() if self._is_open(log, end)}
            logs = self._moved
        else:
            logs = [log for log in logs if self._known(log)]
        return Question({log: self._known(log) for log in logs}) if logs else None

    def _known(self, log: int) -> tuple[SeenEnd, ...]:
        """Give the seen ends of a log: those of the stream, and what was stated here."""
        seen, stated = self._own.state.seen.get(log, ()), self._stated.get(log)
        return seen if stated is None or stated in seen else (*seen, stated)

    def _is_open(self, log: int, end: int) -> bool:
        known = self._own.state.seen.get(log)
        if not known:
            return end > self._own.shape.own[log]
        return log not in self._leaders or end != known[-1].end

    def epochs(self, question: Question, ends: Mapping[int, LeaderEnd]) -> dict[int, int]:
        """Give by log the leader epoch to ask for, where the leader may lack a seen end."""
        wanted = {}
        for log, seen in question.seen.items():
            if log in ends:
                leader = self._leader(log, ends[log].leader_epoch)
                left = [each.leader_epoch for each in seen if _is_unknown(each, leader)]
                if left:
                    wanted[log] = left[0]
        return wanted

    def _leader(self, log: int, epoch: int) -> _Leader:
        leader = self._leaders.get(log)
        if leader is None or leader.epoch != epoch:
            leader = self._leaders[log] = _Leader(epoch)
        return leader

    def answered(
        self,
        question: Question,
        ends: Mapping[int, LeaderEnd],
        epoch_ends: Mapping[int, EpochEnd],
        now: int,
    ) -> None:
        """Take the answers to a question and to what `epochs` gave; logs may be missing in both."""
        for log, seen in question.seen.items():
            present = ends.get(log)
            if present is None or present.leader_epoch < 0:
                continue
            leader = self._leader(log, present.leader_epoch)
            answer = epoch_ends.get(log)
            lost = [_lost_from(each, present, answer) for each in seen]
            if answer is not None and answer.end < 0 < answer.leader_epoch - present.leader_epoch:
                lost.append(self._lost_behind(log, seen, present, now))
            else:
                self._behind.pop(log, None)
                leader.compared |= {each for each in seen if _is_about(each, answer)}
            firsts = [first for first in lost if first is not None]
            if firsts:
                self._lost[log] = min(*firsts, self._lost.get(log, firsts[0]))
            if self._is_lost(log):
                self._moved.pop(log, None)
                self._seen.pop(log, None)
            elif not any(_is_unknown(each, leader) for each in seen):
                self._note_seen(log, present)

    def _lost_behind(
        self, log: int, seen: Iterable[SeenEnd], present: LeaderEnd, now: int
    ) -> int | None:
        """Give where what is left of an older copy begins to differ, as far as one knows."""
        since = self._behind.setdefault(log, now)
        if now - since < _BEHIND_MS:
            return None
        kept = [
            each.end
            for each in seen
            if each.leader_epoch <= present.leader_epoch
            and not _is_unknown(each, self._leaders[log])
        ]
        return min(present.end, max(kept, default=self._own.shape.own[log]))

    def _note_seen(self, log: int, present: LeaderEnd) -> None:
        end = min(present.end, self._own.state.positions[log] + ORDERED_MAX)
        seen = SeenEnd(log, end, present.leader_epoch)
        if end > self._own.shape.own[log] and _changes(self._own.state, seen):
            self._seen[log] = self._stated[log] = seen

    # -- what is due ------------------------------------------------------------------------

    def due(self, now: int) -> SightRecord | None:
        """Give the next record to append; None if there is nothing to state."""
        state = self._own.state
        if state.frozen or not (self._seen or self._lost or self._parent_says):
            return None
        losses = dict(self._lost)
        seen = list(self._seen.values())
        self._seen.clear()
        if self._parent is not None and self._parent_says:
            losses.update(self._parent_losses(self._parent.state))
            if self._repeated is None or now - self._repeated >= _REPEAT_MS:
                repeated = self._parent_seen(self._parent.state)
                self._parent_says = bool(repeated)
                self._repeated = now if repeated else self._repeated
                seen += repeated
        due = {
            log: first
            for log, first in losses.items()
            if first < state.lost.get(log, first + 1) and self._stating.get(log) != first
        }
        self._stating.update(due)
        if not (seen or due):
            return None
        return SightRecord(tuple(seen), tuple(Loss(*each) for each in sorted(due.items())))

    def _parent_losses(self, parent: StreamState) -> dict[int, int]:
        inherited = self._own.shape.inherited
        return {log: first for log, first in parent.lost.items() if log in inherited}

    def _parent_seen(self, parent: StreamState) -> list[SeenEnd]:
        state = self._own.state
        return [
            each
            for log in self._own.shape.inherited
            for each in parent.seen.get(log, ())
            if _changes(state, each)
        ]

    def is_judged(self, log: int) -> bool:
        """Whether nothing of a log is missing, so that a hole in it may be filled."""
        seen, leader = self._known(log), self._leaders.get(log)
        return not self._is_lost(log) and not any(
            leader is None or _is_unknown(each, leader) for each in seen
        )

    def _is_lost(self, log: int) -> bool:
        return log in self._own.state.lost or log in self._lost


def _is_unknown(each: SeenEnd, leader: _Leader) -> bool:
    return each.leader_epoch != leader.epoch and each not in leader.compared


def _is_about(each: SeenEnd, answer: EpochEnd | None) -> bool:
    return answer is not None and answer.end >= 0 and each.leader_epoch == answer.leader_epoch


def _lost_from(each: SeenEnd, present: LeaderEnd, answer: EpochEnd | None) -> int | None:
    """Give the first offset that is lost of a seen end, as the answers show; None: none."""
    end = each.end
    if each.leader_epoch == present.leader_epoch:
        end = present.end
    elif answer is not None and _is_about(each, answer):
        end = answer.end
    return end if end < each.end else None


def _changes(state: StreamState, each: SeenEnd) -> bool:
    """Whether this adds to what the stream says of the log (clause 9)."""
    position = state.positions[each.log]
    known = undominated(state.seen.get(each.log, ()), position)
    return each.end <= position + ORDERED_MAX and undominated([*known, each], position) != known
