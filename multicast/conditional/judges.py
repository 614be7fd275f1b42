"""The judges of one delivery: none for a log without conditions, so that such a log costs nothing.

A log gets its judge with its first condition, and loses it after a segment without one. If the
condition looks back before that, the delivery stops: `wanted` says which records must be read
again. The shell reads them (`lookback.py`), and the delivery continues. No I/O.

Invariant: a judge in `_judges` has taken every message of its log from its base up to the position
of the delivery.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from multicast.conditional.condition import EXPECT
from multicast.conditional.judge import EFFECTIVE, Decision, LogJudge, WhyVoid, border
from multicast.drivers.protocol import Record
from multicast.errors import Trimmed
from topology.tree import Log


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """Records to read again: offsets first … next-1 of a log."""

    log: Log
    first: int
    next: int


class LogJudges:
    """Judges the messages that one delivery is about to hand out; `number` is a log's number."""

    def __init__(self) -> None:
        self.wanted: Wanted | None = None
        self.void: Counter[WhyVoid] = Counter()  # judged void so far, for this consumer or not
        self._judges: dict[int, LogJudge] = {}
        self._wanted_number = -1
        self._trimmed: str | None = None
        self._looked_back: dict[int, int] = {}  # by log: where the retained part of it began

    def active(self, number: int) -> bool:
        """Whether every record of this log must be given to `judge`, even one without headers."""
        judge = self._judges.get(number)
        if judge is not None and judge.idle:
            del self._judges[number]
            return False
        return judge is not None

    def judge(self, number: int, log: Log, record: Record) -> Decision | None:
        """Judge the next record of a log; None: nothing from this record on may be delivered now.

        Then `wanted` must be read first. Or retention has removed what decides: `check` raises.
        """
        judge = self._judges.get(number)
        if judge is None:
            if not any(name == EXPECT for name, _ in record.headers):
                return EFFECTIVE
            judge = self._judges[number] = LogJudge(log.name, record.offset)
        decision = judge.judge(record)
        if decision is not None:
            if not decision.takes_effect:
                assert decision.reason is not None
                self.void[decision.reason] += 1
            return decision
        first = border(record.offset)
        if self._looked_back.get(number, -1) >= first:
            self._trimmed = (
                f"retention has removed messages of log {log.name} from offset {first} on, which "
                f"decide whether message {log.name}:{record.offset} takes effect; seek to a later "
                f"position"
            )
            return None
        self.wanted = Wanted(log, first, record.offset)
        self._wanted_number = number
        return None

    @property
    def stopped(self) -> bool:
        """Whether nothing may be delivered now."""
        return self.wanted is not None or self._trimmed is not None

    def check(self) -> None:
        """Raise `Trimmed` if the next message can never be judged here."""
        if self._trimmed is not None:
            raise Trimmed(self._trimmed)

    def look_back(self, first: int) -> None:
        """Begin to read `wanted` again, from `first` on: nothing before is retained."""
        assert self.wanted is not None
        self._judges[self._wanted_number] = LogJudge(self.wanted.log.name, first)
        self._looked_back[self._wanted_number] = first

    def read_again(self, records: Sequence[Record], position: int) -> None:
        """Take records of `wanted`, and the reader's position after them."""
        assert self.wanted is not None
        judge = self._judges[self._wanted_number]
        for record in records:
            if record.offset >= self.wanted.next:
                break
            judge.replay(record)
        if position >= self.wanted.next:
            self.wanted = None
