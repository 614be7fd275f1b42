"""The simulator: runs the real cores on a faulty cluster in memory, deterministically from a seed.

A run uses no thread and no clock. `simulation/schedule.py` draws the whole schedule from the seed;
this module runs its turns one by one, then ends the faults, and judges the run.

    python -m bench.simulator --seed N                            one schedule
    python -m bench.simulator --schedules N [--first-seed K]      many
    python -m bench.simulator --hours H --processes 2             as many as fit
    python -m bench.simulator --waits --schedules N               of the second kind

    safety      under faults: no two consumers disagree, nothing is delivered wrongly
    liveness    after the faults have ended: everything is delivered within `ROUNDS_MAX` rounds
    seat        one consumer instance over its restarts

Exit code 3: a guarantee was violated. Then the output names the command that repeats the run, and
the shortest failing schedule that was found.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context

from bench.simulation.auditors import Auditors
from bench.simulation.clients import WorldDriver
from bench.simulation.collectors import SimulatedCollectors
from bench.simulation.consumers import Consumers
from bench.simulation.ending import Ending
from bench.simulation.followers import Followers
from bench.simulation.foreign import ForeignWriters
from bench.simulation.judge import Judge, Violation
from bench.simulation.losses import TailLosses
from bench.simulation.operators import Operators, place
from bench.simulation.own_order import OwnOrders
from bench.simulation.schedule import OUTAGE_PACE, Ends, Schedule, TurnKind, draw
from bench.simulation.shrink import Shrinker, tell
from bench.simulation.strangers import Strangers
from bench.simulation.waits import WaitSimulation, draw_waits
from bench.simulation.world import CONTROL, Event, Stats, World
from bench.simulation.writers import Producers
from multicast.control import ControlState, genesis, plan_record

# Each round gives every process a turn that does all its work; schedules need up to 124 rounds
# (measured over 120 schedules). Ten times more would only delay the report of a livelock.
ROUNDS_MAX = 2000
ROUND_MS = 250  # a tick
# A run is at rest after so many rounds without an event: what was kept in four windows of four
# ticks is corrected, and another window ends.
QUIET_ROUNDS = 22
ROUNDS_BEFORE = 12  # in which epochs end, and most debts are corrected
# If retention deleted a record that a process still needs, that process restarts again and again.
# Such a schedule is judged for safety only, so few rounds suffice.
ROUNDS_HARSH = 20
CHUNK_SEEDS = 50  # that a worker process takes at a time, so that a failure soon stops a campaign


# Faults are counted; what the product would log of each of them is noise here.
logging.getLogger("amcast").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class ScheduleOutcome:
    """The result of one schedule."""

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
        self.world.driver = WorldDriver(self.world)
        self.judge = Judge(schedule.scene, loses=schedule.loses)
        first = schedule.plans[0][0]
        first = place(self.world, ControlState(first.topic), first, 1)
        key, value = plan_record(genesis(first.topic), first, attempt="0")
        self.world.log.write(CONTROL, value, key=key)
        self.collectors = SimulatedCollectors(self.world)
        self.producers = Producers(self.world, self.judge)
        self.foreign = ForeignWriters(self.world, self.judge)
        self.consumers = Consumers(self.world, self.judge)
        self.strangers = Strangers(self.world, self.collectors)
        self.operators = Operators(self.world)
        self.auditors = Auditors(self.world)
        self.followers = Followers(self.world)
        self.own_orders = OwnOrders(self.world, self.judge, self.producers.brokers)
        self.losses = TailLosses(
            self.world, self.judge, self.collectors, self.producers, self.strangers
        )
        self.ending = Ending(
            self.world, self.judge, self.producers, self.consumers, calm_round=self.calm_round
        )

    def run(self) -> ScheduleOutcome:
        """Run the schedule, let the system come to rest without faults, and judge."""
        try:
            violation = self._carry_out()
        except Exception as error:  # noqa: BLE001 - any error that a core raises here is a finding
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
            violation = Violation("no crash", text)
        world = self.world
        world.stats.deliveries = self.judge.deliveries
        world.stats.void += self.collectors.void()
        return ScheduleOutcome(self.schedule.seed, violation, world.stats, world.trace)

    def _carry_out(self) -> Violation | None:
        turns = {
            TurnKind.MULTICAST: self.producers.turn,
            TurnKind.NODE: self.collectors.turn,
            TurnKind.CONSUMER: self.consumers.turn,
            TurnKind.OPERATOR: self.operators.turn,
            TurnKind.TRANSACTION: self.foreign.transaction,
            TurnKind.GARBAGE: self.foreign.garbage,
            TurnKind.RETENTION: self.foreign.retention,
            TurnKind.COMPACTION: self.foreign.compaction,
            TurnKind.POISON: self.foreign.poison,
            TurnKind.RECREATION: self.foreign.recreation,
            TurnKind.STRANGER: self.strangers.turn,
            TurnKind.FORGERY: self.strangers.forge,
            TurnKind.AWAY: self.strangers.send_away,
            TurnKind.AUDIT: self.auditors.turn,
            TurnKind.LOSS: self.losses.turn,
            TurnKind.OUTAGE: self.foreign.outage,
            TurnKind.RELEASE: self.collectors.release,
            TurnKind.RECEIPT: self.followers.turn,
            TurnKind.OWN_ORDER: self.own_orders.turn,
        }
        for op in self.schedule.ops:
            self.world.pass_time(op.ms * (OUTAGE_PACE if self.world.some_away else 1))
            turns[op.kind](op.bits)
        self.world.settle()
        self.foreign.cure()
        violation = self._ends() if self.schedule.ends and not self.schedule.harsh else None
        if violation is not None:
            return violation
        if self.schedule.loses:
            self.ending.go_on()
        at_rest = self._come_to_rest()
        state = self.world.view().state
        # A wrong relay looks like the parent's lost end. No operator here accepts that as a loss.
        harsh = self.schedule.harsh or bool(state.losses.streams)
        if harsh and not self.schedule.harsh:
            self.world.fault("a stream was stated to be lost: only safety judged")
        for seat in self.consumers.seats:
            if seat.process is not None and not harsh:
                self.judge.ended(seat.label, seat.process.last, late=seat.late)
        violation = self.judge.verdict(state, self.world.work) or self.auditors.verdict(state)
        if violation is None and not at_rest:
            return Violation("liveness", f"the system did not come to rest in {ROUNDS_MAX} rounds.")
        if violation is None and not harsh:
            violation = self._epochs_finished(state) or self.ending.verdict()
            violation = violation or self.own_orders.verdict()
        return violation or self.followers.verdict(harsh=harsh)

    def _ends(self) -> Violation | None:
        """Disturb the system once more, in the way that the schedule says."""
        for _ in range(ROUNDS_BEFORE):
            self.calm_round(ROUND_MS)
        if self.schedule.ends is Ends.HUNG:
            return self.ending.hung(self.schedule.seed)
        return self.ending.busy()

    def _come_to_rest(self) -> bool:
        """End all faults and give all processes turns until nothing happens any more."""
        world = self.world
        quiet = 0
        for _ in range(ROUNDS_HARSH if self.schedule.harsh else ROUNDS_MAX):
            before = (world.moves, self.judge.deliveries, self.consumers.epochs())
            self.calm_round(ROUND_MS)
            after = (world.moves, self.judge.deliveries, self.consumers.epochs())
            quiet = quiet + 1 if before == after else 0
            if quiet == QUIET_ROUNDS:
                return True
        return self.schedule.harsh

    def calm_round(self, ms: int) -> None:
        """Let time pass, and give every process a turn that does all its work."""
        self.world.pass_time(ms)
        self.producers.calm_turn()
        self.own_orders.calm_turn()
        self.operators.calm_turn()
        self.collectors.calm_turns()
        self.consumers.calm_turns()
        self.auditors.calm_turns()

    def _epochs_finished(self, state: ControlState) -> Violation | None:
        """Check that every epoch of the schedule has begun, and every seat has reached the last."""
        expected, epoch = len(self.schedule.plans), state.epoch
        # A recovery adds an epoch.
        if (epoch != expected and not self.schedule.forges) or state.starts(epoch) is None:
            return Violation(
                "liveness", f"the schedule has {expected} epochs, the run came to epoch {epoch}."
            )
        for seat in self.consumers.seats:
            last = None if seat.process is None else seat.process.last
            if last is None or state.last_epoch(last.epoch, last.source) is not None:
                return Violation("liveness", f"{'/'.join(seat.label)} never reached epoch {epoch}.")
        return None


def run(schedule: Schedule) -> ScheduleOutcome:
    """Carry out one schedule."""
    return Simulation(schedule).run()


def run_waits(seed: int) -> ScheduleOutcome:
    """Carry out the schedule of the second kind of a seed."""
    simulation = WaitSimulation(draw_waits(seed))
    outcome, world = simulation.run(), simulation.world
    return ScheduleOutcome(seed, outcome.violation, world.stats, world.trace)


# -- many schedules -------------------------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """The sums over many schedules."""

    schedules: int = 0
    stats: Stats = field(default_factory=Stats)
    failures: list[tuple[int, Violation]] = field(default_factory=list)
    digest: int = 0  # the sum of the traces' digests, so it does not depend on the processes

    def add(self, other: Totals) -> None:
        """Add another total to this one."""
        self.schedules += other.schedules
        self.stats.multicasts += other.stats.multicasts
        self.stats.deliveries += other.stats.deliveries
        self.stats.void += other.stats.void
        self.stats.faults.update(other.stats.faults)
        self.failures += other.failures
        self.digest = (self.digest + other.digest) % 2**64


def run_seeds(seeds: range, *, waits: bool) -> Totals:
    """Run these seeds one after the other; stop after the first that fails."""
    totals = Totals()
    for seed in seeds:
        totals.add(_totals(run_waits(seed) if waits else run(draw(seed))))
        if totals.failures:
            break
    return totals


def _totals(outcome: ScheduleOutcome) -> Totals:
    failures = [] if outcome.violation is None else [(outcome.seed, outcome.violation)]
    return Totals(1, outcome.stats, failures, outcome.digest)


def _chunks(first: int, count: int | None, size: int) -> Iterator[range]:
    start = first
    while count is None or start < first + count:
        stop = start + size if count is None else min(start + size, first + count)
        yield range(start, stop)
        start = stop


def campaign(
    first: int,
    count: int | None,
    *,
    waits: bool = False,
    processes: int = 1,
    deadline: float | None = None,
) -> Totals:
    """Run `count` seeds, or without a count all that begin before `deadline`; stop at a failure.

    `deadline` is a time of `time.monotonic`, in seconds.
    """
    totals = Totals()
    chunks = _chunks(first, count, 1 if waits else CHUNK_SEEDS)

    def more() -> range | None:
        late = deadline is not None and time.monotonic() >= deadline
        return None if late or totals.failures else next(chunks, None)

    if processes == 1:
        while (seeds := more()) is not None:
            totals.add(run_seeds(seeds, waits=waits))
        return totals
    # A forked copy of a process that holds gRPC's threads waits for them for ever.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        running: set[Future[Totals]] = set()
        while True:
            while len(running) < processes + 1 and (seeds := more()) is not None:
                running.add(pool.submit(run_seeds, seeds, waits=waits))
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


def _explain(seed: int, violation: Violation, *, waits: bool, shrinking: bool) -> None:
    _say(f"\nviolated: {violation.guarantee}\n  {violation.witness}")
    _say(f"to repeat: python -m bench.simulator {'--waits ' if waits else ''}--seed {seed}")
    if shrinking and not waits:
        shrinker = Shrinker(draw(seed), violation, run=lambda schedule: run(schedule).violation)
        shrinker.shrink()
        _say(f"\nshrunk to {len(shrinker.best.ops)} turns in {shrinker.runs} runs:")
        _say(f"  {shrinker.violation.witness}")
        for line in tell(shrinker.best, run(shrinker.best).trace):
            _say(line)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.simulator", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--seed", type=int, help="run only this seed")
    what.add_argument("--schedules", type=int, help="run this number of seeds")
    what.add_argument("--hours", type=float, help="run seeds for this time")
    parser.add_argument("--waits", action="store_true", help="schedules of the second kind")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="with --seed: print every event")
    parser.add_argument("--no-shrink", action="store_true")
    options = parser.parse_args(arguments)
    if options.schedules is not None and options.schedules < 1:
        parser.error("--schedules is at least 1")
    began = time.monotonic()
    if options.seed is not None:
        outcome = run_waits(options.seed) if options.waits else run(draw(options.seed))
        totals = _totals(outcome)
        if options.trace:
            for event in outcome.trace:
                _say(" ".join(map(str, event)))
    else:
        deadline = None if options.hours is None else began + 3600 * options.hours
        totals = campaign(
            options.first_seed,
            options.schedules,
            waits=options.waits,
            processes=options.processes,
            deadline=deadline,
        )
    processes = 1 if options.seed is not None else options.processes
    _report(totals, time.monotonic() - began, processes)
    for seed, violation in totals.failures[:1]:
        _explain(seed, violation, waits=options.waits, shrinking=not options.no_shrink)
    return 3 if totals.failures else 0


if __name__ == "__main__":
    sys.exit(main())
