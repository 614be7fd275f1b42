"""Simulated producers: they multicast, with tickets or without, repeat what failed, and die.

Producers repeat a multicast until it is acknowledged, so a message with an unknown outcome may be
stored twice, under two IDs. One with tickets appends as the product does, by
`multicast.producing.ticketing`; one without stands for any Kafka client.
"""

from __future__ import annotations

from functools import partial

from bench.simulation.judge import SENT, Judge
from bench.simulation.requests import CutShort, SimulatedBrokers
from bench.simulation.schedule import Fate
from bench.simulation.world import World
from multicast.conditional.condition import LogPosition, expect_header, nothing_after
from multicast.control import log_partition
from multicast.drivers.protocol import Appended, AppendOutcome, Headers
from multicast.messages import covered_header
from multicast.producing.ticketing import TicketingAppender
from topology.tree import Log

# How many messages a multicast has. So many hundred are sent only where none of them is stored.
_COUNTS = (1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 5, 0)
_MANY = 200


class SimulatedProducer:
    """One producer with its own, perhaps old, view of the plan. With `tickets` it writes some."""

    keeps_order = False  # its messages are delivered in the order in which it sent them

    def __init__(
        self, world: World, brokers: SimulatedBrokers, judge: Judge, name: str, *, tickets: bool
    ) -> None:
        self.name = name
        self.world = world
        self.view = world.view()
        self.again: list[tuple[str, ...]] = []  # destination sets of what was not acknowledged
        self._judge = judge
        self._brokers = brokers
        # Multicasts without an outcome: log, destination set, and number of messages.
        self._waiting: dict[int, tuple[Log, tuple[str, ...], int]] = {}
        self._sent = 0
        self._appender: TicketingAppender | None = None
        if tickets:
            self._appender = TicketingAppender(
                self.view.state,
                brokers.driver.appender,
                monotonic=lambda: world.now / 1000,
                writer=world.writer(),
            )

    def refresh(self) -> None:
        """Read the control topic, and learn of a new epoch."""
        state = self.view.refresh()
        if self._appender is not None:
            self._appender.learn(state)

    def multicast(
        self, to: tuple[str, ...], bits: int, *, count: int = 1, cut: CutShort | None = None
    ) -> None:
        """Multicast; with `cut` the producer dies meanwhile, and is of no use any more."""
        log, to = self.covered(to)
        headers: Headers = () if to == log.to else (covered_header(log.name, to),)
        if bits >> 38 & 7 == 1:
            headers = (*headers, self._condition(log, bits >> 41))
            self.world.fault("conditional message")
        value = None if bits & 0x3F0000 == 0 else b"%d" % self.world.stats.multicasts
        if self._appender is None:
            self._append_plainly(log, to, value, headers, bits)
            return
        if count == 0:
            refused = cut is None and self.world.fate(bits) is Fate.REFUSED
            refused = refused and not self.world.some_away
            count = _MANY if cut is CutShort.TICKETS or refused else 1
        self._sent += 1
        if self.keeps_order:
            headers = (*headers, (SENT, f"{self.name} {self._sent}".encode()))
        self._waiting[self._sent] = log, to, count
        self._brokers.bits, self._brokers.cut = bits, cut
        heard = partial(self._heard_of, self._sent)
        self._appender.append_all(
            log_partition(log), [value] * count, headers=[headers] * count, done=heard
        )
        self._brokers.cut = None
        if cut is not None:
            self.die(cut.value)

    def covered(self, to: tuple[str, ...]) -> tuple[Log, tuple[str, ...]]:
        """Give the log of a set, or of its first partition, after the set itself."""
        log = self.view.state.plan().cover(to)
        if log is None:  # the set was declared by a newer plan, or by one that lost to its rival
            self.refresh()
            log = self.view.state.plan().cover(to)
        if log is None:
            to = to[:1]
            log = self.view.state.plan().cover(to)
            assert log is not None
        return log, to

    def die(self, how: str) -> None:
        """Hear nothing more: nobody knows what becomes of what has no outcome."""
        self.world.fault(f"producer died: {how}")
        for _, to, count in self._waiting.values():
            for _ in range(count):
                self._judge.acknowledged(self.name, to, "unknown", None)
        self._waiting.clear()

    def _heard_of(self, number: int, first: int, count: int, outcome: AppendOutcome) -> None:
        del first
        if number in self._waiting:
            log, to, left = self._waiting.pop(number)
            if left > count:
                self._waiting[number] = log, to, left - count
            self._heard(log, to, count, outcome)

    def _condition(self, log: Log, bits: int) -> tuple[str, bytes]:
        """Expect that nothing comes from about the log's present end on."""
        end = self.world.next_offset(log_partition(log))
        return expect_header(nothing_after(LogPosition(log.name, max(0, end - (bits & 1)))))

    def _append_plainly(
        self, log: Log, to: tuple[str, ...], value: bytes | None, headers: Headers, bits: int
    ) -> None:
        fate = self.world.append(
            log_partition(log),
            value,
            bits=bits,
            headers=headers,
            done=lambda outcome: self._heard(log, to, 1, outcome),
        )
        if fate is Fate.DOUBLED:
            self._judge.acknowledged(self.name, to, "unknown", None)

    def _heard(self, log: Log, to: tuple[str, ...], count: int, outcome: AppendOutcome) -> None:
        if not self.world.same_topic(log.topic):
            # The offset is no message ID of this history, but some consumer may have delivered it.
            for _ in range(count):
                self._judge.acknowledged(self.name, to, "unknown", None)
            return
        if isinstance(outcome, Appended):
            for number in range(count):
                message_id = f"{log.name}:{outcome.offset + number}"
                self._judge.acknowledged(self.name, to, "accepted", message_id)
                self.world.note("accepted", message_id)
            return
        outcome_name = "failed" if outcome.error.definite else "unknown"
        for _ in range(count):
            self._judge.acknowledged(self.name, to, outcome_name, None)
        self.again.append(to)


