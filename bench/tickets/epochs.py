"""The epochs of a simulated topic: which streams they have, and how they begin.

A *span* is one collector's stream from the epoch in which it begins to the one in which it ends;
what a change of the plan retains goes on with its spans. The cluster remembers of each span which
checkpoints the control topic names, and from which offset on retention has kept the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from bench.tickets.world import TicketTree, TicketWorld
from multicast.order import Run
from multicast.tickets.encoding import CheckpointRecord, Kind, decode
from multicast.tickets.rule import NotCounted, StreamShape, TicketStream

_HEAD_BYTES = 20
_EMPTY_RELAY_BYTES = 18


@dataclass(eq=False)
class TicketSpan:
    """One stream. `owed` are the runs that a recovery owes it; `markers` come when it is to end."""

    world: TicketWorld
    node: int
    shape: StreamShape
    parent: TicketSpan | None
    owed: list[Run] = field(default_factory=list)
    markers: dict[int, int] | None = None
    pointers: list[int] = field(default_factory=list)  # offsets of checkpoints that counted
    wrong: set[bytes] = field(default_factory=set)  # checkpoints that a wrong program wrote
    kept_from: int = 0  # retention has removed what is below
    may_stray: bool = False  # a wrong relay counts in it
    _read: TicketStream | None = None
    _runs: list[tuple[int, Run]] = field(default_factory=list)

    @property
    def records(self) -> list[bytes]:
        """The partition."""
        return self.world.streams[self.node]

    def read(self, offset: int) -> bytes:
        """Fetch a record."""
        assert offset >= self.kept_from, "a reader needs what retention has removed"
        return self.records[offset]

    def checkpoint(self, below: int) -> CheckpointRecord | None:
        """Give the newest checkpoint whose mark is not above an offset."""
        for offset in reversed(self.pointers):
            record = self.checkpoint_at(offset)
            if record.mark <= below:
                return record
        return None

    def checkpoint_at(self, offset: int) -> CheckpointRecord:
        """Read the checkpoint record that a pointer names."""
        record = decode(self.shape.tag, self.records[offset])
        assert isinstance(record, CheckpointRecord)
        return record

    def mark(self, below: int) -> int:
        """Give where a reader begins that needs what lies from `below` on."""
        point = self.checkpoint(below)
        return self.shape.first if point is None else point.mark

    def open(self, below: int) -> TicketStream:
        """Open the stream as a new reader does that needs what lies from `below` on."""
        return TicketStream(self.shape, self.checkpoint(below))

    def whole(self) -> tuple[TicketStream, list[tuple[int, Run]]]:
        """Read everything, whatever retention has removed: the stream, and what it orders.

        Both are the span's own, which later calls read on: look at them, and leave them as they
        are. A `fresh` stream is the caller's.
        """
        if self._read is None:
            self._read = TicketStream(self.shape)
        self._runs += self._read_on(self._read)
        return self._read, self._runs

    def fresh(self) -> TicketStream:
        """Read everything anew."""
        stream = TicketStream(self.shape)
        self._read_on(stream)
        return stream

    def _read_on(self, stream: TicketStream) -> list[tuple[int, Run]]:
        runs: list[tuple[int, Run]] = []
        for offset in range(stream.offset_next, len(self.records)):
            judged = stream.read(offset, self.records[offset])
            if judged is NotCounted.FALSE:
                assert self.records[offset] in self.wrong, "a checkpoint names a wrong state"
            if not isinstance(judged, NotCounted):
                runs += [(offset, run) for run in judged]
        return runs


@dataclass
class TicketEpoch:
    """One epoch: its trees and their streams, by collector."""

    number: int
    tree: TicketTree
    spans: list[TicketSpan]


Epochs = list[TicketEpoch]


def says_something(raw: bytes) -> bool:
    """Whether a record is none of those that collectors write for ever: see `checkpoint_time`."""
    kind, content = raw[_HEAD_BYTES - 1], raw[_HEAD_BYTES:]
    empty = kind == Kind.RELAY and len(content) == _EMPTY_RELAY_BYTES
    return kind != Kind.CHECKPOINT and not empty


def tag(epoch: int, node: int) -> bytes:
    """Give a stream's tag."""
    return blake2b(b"%d/%d" % (epoch, node), digest_size=16).digest()


@dataclass(frozen=True)
class NextEpoch:
    """What a new epoch begins with, by collector: the new streams, and the retained spans.

    `starts` are a new stream's positions, `owed` the runs that a recovery owes it, and `firsts`
    where it begins in its partition.
    """

    starts: Mapping[int, Mapping[int, int]]
    firsts: Mapping[int, int]
    owed: Mapping[int, list[Run]] = field(default_factory=dict)
    kept: Mapping[int, TicketSpan] = field(default_factory=dict)


def first_epoch(world: TicketWorld, tree: TicketTree) -> TicketEpoch:
    """Begin epoch 1 in an empty topic."""
    nodes = range(len(tree.bags))
    starts = {node: dict.fromkeys(tree.bags[node], 0) for node in nodes}
    return begin(world, 1, tree, NextEpoch(starts, dict.fromkeys(nodes, 0)))


def begin(world: TicketWorld, number: int, tree: TicketTree, what: NextEpoch) -> TicketEpoch:
    """Begin an epoch."""
    spans: dict[int, TicketSpan] = dict(what.kept)

    def open_span(node: int) -> TicketSpan:
        if node in spans:
            return spans[node]
        parent, starts = tree.parents[node], what.starts[node]
        above = None if parent is None else open_span(parent)
        own = {log: starts[log] for log in tree.bags[node] if tree.top(log) == node}
        owed = what.owed.get(node, [])
        shape = StreamShape(
            tag(number, node),
            own,
            {log: starts[log] for log in tree.bags[node] if log not in own},
            what.firsts[node],
            None if above is None else above.shape.first,
            len(owed),
        )
        spans[node] = TicketSpan(world, node, shape, above, owed)
        return spans[node]

    return TicketEpoch(number, tree, [open_span(node) for node in range(len(tree.bags))])
