"""The simulated processes of tickets: producers, instances of collectors, consumers.

Each has `turn`, in which it reads some of what is new and carries out what its core wants; with
`thorough` it reads all. The cores are those of this package; the faults are drawn here and by
`TicketWorld`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bench.tickets.collector import FillHole, TicketCollector, WriteRecord
from bench.tickets.delivery import TicketDelivered, TicketDelivery
from bench.tickets.producer import TicketBook
from bench.tickets.rule import OwnRecord, StreamShape, Ticket, TicketState, TicketStream, encode
from bench.tickets.world import SKIP, AppendEnd, Outcome, TicketTree, TicketWorld

TICK_TURNS = 60  # a collector's tick
REST_TURNS = 25  # longer than what is on its way without faults, shorter than busy logs' pauses
READ_MAX = 4  # records of a partition in one hasty turn


@dataclass
class TicketEpoch:
    """One epoch: its tree, where its logs and streams begin, and (once known) where logs end."""

    number: int
    tree: TicketTree
    starts: list[int]
    stream_firsts: list[int]
    markers: dict[int, int] | None = None
    ends: list[int] | None = None

    def shape(self, node: int) -> StreamShape:
        """Give the shape of a collector's stream."""
        return self.tree.shape(node, self.number, self.starts, self.stream_firsts)

    def stream(self, node: int) -> TicketStream:
        """Open a collector's stream at the epoch's start."""
        return TicketStream(self.shape(node), offset_next=self.stream_firsts[node])


Epochs = list[TicketEpoch]


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
            self._epoch += 1
            self._books.clear()  # their tickets are void now; a collector orders the messages

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

        tag = self._epochs[self._epoch].shape(node).tag
        self._world.append(self._world.streams[node], encode(tag, record), done)


@dataclass
class TicketCollectorProcess:
    """An instance of a collector of one epoch; more than one may run."""

    world: TicketWorld
    epoch: TicketEpoch
    node: int
    patience: int
    core: TicketCollector = field(init=False)
    asleep_until: int = 0
    _ticked: int = 0
    _life: int = 0
    _checkpoint: tuple[int, TicketState] | None = None

    def __post_init__(self) -> None:
        """Start."""
        self.restart()

    def restart(self) -> None:
        """Start anew, from a checkpoint if there is one; its appends in flight may still land."""
        self._life += 1
        tree, node = self.epoch.tree, self.node
        own = self.epoch.stream(node)
        if self._checkpoint is not None:
            offset, state = self._checkpoint
            own = TicketStream(own.shape, offset_next=offset, checkpoint=state)
        parent = tree.parents[node]
        above = None if parent is None else self.epoch.stream(parent)
        self.core = TicketCollector(
            own, above, patience=self.patience, rest=REST_TURNS, lively=6 * TICK_TURNS
        )

    def turn(self, *, thorough: bool = False) -> None:
        """Read, tick if it is time, and carry out what the core wants."""
        world, core = self.world, self.core
        if world.now < self.asleep_until:
            return
        own = world.streams[self.node]
        for offset in self._range(core.own.offset_next, len(own), thorough=thorough):
            core.own_read(offset, own[offset], world.now)
        if world.rng.random() < 0.1:
            self._checkpoint = core.own.offset_next, core.own.state.copy()
        if core.parent is not None:
            above = world.streams[self._parent]
            first = core.parent.offset_next
            for offset in self._range(first, len(above), thorough=thorough):
                core.parent_read(offset, above[offset])
        for log in core.own.shape.own:
            core.log_end(log, len(world.logs[log]), world.now)
        if self.epoch.markers is not None:
            core.freeze_after(self.epoch.markers)
        if world.now >= self._ticked + TICK_TURNS:
            self._ticked = world.now
            core.tick(world.now)
        self._carry_out()

    def _carry_out(self) -> None:
        for action in self.core.step(self.world.now):
            if isinstance(action, FillHole):
                self._fill(action)
            else:
                self._write(action)

    @property
    def _parent(self) -> int:
        parent = self.epoch.tree.parents[self.node]
        assert parent is not None
        return parent

    def _range(self, first: int, end: int, *, thorough: bool) -> range:
        most = end if thorough else first + int(self.world.rng.random() * (READ_MAX + 1))
        return range(first, max(first, min(end, most)))

    def _write(self, action: WriteRecord) -> None:
        life, core = self._life, self.core

        def done(outcome: Outcome) -> None:
            if not isinstance(outcome, int) and life == self._life:
                core.append_failed()

        raw = encode(core.own.shape.tag, action.record)
        self.world.append(self.world.streams[self.node], raw, done)

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
    """A consumer of some logs, over all epochs."""

    def __init__(self, world: TicketWorld, epochs: Epochs, interest: tuple[int, ...]) -> None:
        self._world = world
        self._epochs = epochs
        self.interest = interest
        self._epoch = -1
        self._core: TicketDelivery
        self._node = 0
        self._read: dict[int, int] = {}
        self.delivered: list[tuple[int, int]] = []
        self._open()

    def _open(self) -> None:
        self._epoch += 1
        epoch = self._epochs[self._epoch]
        # Any collector that knows all logs will do; another one in each epoch finds more.
        nodes = [node for node, bag in enumerate(epoch.tree.bags) if {*self.interest} <= {*bag}]
        self._node = self._world.rng.choice(nodes)
        self._core = TicketDelivery(epoch.stream(self._node), self.interest)
        self._read = {log: epoch.starts[log] for log in self.interest}

    def turn(self, *, thorough: bool = False) -> None:
        """Read something of each partition, and deliver."""
        rng, core = self._world.rng, self._core
        order = self._world.streams[self._node]
        first = core.stream.offset_next
        most = (
            len(order) if thorough else min(len(order), first + int(rng.random() * (READ_MAX + 1)))
        )
        for offset in range(first, most):
            core.order_read(offset, order[offset])
        for log in self.interest:
            records = self._world.logs[log]
            first = self._read[log]
            most = len(records) if thorough else first + int(rng.random() * (READ_MAX + 1))
            end = min(len(records), most)
            if first < end:
                core.payload_read(log, [(place, records[place]) for place in range(first, end)])
                self._read[log] = end
        self._deliver()
        if core.ended and self._epoch + 1 < len(self._epochs):
            self._open()

    def _deliver(self) -> None:
        taken: list[TicketDelivered] = self._core.deliver()
        self.delivered += [(log, place) for log, place, item in taken if item != SKIP]


def surplus_ticket(world: TicketWorld, epochs: Epochs, node: int) -> None:
    """Write a ticket for which no message comes, as a mad producer does."""
    shape = world.rng.choice(epochs).shape(node)
    if not shape.own:
        return
    log = world.rng.choice(sorted(shape.own))
    rng = world.rng
    ticket = Ticket(log, rng.randint(0, 3), rng.choice((0, len(world.logs[log]) + 2)))
    world.faults["surplus ticket"] += 1
    raw = encode(shape.tag, OwnRecord((ticket,)))
    world.append(world.streams[node], raw, _ignore)


_ignore: Callable[[Outcome], None] = lambda _: None  # noqa: E731
