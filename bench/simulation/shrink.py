"""Shrinks a failing schedule to a small part that violates the same guarantee.

Every sub-list of a schedule's operations is a schedule, so the shrinker leaves out kinds of faults,
then turns, large pieces first, as long as the run still fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.simulation.judge import Violation
from bench.simulation.schedule import CALM, Schedule
from bench.simulation.world import Event

RUNS_MAX = 600  # schedules tried: about a minute
LINES_MAX = 80  # trace events printed: enough to see the last faults before the violation


class Shrinker:
    """Tries smaller schedules; `best` is the smallest failing one so far."""

    def __init__(
        self,
        schedule: Schedule,
        violation: Violation,
        *,
        run: Callable[[Schedule], Violation | None],
        runs_max: int = RUNS_MAX,
    ) -> None:
        self.best = schedule
        self.violation = violation
        self.runs = 0
        self._run = run
        self._runs_max = runs_max

    def shrink(self) -> None:
        """Leave out all that the failure does not need: kinds of faults first, then turns."""
        self._try(replace(self.best, fates=CALM))
        self._try(replace(self.best, crash_mask=-1))
        self._try(replace(self.best, pinned=False))
        self._try(replace(self.best, apart=False))
        self._try(replace(self.best, ends=None))
        self._try(replace(self.best, seats=self.best.seats[:2]))
        size = max(1, len(self.best.ops) // 2)
        while self.runs < self._runs_max:
            if not self._without_pieces(size) and size == 1:
                return
            size = max(1, size // 2)

    def _without_pieces(self, size: int) -> bool:
        """Try to leave out each piece of that size once; whether any was superfluous."""
        smaller = False
        start = len(self.best.ops)
        while start > 0 and self.runs < self._runs_max:
            start = max(0, start - size)
            ops = self.best.ops
            smaller |= self._try(replace(self.best, ops=ops[:start] + ops[start + size :]))
        return smaller

    def _try(self, candidate: Schedule) -> bool:
        self.runs += 1
        seen = self._run(candidate)
        if seen is None or seen.guarantee != self.violation.guarantee:
            return False
        self.best, self.violation = candidate, seen
        return True


def tell(schedule: Schedule, trace: list[Event]) -> list[str]:
    """Describe a shrunk schedule as lines: the plans, the turns, and the last events."""
    lines = []
    for rivals in schedule.plans:
        plan = rivals[0]
        lines.append(f"epoch {plan.epoch}: logs {', '.join(log.name for log in plan.logs)}")
        lines += [
            f"  {node.name} under {node.parent or 'nobody'}: {', '.join(node.bag)}"
            for node in plan.collectors
        ]
    for (name, interest), named in zip(schedule.scene.interests, schedule.scene.named, strict=True):
        where = "" if named else " (not in the plan)"
        lines.append(f"{name} wants {', '.join(interest)}{where}")
    lines.append(f"{schedule.limits}")
    lines.append("turns: " + " ".join(f"{op.kind.name.lower()}:{op.bits:x}" for op in schedule.ops))
    if len(trace) > LINES_MAX:
        lines.append(f"the last {LINES_MAX} of {len(trace)} events:")
    lines += [" ".join(map(str, event)) for event in trace[-LINES_MAX:]]
    return lines
