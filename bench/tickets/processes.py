"""The simulated processes of tickets: producers, instances of collectors, consumers.

Each has `turn`, in which it reads some of what is new and carries out what its core wants; with
`thorough` it reads all. The cores are those of this package; the faults are drawn here and by
`TicketWorld`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from bench.tickets.delivery import TicketDelivered, TicketDelivery
from bench.tickets.epochs import Epochs, TicketSpan
from bench.tickets.world import SKIP, UNSEEN, AppendEnd, Outcome, TicketWorld
from multicast.tickets.balance import BalanceLimits
from multicast.tickets.collector import (
    FillHole,
    NameCheckpoint,
    TicketCollector,
    TicketLimits,
    WriteRecord,
)
from multicast.tickets.encoding import OwnRecord, Ticket, encode
from multicast.tickets.producer import TicketBook

TICK_TURNS = 60  # a collector's tick
BALANCE = BalanceLimits(urgent=25, slack=1, stale=1)  # in turns: busy logs' pauses are longer
CHECKPOINT_TURNS = 150
READ_MAX = 4  # records of a partition in one hasty turn


class TicketProducerProcess:
    """A producer; one that does not write tickets stands for any Kafka client."""

    def __init__(self, world: TicketWorld, epochs: Epochs, name: str, *, tickets: bool) -> None:
        self._world = world
        self._epochs = epochs
        self.name = name
        self.tickets = tickets
        self._epoch = 0
        self._books: dict[int, TicketBook] = {}
        self._sent = 0
        self._life = 0  # a producer that died is another one from then on

    def multicast(self, log: int, *, dies: bool) -> None:
        """Send a message and its ticket, in either order; perhaps die between."""
        self._sent += 1
        value = f"{self.name}.{self._sent}"
        if not self.tickets:
            self._world.append(self._world.logs[log], value, lambda _: None)
            return
        node = self._epochs[self._epoch].tree.top(log)
        book = self._books.setdefault(node, TicketBook())
        book.started(log)
        ticket_first = self._world.rng.random() < 0.5
        for step in (ticket_first, not ticket_first):
            if step:
                self._write_ticket(node)
            else:
                self._append(log, value, book)
            if dies:
                self._world.faults["producer died between"] += 1
                self._books.clear()
                self._life += 1
                return

    def turn(self) -> None:
        """Write what tickets are owed; learn of a new epoch."""
        for node in list(self._books):
            self._write_ticket(node)
        if self._epoch + 1 < len(self._epochs):
            before, after = self._epochs[self._epoch : self._epoch + 2]
            self._epoch += 1
            for node, span in enumerate(after.spans):
                if span is not before.spans[node]:
                    # Its tickets are void now; a collector orders the messages.
                    self._books.pop(node, None)

    def _append(self, log: int, value: str, book: TicketBook) -> None:
        def done(outcome: Outcome) -> None:
            offset = outcome if isinstance(outcome, int) else None
            book.settled(log, offset, refused=outcome is AppendEnd.REFUSED)

        self._world.append(self._world.logs[log], value, done)

    def _write_ticket(self, node: int) -> None:
        book = self._books.get(node)
        record = None if book is None else book.record_due()
        if book is None or record is None:
            return

        def done(outcome: Outcome, book: TicketBook = book) -> None:
            book.ticket_settled(refused=outcome is AppendEnd.REFUSED)
            self._write_ticket(node)

        tag = self._epochs[self._epoch].spans[node].shape.tag
        self._world.append(self._world.streams[node], encode(tag, record), done)


@dataclass
class TicketCollectorProcess:
    """An instance of a collector of one span; more than one may run."""

    world: TicketWorld
    span: TicketSpan
    patience: int
    core: TicketCollector = field(init=False)
    asleep_until: int = 0
    trimmed: bool = False  # it needs records of its parent's stream that are gone, and has stopped
    _ticked: int = 0
    _life: int = 0

    def __post_init__(self) -> None:
        """Start."""
        self.restart()

    def restart(self) -> None:
        """Start anew, from a checkpoint if there is one; its appends in flight may still land."""
        self._life += 1
        span = self.span
        own = span.open(len(span.records))
        above = None if span.parent is None else span.parent.open(own.state.parent_next)
        limits = TicketLimits(
            self.patience,
            6 * TICK_TURNS,
            CHECKPOINT_TURNS,
            checkpoint_records=40,
            balance=BALANCE,
        )
        self.core = TicketCollector(own, above, limits, self.world.now)

    def turn(self, *, thorough: bool = False) -> None:
        """Read, tick if it is time, and carry out what the core wants."""
        world, span = self.world, self.span
        if world.now < self.asleep_until or self._is_trimmed():
            return
        core = self.core
        first, end = core.own.offset_next, len(span.records)
        for offset in self._range(first, end, thorough=thorough):
            core.own_read(offset, span.read(offset), world.now)
        if core.relay is not None and span.parent is not None:
            first, end = core.relay.parent.offset_next, len(span.parent.records)
            for offset in self._range(first, end, thorough=thorough):
                core.parent_read(offset, span.parent.read(offset))
            assert not core.relay.strayed or span.may_stray, "a stream has strayed"
        for log in core.own.shape.own:
            core.log_end(log, world.stable_end(log), world.now)
        if span.markers is not None:
            core.freeze_after(span.markers)
        if world.now >= self._ticked + TICK_TURNS:
            self._ticked = world.now
            core.tick(world.now, {log: len(world.logs[log]) for log in core.own.shape.own})
        self._carry_out()

    def _is_trimmed(self) -> bool:
        """Whether records are gone that are needed; a newer checkpoint may do without them."""
        if self._misses_records():
            self.world.faults["trimmed"] += not self.trimmed
            self.restart()
            self.trimmed = self._misses_records()
        return self.trimmed

    def _misses_records(self) -> bool:
        core, parent = self.core, self.span.parent
        if core.own.offset_next < self.span.kept_from:
            return True
        if core.relay is None or parent is None:
            return False
        return core.relay.parent.offset_next < parent.kept_from

    def _carry_out(self) -> None:
        for action in self.core.step(self.world.now):
            match action:
                case FillHole():
                    self._fill(action)
                case WriteRecord():
                    self._write(action)
                case NameCheckpoint(offset):
                    if offset not in self.span.pointers:
                        self.span.pointers.append(offset)
                        self.span.pointers.sort()

    def _range(self, first: int, end: int, *, thorough: bool) -> range:
        most = end if thorough else first + int(self.world.rng.random() * (READ_MAX + 1))
        return range(first, max(first, min(end, most)))

    def _write(self, action: WriteRecord) -> None:
        life, core = self._life, self.core

        def done(outcome: Outcome) -> None:
            if not isinstance(outcome, int) and life == self._life:
                core.append_failed()

        raw = encode(core.own.shape.tag, action.record)
        self.world.append(self.span.records, raw, done)

    def _fill(self, action: FillHole) -> None:
        world, life, core = self.world, self._life, self.core
        log = world.logs[action.log]

        def done(_: Outcome) -> None:
            if life == self._life:
                if len(log) < action.below:
                    self._fill(action)
                else:
                    core.filled(action.log)

        if len(log) >= action.below:
            core.filled(action.log)
            return
        world.skips += 1
        world.append(log, SKIP, done)


class TicketReaderProcess:
    """A consumer of some logs, over all epochs; it may restart at its cursor."""

    def __init__(self, world: TicketWorld, epochs: Epochs, interest: tuple[int, ...]) -> None:
        self._world = world
        self._epochs = epochs
        self.interest = interest
        self._epoch = -1
        self.core: TicketDelivery
        self.span: TicketSpan
        self._read: dict[int, int] = {}
        self.delivered: list[tuple[int, int]] = []
        self._open()

    def _open(self) -> None:
        self._epoch += 1
        epoch = self._epochs[self._epoch]
        # Any collector that knows all logs will do; another one in each epoch finds more. After a
        # recovery only the same one: others have not ordered the same in the last epoch.
        nodes = [node for node, bag in enumerate(epoch.tree.bags) if {*self.interest} <= {*bag}]
        if any(span.owed for span in epoch.spans):
            nodes = [self.span.node]
        self.span = epoch.spans[self._world.rng.choice(nodes)]
        self.core = TicketDelivery(self.span.open(self.span.shape.first), self.interest)
        starts = {**self.span.shape.own, **self.span.shape.inherited}
        self._read = {log: starts[log] for log in self.interest}

    def restart(self) -> None:
        """Start anew at the cursor, from a checkpoint if there is one before it."""
        self._world.faults["consumer restarted"] += 1
        cursor = self.core.cursor
        self.core = TicketDelivery(self.span.open(cursor.record), self.interest, cursor)
        starts = {**self.span.shape.own, **self.span.shape.inherited}
        self._read = {log: starts[log] for log in self.interest}

    def turn(self, *, thorough: bool = False) -> None:
        """Read something of each partition, and deliver."""
        rng, core, world = self._world.rng, self.core, self._world
        end = len(self.span.records)
        first = core.stream.offset_next
        most = end if thorough else min(end, first + int(rng.random() * (READ_MAX + 1)))
        for offset in range(first, most):
            core.order_read(offset, self.span.read(offset))
        for log in self.interest:
            records = world.logs[log]
            first, end = self._read[log], world.stable_end(log)
            most = end if thorough else first + int(rng.random() * (READ_MAX + 1))
            end = min(end, most)
            if first < end:
                core.payload_read(log, [(place, records[place]) for place in range(first, end)])
                self._read[log] = end
        self._deliver()
        if core.ended:
            last = self._epoch
            while last + 1 < len(self._epochs) and self.span in self._epochs[last + 1].spans:
                last += 1
            if last + 1 < len(self._epochs):
                self._epoch = last
                self._open()

    def _deliver(self) -> None:
        taken: list[TicketDelivered] = self.core.deliver()
        self.delivered += [(log, place) for log, place, item in taken if item not in UNSEEN]


def hide_messages(world: TicketWorld) -> None:
    """Store messages in a transaction, by a producer that writes no tickets for them."""
    rng = world.rng
    log = rng.randrange(len(world.logs))
    if log not in world.hidden_from:
        commits = rng.random() < 0.7
        world.faults["transaction" if commits else "transaction aborted"] += 1
        values = [f"t{world.now}.{number}" for number in range(rng.randint(1, 3))]
        world.later(rng.randint(5, 300), world.transaction(log, values, commits=commits))


def false_checkpoint(world: TicketWorld, span: TicketSpan) -> None:
    """Write a checkpoint with the right mark and a wrong state, as only a wrong program does."""
    world.faults["false checkpoint"] += 1
    true = span.whole()[0].marked
    raw = encode(span.shape.tag, replace(true, parent_next=true.parent_next + 1))
    span.wrong.add(raw)
    span.records.append(raw)


def surplus_ticket(world: TicketWorld, epochs: Epochs, node: int) -> None:
    """Write a ticket for which no message comes, as a mad producer does."""
    span = world.rng.choice(epochs).spans[node]
    if not span.shape.own:
        return
    log = world.rng.choice(sorted(span.shape.own))
    rng = world.rng
    ticket = Ticket(log, rng.randint(0, 3), rng.choice((0, len(world.logs[log]) + 2)))
    world.faults["surplus ticket"] += 1
    raw = encode(span.shape.tag, OwnRecord((ticket,)))
    world.append(span.records, raw, _ignore)


_ignore: Callable[[Outcome], None] = lambda _: None  # noqa: E731
