"""One run of the nemesis: the system under load, one fault after the other, and the judgement.

The schedule says which fault comes next. Before the next one the system must work again, within a
bound: a fault always strikes a working system, and what does not recover is a failure of the run.
At the end the load stops, every consumer reads to the end, auditors read all from the start, and
`multicast.properties` judges what everybody noted.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.nemesis.faults.kinds import FaultKind
from bench.nemesis.histories import Counts, HistoryFinding, read_histories
from bench.nemesis.recovery import Fault, RecoveryFigures, by_kind, recoveries
from bench.nemesis.schedule import Planned, quiet_after
from bench.nemesis.system import System
from multicast.errors import AmcastError
from multicast.properties import OrderViolation, Report, check_all
from topology.tree import Plan

_LOOK_S = 0.2
_SAID_MAX = 1000

Say = Callable[[str], None]


@dataclass(slots=True)
class Struck:
    """A fault that was made. Times are seconds since the load ran."""

    planned: Planned
    whom: str = ""
    at_s: float = 0.0
    healed_s: float = 0.0
    working_s: float = 0.0
    fault: Fault | None = None


@dataclass(slots=True)
class RunOutcome:
    """What a run gives. `wrong` are sentences: what did not recover, ended by itself, or failed.

    `unsafe` are sentences, too: a fault found by itself that a guarantee does not hold.
    """

    seconds: float = 0.0
    quiet_seconds: float = 0.0
    struck: list[Struck] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)
    kafka: str = ""
    epochs: int = 0
    counts: Counts | None = None
    report: Report | None = None
    findings: list[HistoryFinding] = field(default_factory=list)
    recovery: Mapping[str, RecoveryFigures] = field(default_factory=dict)

    @property
    def violated(self) -> bool:
        """Whether a guarantee does not hold."""
        return self.violations > 0

    @property
    def violations(self) -> int:
        """Count what shows that a guarantee does not hold."""
        judged = 0 if self.report is None else len(self.report.violations)
        return judged + len(self.findings) + len(self.unsafe)


def run(
    system: System,
    schedule: Sequence[Planned],
    kinds: Mapping[str, FaultKind],
    *,
    seconds_max: float,
    patience_s: float,
    say: Say,
) -> RunOutcome:
    """Enter the system, strike it as planned for so long at most, and judge it.

    What has not recovered after `patience_s` is a failure, and the last fault. Everything has ended
    after it. Raises `AmcastError` where the system does not come to life.
    """
    outcome = RunOutcome()
    with system:
        outcome.kafka = system.cluster.version
        began = time.monotonic()
        for planned in schedule:
            if time.monotonic() - began >= seconds_max or outcome.wrong:
                break
            kind = kinds[planned.kind]
            _Strike(system, outcome, began, patience_s, say).make(planned, kind)
        outcome.seconds = time.monotonic() - began
        say("the load stops, and everybody reads to the end")
        outcome.wrong += system.finish()
        plans = system.plans()
        outcome.epochs = len(plans)
    say("judging")
    judge(outcome, system.folder, plans, system.work)
    return outcome


def judge(
    outcome: RunOutcome, folder: Path, plans: Sequence[Plan], work: Mapping[tuple[str, str], int]
) -> None:
    """Judge the histories in a folder, and measure how the faults of the outcome were survived.

    `work` has by collector and log the records that it ordered.
    """
    noted = read_histories(sorted(folder.glob("*.jsonl")))
    outcome.counts = noted.counts
    history = replace(noted.history(plans=plans), work=work)
    outcome.report = check_all(history)
    outcome.findings = noted.findings(history)
    faults = [one.fault for one in outcome.struck if one.fault is not None]
    found = recoveries(
        faults, load=noted.load, delivered=noted.delivered, interests=noted.interests
    )
    outcome.recovery = by_kind(found)


@dataclass(frozen=True, slots=True)
class _Strike:
    """How a fault is made, in which run."""

    system: System
    outcome: RunOutcome
    began: float
    patience_s: float
    say: Say

    def make(self, planned: Planned, kind: FaultKind) -> None:
        """Make one fault, wait until the system works again, then leave it alone for a while."""
        struck = Struck(planned, at_s=self._now_s())
        self.outcome.struck.append(struck)
        try:
            self._hold(kind, struck)
        except AmcastError as error:
            unsafe = error.exit_code == OrderViolation.exit_code
            self._tell(struck, str(error), unsafe=unsafe)
            self.system.restore()  # so that the rest can be judged
            return
        struck.working_s = self._now_s()
        busy_s = struck.working_s - struck.at_s
        self.say(
            f"{planned.number:3} {struck.at_s:6.1f} s  {planned.kind} ({struck.whom}): "
            f"works again after {busy_s:.1f} s"
        )
        _wait(self.system, max(planned.quiet_s, quiet_after(busy_s)))
        # The next fault has to strike a system that works; what broke in the quiet broke late.
        try:
            self._need_recovery(time.monotonic_ns(), brokers=kind.brokers)
        except AmcastError as error:
            self._tell(struck, f"after the quiet that followed: {error}", unsafe=False)
        self.outcome.quiet_seconds += self._now_s() - struck.working_s

    def _hold(self, kind: FaultKind, struck: Struck) -> None:
        """Make a fault, hold it, heal it, and wait until the system works."""
        planned = struck.planned
        pick = random.Random(planned.seed)  # noqa: S311 - to be repeated
        with kind.act(self.system, pick) as whom:
            struck.whom = whom
            injected_ns = time.monotonic_ns()
            if kind.heals_itself:
                self._need_recovery(injected_ns, brokers=False)
            _wait(self.system, planned.hold_s - (time.monotonic_ns() - injected_ns) / 1e9)
        healed_ns = time.monotonic_ns()
        struck.healed_s = self._now_s()
        counted_ns = injected_ns if kind.heals_itself else healed_ns
        struck.fault = Fault(planned.kind, injected_ns, counted_ns)
        self._need_recovery(healed_ns, brokers=kind.brokers)

    def _need_recovery(self, since_ns: int, *, brokers: bool) -> None:
        system = self.system
        if not system.recovered(since_ns, timeout_s=self.patience_s, brokers=brokers):
            raise AmcastError(
                f"not recovered within {self.patience_s:g} s: {system.what_is_missing(since_ns)}"
            )

    def _tell(self, struck: Struck, what: str, *, unsafe: bool) -> None:
        trouble = "; ".join(self.system.trouble())
        one_line = " ".join(f"{what} {trouble}".split())[:_SAID_MAX]
        said = f"{struck.planned.kind} (fault {struck.planned.number}): {one_line}"
        (self.outcome.unsafe if unsafe else self.outcome.wrong).append(said)
        self.say(said)

    def _now_s(self) -> float:
        return time.monotonic() - self.began


def _wait(system: System, seconds: float) -> None:
    """Let time pass, unless a program ends by itself."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while (left_s := deadline - time.monotonic()) > 0 and not system.trouble():
        pause.wait(min(_LOOK_S, left_s))