class Producers:
    """The producers. One that died is replaced by another one."""

    def __init__(self, world: World, judge: Judge) -> None:
        self._world = world
        self._judge = judge
        self._made = 0
        self.brokers = SimulatedBrokers(world)
        self._all = [self._make(tickets=tickets) for tickets in world.schedule.tickets]

    def _make(self, *, tickets: bool) -> SimulatedProducer:
        self._made += 1
        name = f"p{self._made}"
        return SimulatedProducer(self._world, self.brokers, self._judge, name, tickets=tickets)

    def turn(self, bits: int) -> None:
        """Multicast to a destination set of the schedule; perhaps repeat a failed one first."""
        self.brokers.turn()
        schedule = self._world.schedule
        number = bits % len(self._all)
        producer = self._all[number]
        if bits >> 2 & 3 == 0:
            producer.refresh()
        if producer.again and bits >> 4 & 1:
            producer.multicast(producer.again.pop(0), bits >> 16)
        drawn = schedule.destinations
        self._world.stats.multicasts += 1
        tickets = schedule.tickets[number]
        # The bits of which `crash_mask` leaves few, as with all other processes.
        dies = tickets and schedule.crash_mask != -1 and not bits >> 40 & schedule.crash_mask
        cut = list(CutShort)[bits >> 50 & 1] if dies else None
        producer.multicast(
            drawn[(bits >> 5 & 0x3FF) % len(drawn)],
            bits >> 20,
            count=_COUNTS[bits >> 52 & 15],
            cut=cut,
        )
        if cut is not None:
            self._all[number] = self._make(tickets=tickets)

    def begin_anew(self) -> None:
        """End all producers, whose control topic has lost its end, and begin others."""
        for number, producer in enumerate(self._all):
            producer.die("begins anew")
            self._all[number] = self._make(tickets=self._world.schedule.tickets[number])

    def calm_turn(self) -> None:
        """Repeat every multicast that was not acknowledged."""
        self.brokers.turn()
        for producer in self._all:
            waiting, producer.again = producer.again, []
            producer.refresh()
            for to in waiting:
                producer.multicast(to, 0)

    def beside(self) -> SimulatedProducer:
        """Give a further producer with tickets, which no schedule draws."""
        return self._make(tickets=True)
