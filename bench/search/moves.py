"""The steps of the exhaustive search: all that may happen next in a state.

Nothing is drawn: each possible step is given. `machines` runs the real cores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import product

from bench.search.machines import SearchedBooks, SearchedInstances, SearchedStreams, Turn, Wrong
from bench.search.scopes import PLAIN, Scope, ScopeInstance, ScopeState, TicketTree
from collectors.core.collector_core import CollectorCore
from multicast.order.records import CheckpointRecord, OwnRecord, Ticket, decode, encode
from multicast.order.rule import RecordStream, StreamShape
from multicast.producing.ticket_book import TicketBook

IN_FLIGHT_MAX = 3  # appends of an instance; it takes no turn while there are more
FIRSTS = (3, 5)  # where the streams of an epoch begin, by collector

# What happens, what it leads to, and whether it may as well never happen: an event.
Step = tuple[str, ScopeState, bool]


@dataclass(slots=True)
class ScopeMoves:
    """The steps of one scope."""

    scope: Scope
    streams: SearchedStreams = field(default_factory=SearchedStreams)
    instances: SearchedInstances = field(default_factory=SearchedInstances)
    books: SearchedBooks = field(default_factory=SearchedBooks)

    def tree(self, state: ScopeState) -> TicketTree:
        """Give the epoch's tree: a change of the plan makes the last collector the root."""
        tree = self.scope.tree
        return tree.rerooted(len(tree.bags) - 1) if state.epoch else tree

    def first(self) -> ScopeState:
        """Give the state in which nothing has happened."""
        scope = self.scope
        ends = (0,) * (1 + max(log for bag in scope.tree.bags for log in bag))
        state = ScopeState(0, ends, -1, (), (), (), (), (), 0, scope.left, ())
        return self._begin(state, dict(enumerate(ends)))

    def steps(self, state: ScopeState) -> Iterator[Step]:
        """Give all that may happen next. Raises `Wrong` if a step violates a guarantee."""
        yield from self._started(state)
        for producer, books in enumerate(state.books):
            for node, book in enumerate(books):
                yield from self._messages(state, producer, node, book)
                yield from self._ticket(state, producer, node, book)
                yield from self._death(state, producer, node, book)
        for place, one in enumerate(state.instances):
            yield from self._turns(state, place, one)
            yield from self._appends(state, place, one)
            yield from self._restart(state, place, one)
        yield from self._late(state)
        yield from self._world(state)

    def calm(self, state: ScopeState) -> bool:
        """Whether nothing is in flight."""
        if state.late or any(one.raws or one.fills for one in state.instances):
            return False
        books = [book for books in state.books for book in books]
        return not any(self.books.ticket(book) or self.books.in_flight(book) for book in books)

    def tidy(self, state: ScopeState) -> ScopeState:
        """Forget appends that change nothing, and which of equal instances is which."""
        instances = [
            one._replace(raws=self._useful(state, one.node, one.raws)) if one.raws else one
            for one in state.instances
        ]
        late = [
            (where, raw)
            for where, raw in state.late
            if not raw or not self.streams.doomed(state.streams[where], raw)
        ]
        named = state.named if any(state.spend("restarts")) else tuple([() for _ in state.named])
        return state._replace(instances=tuple(sorted(instances)), late=tuple(late), named=named)

    def _useful(self, state: ScopeState, node: int, raws: Sequence[bytes]) -> tuple[bytes, ...]:
        return tuple([raw for raw in raws if not self.streams.doomed(state.streams[node], raw)])

    # -- producers ----------------------------------------------------------------------------

    def _started(self, state: ScopeState) -> Iterator[Step]:
        if state.started == len(self.scope.messages):
            return
        producer, log = self.scope.messages[state.started]
        begun = state._replace(started=state.started + 1)
        if producer == PLAIN:
            yield f"a message without a ticket is stored in log {log}", begun.grown(log), True
            return
        node = self.tree(state).top(log)
        book = self.books.start(state.books[producer][node], log)
        step = f"producer {producer} multicasts to log {log}"
        yield step, begun.with_book(producer, node, book), True

    def _messages(self, state: ScopeState, producer: int, node: int, book: int) -> Iterator[Step]:
        for log in self.books.in_flight(book):
            what = f"producer {producer}'s message of log {log}"
            settled = self.books.settle(book, log, state.ends[log])
            stored = state.grown(log).with_book(producer, node, settled)
            yield f"{what} is stored", stored, False
            for less in state.spend("lost"):
                unknown = less.with_book(producer, node, self.books.settle(book, log, None))
                yield f"{what} is lost", unknown, True
                yield f"{what} is late", unknown.later((log, b"")), True
            for less in state.spend("refused"):
                refused = self.books.settle(book, log, None, refused=True)
                yield f"{what} is refused", less.with_book(producer, node, refused), True

    def _ticket(self, state: ScopeState, producer: int, node: int, book: int) -> Iterator[Step]:
        ticket = self.books.ticket(book)
        if ticket is None:
            return
        what = f"producer {producer}'s {_text(ticket)}"
        raw = encode(tag(state.epoch, node), ticket)
        settled = self.books.ticket_settled(book)
        stored = self._land(state, node, raw)
        yield f"{what} is stored", stored.with_book(producer, node, settled), False
        for less in state.spend("lost"):
            unknown = less.with_book(producer, node, settled)
            yield f"{what} is lost", unknown, True
            yield f"{what} is late", unknown.later((node, raw)), True
        for less in state.spend("doubled"):
            doubled = self._land(less, node, raw).with_book(producer, node, settled)
            yield f"{what} is stored, and will be again", doubled.later((node, raw)), True
        for less in state.spend("refused"):
            refused = self.books.ticket_settled(book, refused=True)
            yield f"{what} is refused", less.with_book(producer, node, refused), True

    def _death(self, state: ScopeState, producer: int, node: int, book: int) -> Iterator[Step]:
        appends = [(log, b"") for log in self.books.in_flight(book)]
        ticket = self.books.ticket(book)
        if ticket is not None:
            appends.append((node, encode(tag(state.epoch, node), ticket)))
        if not appends:
            return
        for less in state.spend("deaths"):
            died = less.with_book(producer, node, self.books.intern(TicketBook()))
            for fates in product((False, True), repeat=len(appends)):
                late = [one for one, lands in zip(appends, fates, strict=True) if lands]
                yield (
                    f"producer {producer} dies, {len(late)} appends go on",
                    died.later(*late),
                    True,
                )

    # -- instances ----------------------------------------------------------------------------

    def _turns(self, state: ScopeState, place: int, instance: ScopeInstance) -> Iterator[Step]:
        if len(instance.raws) + len(instance.fills) >= IN_FLIGHT_MAX:
            return
        core, _ = self.instances.cores[instance.core]
        own = self.streams.read_from(state.streams[instance.node], core.own.offset_next)
        above: tuple[bytes, ...] = ()
        parent = self.tree(state).parents[instance.node]
        if parent is not None and core.relay is not None:
            offset = core.relay.parent.offset_next
            above = self.streams.read_from(state.streams[parent], offset)
        ends = tuple([(log, state.stable_end(log), state.ends[log]) for log in core.own.shape.own])
        turn, markers, who = self.instances.turn, state.markers, _who(place, instance)
        if own and self.scope.split:
            yield (
                f"{who} reads its stream",
                self._turned(state, place, turn(instance.core, own)),
                False,
            )
        if above and self.scope.split:
            read = turn(instance.core, parent=above)
            yield f"{who} reads its parent's stream", self._turned(state, place, read), False
        every = turn(instance.core, own, above, ends, markers)
        yield f"{who} reads everything", self._turned(state, place, every), False
        ticked = turn(instance.core, ends=ends, markers=markers, ticks=True)
        if self.calm(state):
            yield f"{who} reads its logs' ends and ticks", self._turned(state, place, ticked), False
        else:
            for less in state.spend("hasty"):
                step = f"{who} reads its logs' ends and ticks at once"
                yield step, self._turned(less, place, ticked), True

    def _turned(self, state: ScopeState, place: int, turn: Turn) -> ScopeState:
        one = state.instances[place]
        core, fills = turn.instance, list(one.fills)
        for log, below in turn.fills:
            if state.ends[log] < below:
                fills.append((log, below))
            else:
                core = self.instances.report(core, filled=log)
        named = list(state.named)
        named[one.node] = tuple(sorted({*named[one.node], *turn.named}))
        after = ScopeInstance(one.node, core, one.raws + turn.raws, tuple(sorted(fills)))
        return state.with_instance(place, after)._replace(named=tuple(named))

    def _appends(self, state: ScopeState, place: int, instance: ScopeInstance) -> Iterator[Step]:
        who = _who(place, instance)
        for number, (log, below) in enumerate(instance.fills):
            fills = instance.fills[:number] + instance.fills[number + 1 :]
            after = state.grown(log)
            if after.ends[log] < below:
                filled = instance
            else:
                filled = instance._replace(
                    fills=fills, core=self.instances.report(instance.core, filled=log)
                )
            yield f"{who} fills log {log}", after.with_instance(place, filled), False
        if not instance.raws:
            return
        raw, rest = instance.raws[0], instance._replace(raws=instance.raws[1:])
        what = f"{who}'s {self._record(state, instance.node, raw)}"
        stored = self._land(state.with_instance(place, rest), instance.node, raw)
        yield f"{what} is stored", stored, False
        for less in state.spend("failed"):
            knows = self.instances.report(instance.core)
            lost = less.with_instance(place, rest._replace(core=knows))
            yield f"{what} is lost", lost, True
            yield f"{what} is late", lost.later((instance.node, raw)), True
            yield f"{what} is stored, unheard", self._land(lost, instance.node, raw), True
            twice = self._land(less.with_instance(place, rest), instance.node, raw)
            yield f"{what} is stored, and will be again", twice.later((instance.node, raw)), True

    def _restart(self, state: ScopeState, place: int, instance: ScopeInstance) -> Iterator[Step]:
        appends = [(instance.node, raw) for raw in instance.raws] + [
            (log, b"") for log, _ in instance.fills
        ]
        for less in state.spend("restarts"):
            anew = ScopeInstance(instance.node, self._start(less, instance.node))
            for late in [appends, []] if appends else [appends]:
                step = f"{_who(place, instance)} restarts, {len(late)} appends go on"
                yield step, less.with_instance(place, anew).later(*late), True

    # -- the rest -----------------------------------------------------------------------------

    def _late(self, state: ScopeState) -> Iterator[Step]:
        for place, (where, raw) in enumerate(state.late):
            rest = state._replace(late=state.late[:place] + state.late[place + 1 :])
            if raw:
                what = f"a late {self._record(state, where, raw)} is stored"
                yield what, self._land(rest, where, raw), False
            else:
                yield f"a late record of log {where} is stored", rest.grown(where), False

    def _world(self, state: ScopeState) -> Iterator[Step]:
        if state.hidden >= 0:
            yield "the transaction ends", state.grown(0)._replace(hidden=-1), True
        else:
            for less in state.spend("transactions"):
                begun = less.grown(0)._replace(hidden=state.ends[0])
                yield "a transaction stores a message in log 0", begun, True
        for less in state.spend("surplus"):
            for log in range(len(state.ends)):
                node = self.tree(state).top(log)
                raw = encode(tag(state.epoch, node), OwnRecord((Ticket(log, 1, 0),)))
                yield f"a surplus ticket of log {log} is stored", self._land(less, node, raw), True
        if state.markers:
            yield from self._next_epoch(state)
        else:
            for less in state.spend("changes"):
                yield "the markers are written", less._replace(markers=state.ends), True

    def _next_epoch(self, state: ScopeState) -> Iterator[Step]:
        ends: dict[int, int] = {}
        states = [self.streams.nodes[stream].whole.state for stream in state.streams]
        if not all(one.frozen for one in states):
            return
        for one in states:
            for log, position in one.positions.items():
                if ends.setdefault(log, position) != position:
                    raise Wrong(f"streams end log {log} at {ends[log]} and at {position}")
                if position < state.markers[log]:
                    raise Wrong(f"log {log} ends at {position}, below its marker")
        # Tickets of the old epoch count no more, but messages on their way are stored yet.
        books = [book for books in state.books for book in books]
        waiting = [(log, b"") for book in books for log in self.books.in_flight(book)]
        waiting += [(log, b"") for one in state.instances for log, _ in one.fills]
        waiting += [(where, raw) for where, raw in state.late if not raw]
        begun = state._replace(epoch=1, markers=(), late=tuple(sorted(waiting)))
        yield "the next epoch begins", self._begin(begun, ends), False

    def _begin(self, state: ScopeState, starts: Mapping[int, int]) -> ScopeState:
        tree = self.tree(state)
        nodes = range(len(tree.bags))
        streams = [self.streams.begin(node, self._shape(state, node, starts)) for node in nodes]
        producers = 1 + max([producer for producer, _ in self.scope.messages])
        books = tuple([self.books.intern(TicketBook()) for _ in nodes])
        begun = state._replace(
            streams=tuple(streams),
            named=tuple([() for _ in nodes]),
            books=tuple([books for _ in range(producers)]),
        )
        instances = [
            ScopeInstance(node, self._start(begun, node))
            for node in nodes
            for _ in range(self.scope.instances[node])
        ]
        return begun._replace(instances=tuple(instances))

    def _shape(self, state: ScopeState, node: int, starts: Mapping[int, int]) -> StreamShape:
        tree = self.tree(state)
        own = {log: starts[log] for log in tree.bags[node] if tree.top(log) == node}
        inherited = {log: starts[log] for log in tree.bags[node] if log not in own}
        parent = tree.parents[node]
        above = None if parent is None else FIRSTS[parent]
        return StreamShape(tag(state.epoch, node), own, inherited, FIRSTS[node], above)

    def _start(self, state: ScopeState, node: int) -> int:
        """Start an instance, at checkpoints if there are any."""
        own = self._open(state, node, None)
        parent = self.tree(state).parents[node]
        above = None if parent is None else self._open(state, parent, own.state.parent_next)
        return self.instances.intern(CollectorCore(own, above, self.scope.limits), 0)

    def _open(self, state: ScopeState, node: int, below: int | None) -> RecordStream:
        known = self.streams.nodes[state.streams[node]]
        shape = known.whole.shape
        for offset in reversed(state.named[node]):
            record = decode(shape.tag, known.raws[offset - shape.first])
            assert isinstance(record, CheckpointRecord)
            if below is None or record.mark <= below:
                return RecordStream(shape, record)
        return RecordStream(shape)

    def _land(self, state: ScopeState, node: int, raw: bytes) -> ScopeState:
        streams = list(state.streams)
        streams[node] = self.streams.land(streams[node], raw)
        return state._replace(streams=tuple(streams))

    def _record(self, state: ScopeState, node: int, raw: bytes) -> str:
        return _text(decode(tag(state.epoch, node), raw))


def _who(place: int, instance: ScopeInstance) -> str:
    return f"instance {place} of collector {instance.node}"


def _text(record: object) -> str:
    return str(record).replace("OwnRecord", "record")


def tag(epoch: int, node: int) -> bytes:
    """Give a stream's tag."""
    return blake2b(b"%d/%d" % (epoch, node), digest_size=16).digest()
