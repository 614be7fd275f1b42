"""What is out of balance in a log and stays so: holes, debts, and what is ordered late. No I/O.

    hole        offsets that are ordered and not in the log yet: position - end
    unpaid      messages that no ticket has counted: end - (position - debt)
    late        messages that are there and not ordered yet: end - position
    in passing  a ticket is read before its message is seen, or the other way round. So these
                numbers change all the time in a log that grows, and come back within milliseconds
    kept        of a window: what a number was not below for three quarters of the time. What
                only passes is not in it, however seldom the log rests
    usual       the same for half of the time: nearer to the truth where messages come about as
                often as they are in passing

Who reads several logs waits for a hole behind each message of the other logs: for hole / rate, as
the next messages fill it and their tickets open it again. Where a log is ordered late, each of its
messages waits for a later one. Both are ended after one window if somebody waits longer than
`urgent` for what was kept, else after several, if it was usual in all of them: a stall of a broker
or of this process, in which messages come long after their tickets, then seldom costs skips. What
somebody waits for at most `slack` stays: so much is in passing where a log grows by thousands of
messages a second.

(Tried before: only what had rested for 250 ms. A log with 160 messages a second never rests, and
each message of the others waited for N messages after one producer had died with N tickets, for
ever. What tickets had counted a second ago against what is there now leaves a second's tickets.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

WINDOW_TICKS = 4  # 1 s with ticks of 0.25 s
WINDOWS = 4  # a stall of a garbage collector or of a broker's disk is over after that
AMOUNT_MAX = 2**32 - 1  # what a correction can say


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """How long somebody may wait for what is kept; in the caller's unit of time.

    `urgent`: longer waits are ended after one window of `ticks` ticks. `slack`: shorter ones stay.
    The others are ended after `windows` windows. `stale`: how old an end may be when a fill begins.
    """

    urgent: int
    slack: int
    stale: int
    ticks: int = WINDOW_TICKS
    windows: int = WINDOWS


class OffBalance(NamedTuple):
    """How many offsets: ordered and not there, not counted by tickets, and ordered late."""

    hole: int
    unpaid: int
    late: int


_NONE = OffBalance(0, 0, 0)


@dataclass(slots=True)
class Balance:
    """What was seen of one log since `began`, when it ended at `end`.

    `number` is that of the log's last correction at that time. `last` was noted at the time `seen`;
    `is_fresh` if that was after the last tick. If not, the log did not grow since, and its end is
    known. That of a log that grows is known only at the moment when it is noted.
    """

    number: int
    began: int
    end: int
    last: OffBalance
    seen: int
    is_fresh: bool = True
    ticks: int = 0
    # How long nothing was noted, and the numbers before and after that.
    noted: list[tuple[int, OffBalance, OffBalance]] = field(default_factory=list)
    usual: deque[OffBalance] = field(default_factory=deque)  # of the windows before

    def note(self, present: OffBalance, now: int) -> None:
        """Note the present numbers."""
        if now > self.seen:
            self.noted.append((now - self.seen, self.last, present))
            self.seen = now
        self.last, self.is_fresh = present, True

    def judge(self, end: int, limits: BalanceLimits) -> OffBalance:
        """End a tick; give how many offsets to fill, to correct, and to count.

        What comes while a fill is on its way is part of the hole: it is counted to what to fill.
        """
        self.ticks, self.is_fresh = self.ticks + 1, False
        if self.ticks < limits.ticks:
            return _NONE
        passed, grown = self.seen - self.began, end - self.end
        # Between two times a number was at least the lower one, for kept; or either, half the time.
        lower = [
            (length, OffBalance(*map(min, zip(before, after, strict=True))))
            for length, before, after in self.noted
        ]
        each = [(length, one) for length, *both in self.noted for one in both]
        kept = _least(lower, 0.75)
        self.usual.append(_least(each, 0.5))
        self.noted.clear()
        self.ticks, self.began, self.end = 0, self.seen, end
        always = _NONE
        if len(self.usual) == limits.windows:
            always = OffBalance(*map(min, zip(*self.usual, strict=True)))
            self.usual.popleft()

        def due(now: int, always: int, slack: int) -> int:
            if now * passed > limits.urgent * grown:
                return now
            return always if always * passed > slack * grown else 0

        hole = due(kept.hole, always.hole, limits.slack)
        if hole and grown:
            hole += 1 + grown * limits.stale // passed
        late = due(kept.late, always.late, limits.slack)
        # While a log has a debt, its collector orders each message at once: none is left.
        return OffBalance(hole, due(kept.unpaid, always.unpaid, 0), late)


def _least(noted: Sequence[tuple[int, OffBalance]], share: float) -> OffBalance:
    """Give the greatest numbers below which nothing was for this share of the time."""
    rest = (1 - share) * sum([length for length, _ in noted])
    found = []
    for place in range(len(_NONE)):
        left, least = rest, 0
        for number, length in sorted([(one[place], length) for length, one in noted]):
            left -= length
            if left < 0:
                least = max(0, number)
                break
        found.append(least)
    return OffBalance(*found)
