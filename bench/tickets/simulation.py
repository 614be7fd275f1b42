"""Random schedules of the ticket rule in virtual time, and their judge.

    safety      no two consumers disagree on the order of two messages, no cycle over all consumers,
                nothing is delivered twice or in another order than its log's
    liveness    once the faults have ended, everything stored is delivered, and holes are filled
    not late    afterwards no log has a debt, and its next ticket orders exactly its next message,
                without a collector

One seed decides everything. Without faults no collector may write a skip.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from bench.tickets.collector import WINDOW_TICKS
from bench.tickets.processes import (
    TICK_TURNS,
    TicketCollectorProcess,
    TicketEpoch,
    TicketProducerProcess,
    TicketReaderProcess,
    surplus_ticket,
)
from bench.tickets.rule import NotCounted, OwnRecord, Ticket, TicketStream, encode
from bench.tickets.world import LATE_TURNS, SKIP, TicketWorld, draw_tree

MULTICASTS = 30
CALM_ROUNDS = 6  # for a collector to restart its appends, and an epoch to end
# Half a tick each: three windows, and the end of the epoch.
BUSY_ROUNDS = 6 * WINDOW_TICKS + 8
ROUNDS_MAX = 400  # after the faults, of a tick each
QUIET_ROUNDS = 2 * WINDOW_TICKS + 2  # a window ends, its correction is read, and another ends


@dataclass
class TicketTotals:
    """Sums over schedules."""

    schedules: int = 0
    multicasts: int = 0
    deliveries: int = 0
    skips: int = 0
    epochs: int = 0
    corrections: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)
    violation: str = ""
    seed: int = -1
    digest: int = 0  # sum of the schedules' digests


class TicketSimulation:
    """One schedule."""

    def __init__(self, seed: int) -> None:
        rng = self._rng = Random(seed)  # noqa: S311 - repeatable, not secret
        self.calm = seed % 8 == 1
        self._stays_busy = seed % 3 > 0
        tree = draw_tree(rng)
        logs = 1 + max(log for bag in tree.bags for log in bag)
        self.world = TicketWorld(
            rng,
            [[] for _ in range(logs)],
            [[] for _ in tree.bags],
            fault_share=0.0 if self.calm else rng.choice((0.02, 0.1, 0.3)),
            delay_max=rng.choice((1, 3)) if self.calm else rng.choice((1, 5, 40)),
        )
        self.epochs = [TicketEpoch(1, tree, [0] * logs, [0] * len(tree.bags))]
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
        self._begin(self.epochs[0])
        self.consumers = [
            TicketReaderProcess(self.world, self.epochs, self._interest(bag))
            for bag in tree.bags
            for _ in range(rng.choice((1, 2)))
            if bag
        ]
        self.multicasts = 0
        self._change_turn = rng.choice((-1, rng.randrange(50, 350)))
        self._busy_logs = [rng.randrange(logs) for _ in range(3)] + list(range(logs))

    def _interest(self, bag: Sequence[int]) -> tuple[int, ...]:
        if self._rng.random() < 0.6:
            return tuple(bag)
        return tuple(sorted(self._rng.sample(bag, self._rng.randint(1, len(bag)))))

    def _begin(self, epoch: TicketEpoch) -> None:
        for node in range(len(epoch.tree.bags)):
            self.collectors += [
                TicketCollectorProcess(self.world, epoch, node, self._patience)
                for _ in range(self._instances)
            ]

    # -- the schedule -----------------------------------------------------------------------

    def run(self) -> str:
        """Run; give the violation, or ""."""
        rng, world = self._rng, self.world
        turns = 0
        while self.multicasts < MULTICASTS:
            turns += 1
            world.pass_time(1)
            if turns == self._change_turn:
                self._end_epoch()
            chance = rng.random()
            if chance < 0.08:
                self._multicast()
            elif chance < 0.5:
                self._collector_turn(rng.choice(self.collectors))
            elif chance < 0.95:
                rng.choice(self.consumers).turn()
            else:
                rng.choice(self.producers).turn()
                self._begin_next()
            if not self.calm and rng.random() < 0.005:
                surplus_ticket(world, self.epochs, rng.randrange(len(world.streams)))
        self._end_faults()
        return (
            (self._recover_while_busy() if self._stays_busy else "")
            or self._come_to_rest()
            or self._judge()
            or self._judge_next_ticket()
        )

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

    def _end_epoch(self) -> None:
        """Write where the logs are to end, as `topology apply` writes the markers."""
        epoch = self.epochs[-1]
        epoch.markers = {log: len(records) for log, records in enumerate(self.world.logs)}
        self._next_firsts = [len(stream) for stream in self.world.streams]

    def _begin_next(self) -> None:
        """Begin the next epoch once all streams are frozen; all agree on the ends of the logs."""
        epoch = self.epochs[-1]
        if epoch.markers is None or epoch.ends is not None:
            return
        ends: dict[int, int] = {}
        for node in range(len(epoch.tree.bags)):
            stream = self._stream(epoch, node)
            if not stream.state.frozen:
                return
            for log, end in stream.state.positions.items():
                assert ends.setdefault(log, end) == end, "frozen streams disagree on a log's end"
        epoch.ends = [ends[log] for log in range(len(self.world.logs))]
        tree = epoch.tree.rerooted(self._rng.randrange(len(epoch.tree.bags)))
        following = TicketEpoch(epoch.number + 1, tree, epoch.ends, self._next_firsts)
        self.epochs.append(following)
        self._begin(following)

    def _stream(self, epoch: TicketEpoch, node: int) -> TicketStream:
        stream = epoch.stream(node)
        records = self.world.streams[node]
        for offset in range(stream.offset_next, len(records)):
            stream.read(offset, records[offset])
        return stream

    def _end_faults(self) -> None:
        """Let everything that is late arrive, and the epoch end."""
        self.world.end_faults()
        for instance in self.collectors:
            instance.asleep_until = 0
        self.world.pass_time(LATE_TURNS)
        for _ in range(CALM_ROUNDS):
            self._calm_round(TICK_TURNS)

    def _calm_round(self, turns: int) -> None:
        """Give each process a turn in which it does all its work."""
        self.world.pass_time(turns)
        self._begin_next()
        for producer in self.producers:
            producer.turn()
        for instance in self.collectors:
            instance.turn(thorough=True)
        for consumer in self.consumers:
            consumer.turn(thorough=True)

    def _recover_while_busy(self) -> str:
        """Let all logs grow without a pause: debts and surplus must be corrected all the same.

        One producer dies after a ticket, and one before it; then each message has its ticket.
        """
        rng, world = self._rng, self.world
        producer = TicketProducerProcess(world, self.epochs, "busy", tickets=True)
        for log in range(len(world.logs)):
            producer.turn()
            producer.multicast(log, dies=not self.calm and rng.random() < 0.5)
        for _ in range(BUSY_ROUNDS):
            producer.turn()
            for log in range(len(world.logs)):
                producer.multicast(log, dies=False)
            self._calm_round(TICK_TURNS // 2)
        world.pass_time(0)
        for node in range(len(world.streams)):
            state = self._stream(self.epochs[-1], node).state
            for log, debt in state.debts.items():
                position, end = state.positions[log], len(world.logs[log])
                if debt or position != end:
                    return (
                        f"not late: log {log} grows without a pause, ends at {end}, is ordered up "
                        f"to {position} and has a debt of {debt}"
                    )
        return ""

    def _come_to_rest(self) -> str:
        quiet = 0
        for _ in range(ROUNDS_MAX):
            before = self._progress()
            self._calm_round(TICK_TURNS)
            quiet = quiet + 1 if self._progress() == before and not self.world.waiting else 0
            if quiet > QUIET_ROUNDS:
                return ""
        return f"liveness: the system does not come to rest in {ROUNDS_MAX} rounds"

    def _progress(self) -> tuple[int, ...]:
        world = self.world
        sizes = [len(records) for records in world.logs]
        sizes += [len(records) for records in world.streams]
        return (*sizes, sum(len(consumer.delivered) for consumer in self.consumers))

    # -- the judge --------------------------------------------------------------------------

    def _judge(self) -> str:
        stored = [
            [(log, place) for place, value in enumerate(records) if value != SKIP]
            for log, records in enumerate(self.world.logs)
        ]
        for number, consumer in enumerate(self.consumers):
            for log in consumer.interest:
                own = [entry for entry in consumer.delivered if entry[0] == log]
                if own != stored[log]:
                    return (
                        f"liveness: consumer {number} delivered {_places(own)} of log {log}, which "
                        f"holds {_places(stored[log])}"
                    )
        for number, consumer in enumerate(self.consumers):
            for other in self.consumers[:number]:
                common = {*consumer.interest} & {*other.interest}
                one, two = (
                    [entry for entry in seen.delivered if entry[0] in common]
                    for seen in (consumer, other)
                )
                if one != two:
                    return f"order: two consumers disagree on logs {sorted(common)}: {one} {two}"
        if self._cyclic():
            return "order: the deliveries of all consumers form a cycle"
        if self.calm and self.world.skips:
            return f"skips: {self.world.skips} skips, though there was no fault"
        return ""

    def _cyclic(self) -> bool:
        """Whether the union of the consumers' orders has a cycle."""
        after: dict[tuple[int, int], set[tuple[int, int]]] = {}
        before: Counter[tuple[int, int]] = Counter()
        for consumer in self.consumers:
            for entry in consumer.delivered:
                after.setdefault(entry, set())
            for first, second in zip(consumer.delivered, consumer.delivered[1:], strict=False):
                if second not in after[first]:
                    after[first].add(second)
                    before[second] += 1
        free = [entry for entry in after if not before[entry]]
        for entry in free:
            for other in sorted(after[entry]):
                before[other] -= 1
                if not before[other]:
                    free.append(other)
        return len(free) < len(after)

    def _judge_next_ticket(self) -> str:
        """Check that each log's next ticket orders exactly its next message, without collectors."""
        epoch = self.epochs[-1]
        if epoch.markers is not None and epoch.ends is None:
            return "liveness: the epoch does not end"
        for log, records in enumerate(self.world.logs):
            node = epoch.tree.top(log)
            stream = self._stream(epoch, node)
            records.append("last")
            raw = encode(stream.shape.tag, OwnRecord((Ticket(log, 1, 0),)))
            stream.read(stream.offset_next, raw)
            position, end = stream.state.positions[log], len(records)
            if position != end:
                late = "late" if position < end else "a hole"
                return (
                    f"not late: log {log} ends at {end}, and the ticket of its last message orders "
                    f"up to {position}: {late}"
                )
        return ""


