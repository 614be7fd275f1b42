"""The operator of a simulated topic: changes of the plan, wrong programs, recoveries."""

from __future__ import annotations

from collections.abc import Iterable

from bench.tickets.epochs import Epochs, NextEpoch, TicketEpoch, TicketSpan, begin
from bench.tickets.world import TicketWorld
from multicast.order import Run
from multicast.tickets.encoding import (
    FreezeRecord,
    OwnRecord,
    Position,
    RelayRecord,
    Ticket,
    encode,
)
from multicast.tickets.recovery import EndedStream, restored_records, restored_runs


class TicketOperator:
    """Ends epochs of one tree at a time; the others are retained. `ending` has its collectors."""

    def __init__(self, world: TicketWorld, epochs: Epochs) -> None:
        self._world = world
        self._epochs = epochs
        self.ending: set[int] = set()
        self._recovers = False
        self._firsts: dict[int, int] = {}

    def end_epoch(self, node: int) -> None:
        """Write where the logs of a collector's tree are to end, as `topology apply` does."""
        if self.ending:
            return
        self._plan_next(node)
        for other in self.ending:
            self._epochs[-1].spans[other].markers = {
                log: len(records) for log, records in enumerate(self._world.logs)
            }

    def write_wrong_freeze(self, node: int) -> None:
        """Freeze a stream before its time, as only a wrong program does: its epoch cannot end."""
        self._world.faults["wrong freeze"] += 1
        _freeze_now(self._epochs[-1].spans[node])

    def write_wrong_relay(self, node: int) -> bool:
        """Write a relay that says too little or too much; whether a recovery can undo it.

        Only of a collector that inherits one log: with more, its consumers could deliver their
        messages in another order than its parent's, and no recovery undoes that.
        """
        span, rng = self._epochs[-1].spans[node], self._world.rng
        if span.parent is None or len(span.shape.inherited) != 1:
            return False
        self._world.faults["wrong relay"] += 1
        span.may_stray = True
        (log,) = span.shape.inherited
        state, end = span.whole()[0].state, span.parent.whole()[0].offset_next
        upto = state.positions[log] + rng.randint(0, 3)
        entries = (Position(log, upto),) if rng.random() < 0.7 else ()
        relay = RelayRecord(state.parent_next, max(end, state.parent_next + 1), entries)
        span.records.append(encode(span.shape.tag, relay))
        return True

    def recover(self, node: int) -> None:
        """Begin to end the epoch of a collector's tree, whatever its streams have ordered."""
        self._recovers = True
        self._plan_next(node)

    def _plan_next(self, node: int) -> None:
        tree = self._epochs[-1].tree
        root = tree.tree_of(node)
        self.ending |= {other for other in range(len(tree.bags)) if tree.tree_of(other) == root}
        self._firsts = {other: len(self._world.streams[other]) for other in self.ending}

    def begin_next(self) -> TicketEpoch | None:
        """Begin the next epoch if all streams that are to end are frozen."""
        epoch, world = self._epochs[-1], self._world
        ending = [epoch.spans[node] for node in sorted(self.ending)]
        if self._recovers:
            for span in ending:
                if not span.whole()[0].state.frozen:
                    _freeze_now(span)
        ended = _ended(ending)
        if not ended:
            return None
        runs = restored_runs({str(node): stream for node, stream in ended.items()})
        owed: dict[int, list[Run]] = {int(name): found for name, found in runs.items()}
        # A wrong freeze just before an ordinary change needs the same mending.
        wrong = self._recovers or world.faults["wrong freeze"] or world.faults["wrong relay"]
        assert wrong or not any(owed.values()), "frozen streams disagree on a log's end"
        what = NextEpoch(
            {node: stream.positions for node, stream in ended.items()},
            self._firsts,
            owed,
            {span.node: span for span in epoch.spans if span.node not in self.ending},
        )
        tree = epoch.tree.rerooted(world.rng.choice(sorted(self.ending)))
        following = begin(world, epoch.number + 1, tree, what)
        self._epochs.append(following)
        self.ending, self._recovers = set(), False
        return following

    def restore(self) -> None:
        """Append what streams are still owed, as `amcast topology recover` does."""
        for span in self._epochs[-1].spans:
            done = span.whole()[0].state.restored if span.owed else 0
            if done < len(span.owed):
                self._hurry(span)
            for record in restored_records(span.owed, done):
                # In pieces, so that some are lost and others are not.
                for number, entry in enumerate(record.entries, record.first):
                    piece = type(record)(number, number + 1, (entry,))
                    raw = encode(span.shape.tag, piece)
                    self._world.append(span.records, raw, lambda _: None)

    def _hurry(self, span: TicketSpan) -> None:
        """Write what an instance would that does not wait for the restored runs."""
        world = self._world
        ends = [Ticket(log, 0, world.stable_end(log)) for log in span.shape.own]
        records: list[OwnRecord | RelayRecord] = [OwnRecord(tuple(ends))]
        if span.parent is not None:
            above, runs = span.parent.whole()
            known = [run for _, run in runs if run.log in span.shape.inherited]
            entries = tuple([Position(run.log, run.next) for run in known])
            records.append(RelayRecord(span.parent.shape.first, above.offset_next, entries))
        for record in records:
            world.append(span.records, encode(span.shape.tag, record), lambda _: None)


def _ended(spans: Iterable[TicketSpan]) -> dict[int, EndedStream]:
    """Give the ended streams by collector; none while one of them is not frozen."""
    ended: dict[int, EndedStream] = {}
    for span in spans:
        stream, runs = span.whole()
        if not stream.state.frozen:
            return {}
        parent = None if span.parent is None else str(span.parent.node)
        known = [run for offset, run in runs if offset >= span.kept_from]
        ended[span.node] = EndedStream(parent, stream.state.positions, known)
    return ended


def _freeze_now(span: TicketSpan) -> None:
    """Append what a recovery appends: a freeze that names nothing."""
    span.records.append(encode(span.shape.tag, FreezeRecord(0, ())))
