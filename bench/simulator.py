"""The simulator: real cores, a faulty cluster in memory, one seed, no thread, no sleep.

A seed goes in, a verdict comes out. `simulation/schedule.py` draws everything first; here the turns
are carried out one by one, then the faults end and everything must be delivered.

    python -m bench.simulator --seed N                            one schedule, once more
    python -m bench.simulator --schedules N [--first-seed K]      many
    python -m bench.simulator --hours H --processes 2             a campaign

    safety      while there are faults: no two consumers may disagree, nothing is delivered wrongly
    liveness    when the faults have ended, in a bounded number of rounds all is delivered

Exit code 3 where a guarantee was violated; then the output has the one command that repeats it and
the shortest schedule found that still fails.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from bench.simulation.auditors import Auditors
from bench.simulation.consumers import Consumers
from bench.simulation.forging import Forger
from bench.simulation.judge import Judge, Violation
from bench.simulation.nodes import SimulatedNodes
from bench.simulation.recovery import Recoverer
from bench.simulation.schedule import Schedule, TurnKind, draw
from bench.simulation.shrink import Shrinker, tell
from bench.simulation.strangers import Strangers
from bench.simulation.world import CONTROL, Event, Stats, World
from bench.simulation.writers import Operators, Producers
from multicast.control import ControlState, genesis, plan_record

ROUNDS_MAX = 2000
QUIET = 2  # rounds in which nothing happens any more
QUIET_FORGED = 6  # an operator looks for damage in every fourth round only
CHUNK = 50


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """What became of one schedule."""

    seed: int
    violation: Violation | None
    stats: Stats
    trace: list[Event]

    @property
    def digest(self) -> int:
        """BLAKE2b of the trace, 8 bytes as a number: equal for equal runs."""
        return int.from_bytes(hashlib.blake2b(repr(self.trace).encode(), digest_size=8).digest())


class Simulation:
    """One run of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.world = World(schedule)
        self.judge = Judge(schedule.scene)
        first = schedule.plans[0][0]
        key, value = plan_record(genesis(first.topic), first, attempt="0")
        self.world.log.write(CONTROL, value, key=key)
        self.nodes = SimulatedNodes(self.world)
        self.producers = Producers(self.world, self.judge, self.nodes)
        self.strangers = Strangers(self.world, self.judge)
        self.consumers = Consumers(self.world, self.judge)
        self.forger = Forger(self.world)
        self.operators = Operators(self.world, Recoverer)
        self.auditors = Auditors(self.world)

    def run(self) -> ScheduleOutcome:
        """Carry the schedule out, then let everything come to rest, then judge."""
        try:
            violation = self._carry_out()
        except Exception as error:  # noqa: BLE001 - whatever a core raises here is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            violation = Violation("no crash", text)
        world = self.world
        world.stats.deliveries = self.judge.deliveries
        world.stats.void += self.nodes.void()
        return ScheduleOutcome(self.schedule.seed, violation, world.stats, world.trace)

    def _carry_out(self) -> Violation | None:
        turns = {
            TurnKind.MULTICAST: self.producers.turn,
            TurnKind.NODE: self.nodes.turn,
            TurnKind.CONSUMER: self.consumers.turn,
            TurnKind.OPERATOR: self.operators.turn,
            TurnKind.TRANSACTION: self.strangers.transaction,
            TurnKind.GARBAGE: self.strangers.garbage,
            TurnKind.RETENTION: self.strangers.retention,
            TurnKind.COMPACTION: self.strangers.compaction,
            TurnKind.POISON: self.strangers.poison,
            TurnKind.ANNOUNCEMENT: self.producers.stray,
            TurnKind.RECREATION: self.strangers.recreation,
            TurnKind.FORGERY: self.forger.turn,
            TurnKind.AUDIT: self.auditors.turn,
        }
        tick = self.world.tick
        for kind, bits in self.schedule.ops:
            tick()
            turns[kind](bits)
        at_rest = self._come_to_rest()
        for sitter in self.consumers.sitters:
            if sitter.process is not None and not self.schedule.harsh:
                self.judge.ended(sitter.label, sitter.process.last, late=sitter.late)
        if self.world.filled_wrongly:
            return Violation(
                "no crash", f"log {self.world.filled_wrongly} was made again, and then filled."
            )
        state = self.world.view().state
        found = self.judge.verdict(state, self.world.work) or self.auditors.verdict(state)
        if found is None and not at_rest:
            return Violation("liveness", f"nothing came to rest in {ROUNDS_MAX} rounds.")
        if found is None and not self.schedule.harsh:
            return self._epochs_finished(state)
        return found

    def _come_to_rest(self) -> bool:
        """End all faults and give everybody turns until nothing happens any more."""
        world = self.world
        world.settle()
        self.strangers.cure()
        quiet = 0
        # Who lost what only retention took may begin again for ever; that is no liveness.
        rounds = 20 if self.schedule.harsh else ROUNDS_MAX
        for _ in range(rounds):
            before = (world.moves, self.judge.deliveries, self.consumers.epochs())
            world.tick()
            self.producers.calm_turn()
            self.operators.calm_turn()
            self.nodes.calm_turns()
            self.consumers.calm_turns()
            self.auditors.calm_turns()
            after = (world.moves, self.judge.deliveries, self.consumers.epochs())
            quiet = quiet + 1 if before == after else 0
            if quiet == (QUIET_FORGED if self.schedule.forges else QUIET):
                return True
        return self.schedule.harsh

    def _epochs_finished(self, state: ControlState) -> Violation | None:
        """Every epoch of the schedule has begun, and every seat has come to the last one."""
        wanted, epoch = len(self.schedule.plans), state.epoch
        # A recovery adds an epoch.
        if (epoch != wanted and not self.schedule.forges) or state.starts(epoch) is None:
            return Violation("liveness", f"the schedule has {wanted} epochs, {epoch} came to be.")
        for sitter in self.consumers.sitters:
            last = None if sitter.process is None else sitter.process.last
            if last is None or state.last_epoch(last.epoch, last.source) is not None:
                return Violation(
                    "liveness", f"{'/'.join(sitter.label)} never came to epoch {epoch}."
                )
        return None


