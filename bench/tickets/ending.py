"""How a schedule of tickets ends: the faults end, all comes to rest, and the judge looks at it.

liveness    everything stored is delivered, holes are filled, also while all logs grow without a
pause, while a transaction is open, and without any further message
not late    no log has a debt, and its next ticket orders exactly its next message
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random

from bench.tickets.epochs import TicketEpoch, TicketSpan, says_something
from bench.tickets.judge import disagreement, wrong_checkpoint
from bench.tickets.operator import TicketOperator
from bench.tickets.processes import (
    TICK_TURNS,
    TicketCollectorProcess,
    TicketProducerProcess,
    TicketReaderProcess,
)
from bench.tickets.world import LATE_TURNS, REMOVED, UNSEEN, TicketWorld
from multicast.tickets.balance import WINDOW_TICKS
from multicast.tickets.encoding import OwnRecord, Ticket, encode

CALM_ROUNDS = 6  # for a collector to restart its appends, and an epoch to end
# Half a tick each: three windows, and the end of the epoch.
BUSY_ROUNDS = 6 * WINDOW_TICKS + 8
ROUNDS_MAX = 400  # after the faults, of a tick each
HELD_ROUNDS = 6  # more than levels and epochs, and than a collector takes to hold a log
QUIET_ROUNDS = 2 * WINDOW_TICKS + 2  # a window ends, its correction is read, and another ends


class TicketEnding(ABC):
    """The end of a schedule; `TicketSimulation` is what comes before it."""

    world: TicketWorld
    epochs: list[TicketEpoch]
    producers: list[TicketProducerProcess]
    collectors: list[TicketCollectorProcess]
    consumers: list[TicketReaderProcess]
    operator: TicketOperator
    calm: bool
    _rng: Random
    _telling: dict[int, tuple[int, int]]  # of streams: records, and how many of them say something
    _stays_busy: bool
    _ends_busy: bool

    def end(self) -> str:
        """End the faults, and give the violation, or ""."""
        self._end_faults()
        return (
            (self._recover_while_busy() if self._stays_busy else self._deliver_all())
            or self._come_to_rest()
            or ("" if self.calm else self._hang_transaction())
            or self._judge()
            or self._judge_next_ticket()
        )

    @abstractmethod
    def begin_next(self) -> None:
        """Begin the next epoch if the last one has ended."""

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
        self.begin_next()
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
        if self._ends_busy:
            self.operator.end_epoch(rng.randrange(len(world.streams)))
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
        if self.operator.ending:
            return "liveness: the epoch does not end while all logs grow without a pause"
        for span in self.epochs[-1].spans:
            state = span.whole()[0].state
            for log, debt in state.debts.items():
                position, end = state.positions[log], len(world.logs[log])
                if debt or position != end:
                    return (
                        f"not late: log {log} grows without a pause, ends at {end}, is ordered up "
                        f"to {position} and has a debt of {debt}"
                    )
        return ""

    def _hang_transaction(self) -> str:
        """Let a transaction stay open: messages of all other logs must be delivered meanwhile."""
        rng, world = self._rng, self.world
        hung = rng.randrange(len(world.logs))
        end = world.transaction(hung, ["hung"], commits=True)
        producer = TicketProducerProcess(world, self.epochs, "beside", tickets=True)
        for _ in range(HELD_ROUNDS):
            producer.turn()
            self._calm_round(TICK_TURNS)
        for _ in range(2):
            for log in range(len(world.logs)):
                producer.multicast(log, dies=False)
            self._calm_round(TICK_TURNS)
        for _ in range(HELD_ROUNDS):
            self._calm_round(TICK_TURNS)
        for consumer in self.consumers:
            for log in {*consumer.interest} - {hung}:
                if self._delivered(consumer, log) != self._stored(log):
                    return f"held: an open transaction in log {hung} delays messages of log {log}"
        end()
        return self._release(hung) or self._come_to_rest()

    def _release(self, log: int) -> str:
        """Let a log be ordered again whose transaction has ended: it must have no debt then.

        With one, its next tickets would order nothing until it is corrected.
        """
        for _ in range(HELD_ROUNDS):
            self._calm_round(TICK_TURNS)
            epoch = self.epochs[-1]
            state = epoch.spans[epoch.tree.top(log)].whole()[0].state
            if log not in state.held and state.positions[log] >= len(self.world.logs[log]):
                return f"held: log {log} is released with a debt" if state.debts[log] else ""
        return f"held: log {log} is not released"

    def _deliver_all(self) -> str:
        """Come to rest without any further message, which could order what has been left.

        The last message of each log has no ticket, and the record that orders it may be lost.
        """
        world = self.world
        if not self.calm:
            for log in range(len(world.logs)):
                if log not in world.hidden_from:
                    world.logs[log].append("last without a ticket")
            world.fault_share = 0.5
            self._calm_round(TICK_TURNS)
            self._calm_round(TICK_TURNS)
            world.end_faults()
            world.pass_time(LATE_TURNS)
        return self._come_to_rest() or self._judge_delivered()

    def _stored(self, log: int) -> list[tuple[int, int]]:
        records = enumerate(self.world.logs[log])
        return [(log, place) for place, value in records if value not in UNSEEN]

    def _delivered(self, consumer: TicketReaderProcess, log: int) -> list[tuple[int, int]]:
        """Give what a consumer has delivered of a log, without what retention has removed."""
        kept = self.world.logs[log]
        return [
            (where, place)
            for where, place in consumer.delivered
            if where == log and kept[place] != REMOVED
        ]

    def _come_to_rest(self) -> str:
        quiet = 0
        for _ in range(ROUNDS_MAX):
            before = self._progress()
            self._calm_round(TICK_TURNS)
            quiet = quiet + 1 if self._progress() == before else 0
            if quiet > QUIET_ROUNDS:
                return ""
        return f"liveness: the system does not come to rest in {ROUNDS_MAX} rounds"

    def _progress(self) -> tuple[int, ...]:
        world = self.world
        sizes = [len(records) for records in world.logs]
        for node, records in enumerate(world.streams):
            looked_at, telling = self._telling.get(node, (0, 0))
            telling += sum(map(says_something, records[looked_at:]))
            self._telling[node] = len(records), telling
            sizes.append(telling)
        return (*sizes, sum(len(consumer.delivered) for consumer in self.consumers))

    # -- the judge --------------------------------------------------------------------------

    def _judge_delivered(self) -> str:
        for number, consumer in enumerate(self.consumers):
            for log in consumer.interest:
                own, stored = self._delivered(consumer, log), self._stored(log)
                if own != stored:
                    return (
                        f"liveness: consumer {number} delivered {_places(own)} of log {log}, which "
                        f"holds {_places(stored)}"
                    )
        return ""

    def _judge(self) -> str:
        if wrong := self._judge_delivered():
            return wrong
        logs = enumerate(self.world.logs)
        removed = {
            (log, place)
            for log, records in logs
            for place, value in enumerate(records)
            if value == REMOVED
        }
        if wrong := disagreement(self.consumers, removed):
            return wrong
        if wrong := wrong_checkpoint(self.spans(), self.epochs[-1].spans):
            return wrong
        if self.calm and (wrong := self._judge_retained()):
            return wrong
        if self.calm and self.world.skips:
            return f"skips: {self.world.skips} skips, though there was no fault"
        return ""

    def _judge_retained(self) -> str:
        """Check that without faults each message of a stream that goes on has its ticket."""
        for span in self.epochs[0].spans:
            if span not in self.epochs[-1].spans:
                continue
            for log, count in span.whole()[0].counted.items():
                stored = len(self.world.logs[log])
                if count != stored:
                    return f"tickets: there are {count} for the {stored} messages of log {log}"
        return ""

    def spans(self) -> list[TicketSpan]:
        """Give the streams of all epochs, each once."""
        return list(dict.fromkeys(span for epoch in self.epochs for span in epoch.spans))

    def _judge_next_ticket(self) -> str:
        """Check that each log's next ticket orders exactly its next message, without collectors."""
        epoch = self.epochs[-1]
        if self.operator.ending:
            return "liveness: the epoch does not end"
        for log, records in enumerate(self.world.logs):
            span = epoch.spans[epoch.tree.top(log)]
            stream = span.fresh()
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