def _places(entries: Sequence[tuple[int, int]]) -> list[int]:
    return [place for _, place in entries]


def simulate(
    first: int, count: int, *, progress: Callable[[int], None] | None = None
) -> TicketTotals:
    """Run these seeds, up to the first violation."""
    totals = TicketTotals()
    for seed in range(first, first + count):
        run = TicketSimulation(seed)
        try:
            violation = run.run()
        except AssertionError as wrong:
            violation = f"assertion: {wrong}"
        totals.schedules += 1
        totals.multicasts += run.multicasts
        totals.deliveries += sum(len(consumer.delivered) for consumer in run.consumers)
        totals.skips += run.world.skips
        totals.faults.update(run.world.faults)
        for epoch in run.epochs:
            for node, records in enumerate(run.world.streams):
                stream = epoch.stream(node)
                for offset in range(stream.offset_next, len(records)):
                    judged = stream.read(offset, records[offset])
                    if isinstance(judged, NotCounted):
                        totals.uncounted[judged.name.lower()] += 1
                totals.corrections += sum(stream.state.corrections.values())
        totals.epochs += len(run.epochs)
        trace = repr((run.world.logs, run.world.streams)).encode()
        totals.digest ^= int.from_bytes(hashlib.blake2b(trace, digest_size=8).digest())
        if violation:
            totals.violation, totals.seed = violation, seed
            break
        if progress is not None:
            progress(seed)
    return totals