def run(schedule: Schedule) -> ScheduleOutcome:
    """Carry out one schedule."""
    return Simulation(schedule).run()


# -- many -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """What many schedules amount to."""

    schedules: int = 0
    stats: Stats = field(default_factory=Stats)
    failures: list[tuple[int, Violation]] = field(default_factory=list)
    digest: int = 0  # of all traces, whatever process they ran in

    def add(self, other: Totals) -> None:
        """Add up."""
        self.schedules += other.schedules
        self.stats.multicasts += other.stats.multicasts
        self.stats.deliveries += other.stats.deliveries
        self.stats.void += other.stats.void
        self.stats.faults.update(other.stats.faults)
        self.failures += other.failures
        self.digest = (self.digest + other.digest) % 2**64


def run_seeds(seeds: range) -> Totals:
    """Run these seeds one after the other, up to the first that fails."""
    totals = Totals()
    for seed in seeds:
        totals.add(_totals(run(draw(seed))))
        if totals.failures:
            break
    return totals


def _totals(outcome: ScheduleOutcome) -> Totals:
    failures = [] if outcome.violation is None else [(outcome.seed, outcome.violation)]
    return Totals(1, outcome.stats, failures, outcome.digest)


def _chunks(first: int, count: int | None) -> Iterator[range]:
    at = first
    while count is None or at < first + count:
        stop = at + CHUNK if count is None else min(at + CHUNK, first + count)
        yield range(at, stop)
        at = stop


def campaign(
    first: int, count: int | None, *, processes: int = 1, deadline: float | None = None
) -> Totals:
    """Run `count` seeds, or without a count as many as begin before `deadline`; stop at a failure.

    `deadline` is in the seconds of `time.monotonic`.
    """
    totals = Totals()
    chunks = _chunks(first, count)

    def more() -> range | None:
        late = deadline is not None and time.monotonic() >= deadline
        return None if late or totals.failures else next(chunks, None)

    if processes == 1:
        while (seeds := more()) is not None:
            totals.add(run_seeds(seeds))
        return totals
    # A forked copy of a process that holds gRPC's threads waits for them for ever.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: set[Future[Totals]] = set()
        while True:
            while len(running) < processes + 1 and (seeds := more()) is not None:
                running.add(pool.submit(run_seeds, seeds))
            if not running:
                return totals
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                totals.add(future.result())


# -- the command ----------------------------------------------------------------------------


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _report(totals: Totals, seconds: float, processes: int) -> None:
    stats = totals.stats
    each = 1000 * seconds * processes / max(1, totals.schedules)
    _say(
        f"schedules {totals.schedules:,}  multicasts {stats.multicasts:,}  "
        f"deliveries {stats.deliveries:,}  void records {stats.void:,}  "
        f"violations {len(totals.failures)}"
    )
    _say(f"seconds {seconds:.1f}  processes {processes}  ms a schedule and core {each:.1f}")
    _say(f"digest of all traces {totals.digest:016x}")
    for kind, count in sorted(stats.faults.items()):
        _say(f"  {kind:<40} {count:>12,}")


def _explain(seed: int, violation: Violation, *, shrinking: bool) -> None:
    _say(f"\nviolated: {violation.guarantee}\n  {violation.witness}")
    _say(f"to repeat: python -m bench.simulator --seed {seed}")
    if shrinking:
        shrinker = Shrinker(draw(seed), violation, run=lambda one: run(one).violation)
        shrinker.shrink()
        _say(f"\nshrunk to {len(shrinker.best.ops)} turns in {shrinker.runs} runs:")
        _say(f"  {shrinker.violation.witness}")
        for line in tell(shrinker.best, run(shrinker.best).trace):
            _say(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; give the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run this seed alone")
    what.add_argument("--schedules", type=int, help="run so many seeds")
    what.add_argument("--hours", type=float, help="run for so long")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--no-shrink", action="store_true")
    asked = parser.parse_args(arguments)
    began = time.monotonic()
    if asked.seed is not None:
        outcome = run(draw(asked.seed))
        totals = _totals(outcome)
        if asked.trace:
            for event in outcome.trace:
                _say(" ".join(map(str, event)))
    else:
        deadline = None if asked.hours is None else began + 3600 * asked.hours
        totals = campaign(
            asked.first_seed, asked.schedules, processes=asked.processes, deadline=deadline
        )
    processes = 1 if asked.seed is not None else asked.processes
    _report(totals, time.monotonic() - began, processes)
    for seed, violation in totals.failures[:1]:
        _explain(seed, violation, shrinking=not asked.no_shrink)
    return 3 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
