"""Random schedules of the ticket rule in virtual time, and their judge.

    safety      no two consumers disagree on the order of two messages, no cycle over all consumers,
                nothing is delivered twice or in another order than its log's

`ending` has the end of a schedule and the rest of the judge. One seed decides everything.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from bench.tickets.ending import TicketEnding
from bench.tickets.epochs import TicketEpoch, TicketSpan, first_epoch
from bench.tickets.operator import TicketOperator
from bench.tickets.processes import (
    TicketCollectorProcess,
    TicketProducerProcess,
    TicketReaderProcess,
    false_checkpoint,
    hide_messages,
    surplus_ticket,
)
from bench.tickets.retention import needed_from, remove_with_messages
from bench.tickets.world import (
    DEEP,
    LATE_TURNS,
    TicketWorld,
    draw_tree,
    inherits_one,
)
from multicast.tickets.rule import NotCounted, TicketStream

MULTICASTS = 30


@dataclass
class TicketTotals:
    """Sums over schedules."""

    schedules: int = 0
    multicasts: int = 0
    deliveries: int = 0
    skips: int = 0
    epochs: int = 0
    corrections: int = 0
    checkpoints: int = 0  # at which readers may begin
    removed: int = 0  # records of streams, by retention
    restored: int = 0  # runs, by recoveries
    faults: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)
    violation: str = ""
    seed: int = -1
    digest: int = 0  # sum of the schedules' digests


class TicketSimulation(TicketEnding):
    """One schedule."""

    def __init__(self, seed: int) -> None:
        rng = self._rng = Random(seed)  # noqa: S311 - repeatable, not secret
        self.calm = seed % 8 == 1
        self._telling = {}
        self._stays_busy = seed % 3 > 0
        self._ends_busy = seed % 6 == 2
        # One tree is drawn too seldom to find what is wrong there.
        self._deep = seed % 5 == 3 and not self.calm
        tree = draw_tree(rng)
        tree = DEEP if self._deep else tree
        logs = 1 + max(log for bag in tree.bags for log in bag)
        self.world = TicketWorld(
            rng,
            [[] for _ in range(logs)],
            [[] for _ in tree.bags],
            fault_share=0.0 if self.calm else rng.choice((0.02, 0.1, 0.3)),
            delay_max=rng.choice((1, 3)) if self.calm else rng.choice((1, 5, 40)),
        )
        first = first_epoch(self.world, tree)
        self.epochs = [first]
        # Calm schedules must show no skip, so their producers all write tickets.
        kinds = rng.choice(([True], [True, True], [True, False], [True, True, False], [False]))
        if self.calm:
            kinds = rng.choice(([True], [True, True, True]))
        self.producers = [
            TicketProducerProcess(self.world, self.epochs, f"p{number}", tickets=tickets)
            for number, tickets in enumerate(kinds)
        ]
        self.collectors: list[TicketCollectorProcess] = []
        self._patience = rng.choice((0, 3, 30))
        self._instances = 1 if self.calm else rng.choice((1, 2, 2))
        self._begin(first)
        self.consumers = [
            TicketReaderProcess(self.world, self.epochs, self._interest(bag))
            for bag in tree.bags
            for _ in range(rng.choice((1, 2)))
            if bag
        ]
        self.multicasts = 0
        self._change_turns = {rng.choice((-1, rng.randrange(50, 350))) for _ in range(2)}
        self._wrong_turn = -1 if self.calm else rng.choice((-1, rng.randrange(50, 350)))
        delay = rng.randint(1, 120)
        self._recover_turn = -1 if self._wrong_turn < 0 else self._wrong_turn + delay
        self._wrong_node = 1 if self._deep else rng.randrange(len(tree.bags))
        self._wrong_kind = (seed // 8) % 3 if not self._deep else 0
        if self._wrong_kind == 2 and self._wrong_turn >= 0:
            self._recover_turn += LATE_TURNS
        fit = [node for node, bag in enumerate(tree.bags) if inherits_one(tree, node, bag)]
        if self._wrong_kind == 1 and fit:
            self._wrong_node = fit[seed % len(fit)]
        self._trim_turn = self._recover_turn - rng.randint(1, 60)
        self._away: TicketSpan | None = None
        self.operator = TicketOperator(self.world, self.epochs)
        self._busy_logs = [rng.randrange(logs) for _ in range(3)] + list(range(logs))

    def _interest(self, bag: Sequence[int]) -> tuple[int, ...]:
        if self._rng.random() < 0.6:
            return tuple(bag)
        return tuple(sorted(self._rng.sample(bag, self._rng.randint(1, len(bag)))))

    def _begin(self, epoch: TicketEpoch, before: TicketEpoch | None = None) -> None:
        for span in epoch.spans:
            if before is None or span not in before.spans:
                self.collectors += [
                    TicketCollectorProcess(self.world, span, self._patience)
                    for _ in range(self._instances)
                ]

    # -- the schedule -----------------------------------------------------------------------

    def run(self) -> str:
        """Run; give the violation, or ""."""
        rng, world = self._rng, self.world
        turns = 0
        while self.multicasts < MULTICASTS or turns < self._recover_turn:
            turns += 1
            world.pass_time(1)
            self._operator_turn(turns)
            chance = rng.random()
            if chance < 0.08 and self.multicasts < MULTICASTS:
                self._multicast()
            elif chance < 0.5:
                self._collector_turn(rng.choice(self.collectors))
            elif chance < 0.95:
                self._consumer_turn(rng.choice(self.consumers))
            else:
                rng.choice(self.producers).turn()
                self.begin_next()
                self._trim(rng.choice(self.epochs[-1].spans))
            if not self.calm:
                self._disturb()
        return self.end()

    def _operator_turn(self, turns: int) -> None:
        if turns in self._change_turns:
            self.operator.end_epoch(self._rng.randrange(len(self.world.streams)))
        if turns == self._wrong_turn:
            self._do_wrong(self._wrong_node)
        if turns == self._trim_turn and self._away is not None:
            self._trim_without(self._away)
        if self._wrong_turn >= 0 and turns == self._recover_turn:
            self.operator.recover(self._wrong_node)

    def _do_wrong(self, node: int) -> None:
        """Do what a recovery must mend: a wrong freeze, a wrong relay, or a collector is away."""
        span = self.epochs[-1].spans[node]
        if self._wrong_kind == 1 and self.operator.write_wrong_relay(node):
            return
        if self._wrong_kind == 2 and span.parent is not None:
            self._away = span
            for instance in self._instances_of(span):
                instance.asleep_until = self.world.now + 2 * LATE_TURNS
            return
        self.operator.write_wrong_freeze(node)

    def _instances_of(self, span: TicketSpan) -> list[TicketCollectorProcess]:
        return [instance for instance in self.collectors if instance.span is span]

    def _trim_without(self, away: TicketSpan) -> None:
        """Let retention overtake a collector, which then comes back."""
        assert away.parent is not None
        others = [instance for instance in self.collectors if instance.span is not away]
        if away.parent in self.epochs[-1].spans:
            below = needed_from(away.parent, self.epochs, others, self.consumers)
            remove_with_messages(away.parent, below)
        for instance in self._instances_of(away):
            instance.asleep_until = 0

    def _disturb(self) -> None:
        if self._rng.random() < 0.004:
            hide_messages(self.world)
        if self._rng.random() < 0.004:
            false_checkpoint(self.world, self._rng.choice(self.epochs[-1].spans))
        if self._rng.random() < 0.005:
            surplus_ticket(self.world, self.epochs, self._rng.randrange(len(self.world.streams)))

    def _multicast(self) -> None:
        rng = self._rng
        self.multicasts += 1
        dies = not self.calm and rng.random() < 0.05
        rng.choice(self.producers).multicast(rng.choice(self._busy_logs), dies=dies)

    def _collector_turn(self, instance: TicketCollectorProcess) -> None:
        rng, world = self._rng, self.world
        if not self.calm:
            chance = rng.random()
            if chance < 0.01:
                world.faults["collector restarted"] += 1
                instance.restart()
                return
            if chance < 0.02:
                world.faults["collector stalled"] += 1
                instance.asleep_until = world.now + rng.randint(10, 600)
        instance.turn()

    def _consumer_turn(self, consumer: TicketReaderProcess) -> None:
        if self._rng.random() < 0.01:
            consumer.restart()
        consumer.turn()

    def begin_next(self) -> None:
        """Begin the next epoch if the last one has ended."""
        following = self.operator.begin_next()
        if following is not None:
            self._begin(following, self.epochs[-2])
            if self.calm:
                self._surprise()
        self.operator.restore()

    def _surprise(self) -> None:
        """Let producers that have tickets to write learn of the new epoch."""
        for producer in self.producers:
            for log in [*range(len(self.world.logs))] * 2:
                producer.multicast(log, dies=False)
            producer.turn()

    def _trim(self, span: TicketSpan) -> None:
        """Let retention remove what nobody needs who starts anew at the newest checkpoint."""
        below = needed_from(span, self.epochs, self.collectors, self.consumers)
        span.kept_from = max(span.kept_from, below)

    def count(self, totals: TicketTotals) -> None:
        """Add this schedule's figures."""
        totals.schedules += 1
        totals.multicasts += self.multicasts
        totals.deliveries += sum(len(consumer.delivered) for consumer in self.consumers)
        totals.skips += self.world.skips
        totals.faults.update(self.world.faults)
        totals.epochs += len(self.epochs)
        for span in self.spans():
            stream = TicketStream(span.shape)
            totals.restored += len(span.owed)
            totals.checkpoints += len(span.pointers)
            totals.removed += span.kept_from - span.shape.first if span.kept_from else 0
            for offset in range(stream.offset_next, len(span.records)):
                judged = stream.read(offset, span.records[offset])
                if isinstance(judged, NotCounted):
                    totals.uncounted[judged.name.lower()] += 1
            totals.corrections += sum(stream.state.corrections.values())


def simulate(
    first: int, count: int, *, progress: Callable[[int], None] | None = None
) -> TicketTotals:
    """Run these seeds, up to the first violation."""
    totals = TicketTotals()
    for seed in range(first, first + count):
        run = TicketSimulation(seed)
        try:
            violation = run.run()
        except (AssertionError, LookupError, struct.error) as wrong:
            violation = f"assertion: {wrong}"
        run.count(totals)
        trace = repr((run.world.logs, run.world.streams)).encode()
        totals.digest ^= int.from_bytes(hashlib.blake2b(trace, digest_size=8).digest())
        if violation:
            totals.violation, totals.seed = violation, seed
            break
        if progress is not None:
            progress(seed)
    return totals
