"""One run of the nemesis: injects the planned faults into a system under load, and judges the run.

After each fault the system must recover within a bound, so that every fault hits a working system;
a system that does not recover is a failure of the run. At the end the load stops, every consumer
reads to the end, auditors read everything from the start, and `multicast.properties` judges the
histories.
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
from bench.nemesis.recovery import RecoveryFigures, recoveries
from bench.nemesis.schedule import Planned, quiet_after
from bench.nemesis.system import System
from bench.nemesis.waits import END_NS, FaultTime, WaitsJudged, judge_waits
from multicast.errors import AmcastError
from multicast.properties import OrderViolation, Report, check_all
from topology.tree import Plan

_LOOK_S = 0.2  # between two looks at the programs: five a second cost little CPU
# For clients to reach brokers that run again: a request may wait 10 s for its answer.
_REACHED_NS = 10 * 10**9
_CALM_S = 10.0  # before the first fault: to know how long messages wait then
_SENTENCE_MAX = 1000  # characters of a failure's sentence, so that one fits a terminal

Say = Callable[[str], None]


@dataclass(slots=True)
class InjectedFault:
    """A fault that was injected. Times are seconds since the start of the load."""

    planned: Planned
    victim: str = ""
    at_s: float = 0.0
    healed_s: float = 0.0
    working_s: float = 0.0
    counted_ns: int = 0  # from when on its recovery counts; 0: it failed before
    incident: FaultTime | None = None


@dataclass(slots=True)
class RunOutcome:
    """The result of a run.

    `wrong` are sentences: faults without recovery, programs that ended or failed. `unsafe` are
    sentences of isolated faults, which check their guarantees themselves and found a violation.
    """

    seconds: float = 0.0
    quiet_seconds: float = 0.0
    injected: list[InjectedFault] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unsafe: list[str] = field(default_factory=list)
    kafka: str = ""
    epochs: int = 0
    counts: Counts | None = None
    report: Report | None = None
    findings: list[HistoryFinding] = field(default_factory=list)
    waits: WaitsJudged = field(default_factory=WaitsJudged)
    began_ns: int = 0
    recovery: Mapping[str, RecoveryFigures] = field(default_factory=dict)

    @property
    def violated(self) -> bool:
        """Whether a guarantee does not hold."""
        return self.violations > 0

    @property
    def violations(self) -> int:
        """Count the violated guarantees and all findings."""
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
    """Start the system, inject the planned faults for at most `seconds_max`, stop it, and judge.

    A fault from which the system does not recover within `patience_s` is a failure, and the last
    one. Afterwards every process has ended. Raises `AmcastError` if the system does not start.
    """
    outcome = RunOutcome()
    with system:
        outcome.kafka = system.cluster.version
        began = time.monotonic()
        outcome.began_ns = time.monotonic_ns()
        _wait(system, _CALM_S)
        for planned in schedule:
            if time.monotonic() - began >= seconds_max or outcome.wrong:
                break
            kind = kinds[planned.kind]
            _Injection(system, outcome, began, patience_s, say).make(planned, kind)
        outcome.seconds = time.monotonic() - began
        say("stopping the load; all consumers read to the end")
        outcome.wrong += system.finish()
        plans = system.plans()
        outcome.epochs = len(plans)
    say("judging")
    judge(outcome, system.folder, plans, system.work, system.starvation.samples)
    return outcome


def judge(
    outcome: RunOutcome,
    folder: Path,
    plans: Sequence[Plan],
    work: Mapping[tuple[str, str], int],
    starved: Sequence[tuple[int, int]] = (),
) -> None:
    """Judge the histories in a folder, and measure the recovery from the faults of the outcome.

    `work` holds by collector and log how many records the collector ordered, `starved` by time how
    long processes had waited for a core.
    """
    noted = read_histories(sorted(folder.glob("*.jsonl")))
    outcome.counts = noted.counts
    history = replace(noted.history(plans=plans), work=work)
    outcome.report = check_all(history)
    outcome.findings = noted.findings(history)
    outcome.recovery = recoveries(
        [(each.planned.kind, each.counted_ns) for each in outcome.injected if each.counted_ns],
        load=noted.load,
        delivered=noted.delivered,
        interests=noted.interests,
    )
    incidents = [fault.incident for fault in outcome.injected if fault.incident is not None]
    outcome.waits = judge_waits(
        [FaultTime("start", 0, outcome.began_ns, excused=True), *incidents],
        noted.delivered,
        present=noted.present,
        starved=starved,
    )
    outcome.findings += [HistoryFinding("waited", one) for one in outcome.waits.findings]


@dataclass(frozen=True, slots=True)
class _Injection:
    """Injects the faults of one run."""

    system: System
    outcome: RunOutcome
    began: float
    patience_s: float
    say: Say

    def make(self, planned: Planned, kind: FaultKind) -> None:
        """Inject one fault, wait for the recovery, then for the quiet time."""
        injected = InjectedFault(planned, at_s=self._now_s())
        self.outcome.injected.append(injected)
        try:
            self._hold(kind, injected)
        except AmcastError as error:
            unsafe = error.exit_code == OrderViolation.exit_code
            self._report(injected, str(error), unsafe=unsafe)
            self.system.restore()  # so that the histories can be completed and judged
            return
        injected.working_s = self._now_s()
        busy_s = injected.working_s - injected.at_s
        self.say(
            f"{planned.number:3} {injected.at_s:6.1f} s  {planned.kind} ({injected.victim}): "
            f"works again after {busy_s:.1f} s"
        )
        _wait(self.system, max(planned.quiet_s, quiet_after(busy_s)))
        # The next fault must hit a working system; a failure here is a late effect of this one.
        try:
            self._need_recovery(time.monotonic_ns(), brokers=kind.brokers)
        except AmcastError as error:
            self._report(injected, f"after the quiet time: {error}", unsafe=False)
        self.outcome.quiet_seconds += self._now_s() - injected.working_s

    def _hold(self, kind: FaultKind, injected: InjectedFault) -> None:
        """Inject a fault, hold it, heal it, and wait for the recovery."""
        planned = injected.planned
        pick = random.Random(planned.seed)  # noqa: S311 - repeatable, not secret
        begun_ns = time.monotonic_ns()
        injected.incident = FaultTime(planned.kind, begun_ns, END_NS, excused=True)
        with kind.act(self.system, pick) as victim:
            injected.victim = victim
            injected_ns = time.monotonic_ns()
            if kind.heals_itself:
                self._need_recovery(injected_ns, brokers=False)
            _wait(self.system, planned.hold_s - (time.monotonic_ns() - injected_ns) / 1e9)
        healed_ns = time.monotonic_ns()
        injected.healed_s = self._now_s()
        injected.counted_ns = injected_ns if kind.heals_itself else healed_ns
        if kind.all_run:
            over_ns = healed_ns
        else:
            self.system.all_run(timeout_s=self.patience_s, brokers=kind.brokers)
            over_ns = time.monotonic_ns() + _REACHED_NS
        self._need_recovery(healed_ns, brokers=kind.brokers)
        over_ns = min(over_ns, time.monotonic_ns())
        injected.incident = FaultTime(planned.kind, begun_ns, over_ns, excused=not kind.all_run)

    def _need_recovery(self, since_ns: int, *, brokers: bool) -> None:
        system = self.system
        if not system.recovered(since_ns, timeout_s=self.patience_s, brokers=brokers):
            raise AmcastError(
                f"not recovered within {self.patience_s:g} s: {system.what_is_missing(since_ns)}"
            )

    def _report(self, injected: InjectedFault, what: str, *, unsafe: bool) -> None:
        trouble = "; ".join(self.system.trouble())
        one_line = " ".join(f"{what} {trouble}".split())[:_SENTENCE_MAX]
        sentence = f"{injected.planned.kind} (fault {injected.planned.number}): {one_line}"
        (self.outcome.unsafe if unsafe else self.outcome.wrong).append(sentence)
        self.say(sentence)

    def _now_s(self) -> float:
        return time.monotonic() - self.began


def _wait(system: System, seconds: float) -> None:
    """Wait, unless a program ends unexpectedly."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while (left_s := deadline - time.monotonic()) > 0 and not system.trouble():
        pause.wait(min(_LOOK_S, left_s))
