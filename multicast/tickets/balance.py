"""When a debt or a surplus of tickets is corrected. No I/O, no clock.

    end          of a log: its last stable offset, as this instance last saw it
    expected     the offsets of a log that tickets have counted (position - debt). While each
                 message has one ticket, this equals the end
    imbalance    end - expected. Messages whose tickets have not come yet raise it, tickets whose
                 messages have not come yet lower it; both pass
    settled      an imbalance that nothing has changed for `rest`, in which tickets and messages
                 that are on their way arrive. It stays for ever, unless it is corrected

All settled imbalances of a window of some ticks are judged together:
    never below n > 0: nobody pays so much of the debt; it is corrected by n
    never above -n < 0: no messages come for n tickets. If the log has grown meanwhile, each message
        is ordered before it comes, and others wait for it: a negative correction makes n tickets
        count for nothing. If it has not grown, skips fill the hole, and the balance is right again
In a log that never rests nothing is settled and nothing corrected. There an imbalance costs little:
the next message fills the hole, and the `upto` of the next ticket orders what a debt delays. A
correction of what is only on its way would leave a hole when the log does rest. (A comparison of
the end before a window with the tickets after it fails: while the log grows by more than the debt
in that time, it never sees the debt. The simulation showed that, and that the least imbalance over
all events is too low: a ticket may be read before the end that its message has moved.)
"""

from __future__ import annotations

from dataclasses import dataclass, field

WINDOW_TICKS = 4  # 1 s with ticks of 0.25 s
AMOUNT_MAX = 2**31 - 1  # what a correction can say


@dataclass(slots=True)
class Balance:
    """One log's imbalance since the time `since`, and the settled ones of the window.

    `number` is that of the log's last correction when the window began. Times and `rest` are in
    the caller's unit.
    """

    rest: int
    number: int
    imbalance: int
    since: int
    end: int  # of the log, when the window began
    window: int = WINDOW_TICKS
    ticks: int = 0
    settled: list[int] = field(default_factory=list)  # the least and the greatest

    def note(self, imbalance: int, now: int) -> None:
        """Note the present imbalance."""
        if now - self.since >= self.rest:
            seen = [*self.settled, self.imbalance]
            self.settled = [min(seen), max(seen)]
        if self.imbalance != imbalance:
            self.imbalance, self.since = imbalance, now

    def judge(self, end: int) -> int:
        """End a tick, with the log's present end; give the amount to correct, 0 for none."""
        self.ticks += 1
        if self.ticks < self.window:
            return 0
        grown = end > self.end
        least, most = self.settled or (0, 0)
        self.ticks, self.end, self.settled = 0, end, []
        amount = least if least > 0 else min(0, most)
        return max(-AMOUNT_MAX, min(AMOUNT_MAX, amount)) if amount > 0 or grown else 0
