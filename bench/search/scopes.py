"""Small worlds for the exhaustive search, and the states of such a world. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bench.search.machines import NEVER
from collectors.core.balance import BalanceLimits
from collectors.core.collector_core import CollectorLimits

PLAIN = -1  # in place of a producer: a message without a ticket
# Kinds of events that a scope allows a number of times; the order is that of `ScopeState.left`.
KINDS = (
    "lost",
    "doubled",
    "refused",
    "deaths",
    "surplus",
    "failed",
    "restarts",
    "changes",
    "transactions",
    "hasty",
)


@dataclass(frozen=True, slots=True)
class TicketTree:
    """Trees of collectors by number; `bags` hold log numbers; the running intersection holds."""

    parents: tuple[int | None, ...]
    bags: tuple[tuple[int, ...], ...]

    def top(self, log: int) -> int:
        """Give the collector where a log enters the order."""
        return next(
            node
            for node, bag in enumerate(self.bags)
            if log in bag and not self._knows(self.parents[node], log)
        )

    def _knows(self, node: int | None, log: int) -> bool:
        return node is not None and log in self.bags[node]

    def rerooted(self, root: int) -> TicketTree:
        """Give the same trees, one of them with another root, so that other collectors are tops."""
        neighbours: dict[int, list[int]] = {node: [] for node in range(len(self.bags))}
        for node, parent in enumerate(self.parents):
            if parent is not None:
                neighbours[node].append(parent)
                neighbours[parent].append(node)
        parents = dict(enumerate(self.parents))
        parents[root] = None
        waiting, seen = [root], {root}
        for node in waiting:
            for other in neighbours[node]:
                if other not in seen:
                    parents[other] = node
                    waiting.append(other)
                    seen.add(other)
        return TicketTree(tuple(parents[node] for node in range(len(self.bags))), self.bags)


@dataclass(frozen=True, slots=True)
class Scope:
    """A small world, and how much may go wrong in it.

    `messages` are started in this order: the producer, or PLAIN, and the log. A `lost` append of a
    producer is stored late or never, and its outcome stays unknown; a `doubled` ticket is stored
    again later; a `refused` append is not stored, and its producer knows. At one of its `deaths` a
    producer's appends in flight are stored late or never. A `surplus` ticket comes from a stranger.
    A `failed` append of an instance is stored at once, late, twice or never. After one of its
    `restarts` an instance begins at the newest checkpoint. One of the `changes` of the plan ends
    the epoch. A transaction hides log 0. A `hasty` tick comes while an append is in flight; all
    others come while nothing is. With `split`, an instance may read one partition and not the
    others. Times are in ticks.
    """

    tree: TicketTree
    instances: tuple[int, ...]  # how many, by collector
    messages: tuple[tuple[int, int], ...]
    lost: int = 0
    doubled: int = 0
    refused: int = 0
    deaths: int = 0
    surplus: int = 0
    failed: int = 0
    restarts: int = 0
    changes: int = 0
    transactions: int = 0
    hasty: int = 0
    checkpoint_records: int = NEVER
    patience: int = 1
    split: bool = False

    @property
    def left(self) -> tuple[int, ...]:
        """How many events of each kind there may be."""
        return tuple([int(getattr(self, kind)) for kind in KINDS])

    @property
    def limits(self) -> CollectorLimits:
        """The limits of its collectors."""
        return CollectorLimits(
            self.patience,
            lively=2,
            checkpoint_time=NEVER,
            checkpoint_records=self.checkpoint_records,
            balance=BalanceLimits(urgent=0, slack=0, stale=0, ticks=1, windows=1),
        )


class ScopeInstance(NamedTuple):
    """An instance: its collector, itself, its appends, and its skips (log, below) in flight."""

    node: int
    core: int
    raws: tuple[bytes, ...] = ()
    fills: tuple[tuple[int, int], ...] = ()


class ScopeState(NamedTuple):
    """One state of the world."""

    epoch: int
    ends: tuple[int, ...]  # high watermarks of the logs
    hidden: int  # where an open transaction hides log 0; -1 without one
    streams: tuple[int, ...]
    named: tuple[tuple[int, ...], ...]  # checkpoints that the control topic names
    books: tuple[tuple[int, ...], ...]  # by producer and collector
    instances: tuple[ScopeInstance, ...]
    late: tuple[tuple[int, bytes], ...]  # appends of the past: (collector, record) or (log, b"")
    started: int
    left: tuple[int, ...]  # see KINDS
    markers: tuple[int, ...]

    def grown(self, log: int) -> ScopeState:
        """Append a record to a log."""
        ends = [end + (number == log) for number, end in enumerate(self.ends)]
        return self._replace(ends=tuple(ends))

    def stable_end(self, log: int) -> int:
        """Give a log's last stable offset."""
        return self.hidden if log == 0 and self.hidden >= 0 else self.ends[log]

    def spend(self, kind: str) -> Iterator[ScopeState]:
        """Give the state with one event of this kind less, if there is one left."""
        place = KINDS.index(kind)
        if self.left[place]:
            less = (*self.left[:place], self.left[place] - 1, *self.left[place + 1 :])
            yield self._replace(left=less)

    def later(self, *appends: tuple[int, bytes]) -> ScopeState:
        """Leave appends in the network, to be stored at any time."""
        return self._replace(late=tuple(sorted([*self.late, *appends])))

    def with_book(self, producer: int, node: int, book: int) -> ScopeState:
        """Replace a producer's book."""
        books = list(self.books[producer])
        books[node] = book
        whole = (*self.books[:producer], tuple(books), *self.books[producer + 1 :])
        return self._replace(books=whole)

    def with_instance(self, place: int, instance: ScopeInstance) -> ScopeState:
        """Replace an instance."""
        others = self.instances
        return self._replace(instances=(*others[:place], instance, *others[place + 1 :]))


ALONE = TicketTree((None,), ((0, 1),))
CHAIN = TicketTree((None, 0), ((0, 1), (0, 1, 2)))

# Together about a minute. LARGER adds some minutes and 2 GB.
SCOPES = {
    "lost": Scope(ALONE, (1,), ((0, 0), (0, 0)), lost=1, refused=1),
    "two logs": Scope(ALONE, (1,), ((0, 0), (0, 1)), lost=1, split=True),
    "doubled": Scope(ALONE, (1,), ((0, 0), (1, 0)), doubled=1),
    "death": Scope(ALONE, (1,), ((0, 0), (1, 0)), deaths=1),
    "surplus": Scope(ALONE, (1,), ((0, 0), (PLAIN, 0)), surplus=1),
    "hasty": Scope(ALONE, (2,), ((0, 0),), hasty=2),
    "two instances": Scope(ALONE, (2,), ((0, 0),), lost=1, failed=1),
    "failed alone": Scope(ALONE, (1,), ((PLAIN, 0),), failed=1),
    "restart": Scope(ALONE, (1,), ((0, 0), (PLAIN, 0)), restarts=1, checkpoint_records=2),
    "transaction": Scope(ALONE, (1,), ((0, 0),), transactions=1),
    "chain": Scope(CHAIN, (1, 1), ((0, 0),), lost=1, split=True),
    "failed": Scope(CHAIN, (1, 1), ((0, 0),), failed=1),
    "two children": Scope(CHAIN, (1, 2), ((PLAIN, 0),), failed=1),
    "change": Scope(CHAIN, (1, 1), ((0, 0),), changes=1),
}
LARGER = {
    "lost, doubled, refused": Scope(ALONE, (1,), ((0, 0), (0, 0)), lost=1, doubled=1, refused=1),
    "death and surplus": Scope(ALONE, (1,), ((0, 0), (1, 0)), deaths=1, surplus=1),
    "surplus, hasty": Scope(ALONE, (1,), ((0, 0), (PLAIN, 0)), surplus=1, hasty=1),
    "two instances, two messages": Scope(ALONE, (2,), ((0, 0), (PLAIN, 0)), failed=1),
    "transaction, two logs": Scope(ALONE, (1,), ((0, 0), (0, 1)), transactions=1),
    "chain, two messages": Scope(CHAIN, (1, 1), ((0, 0), (PLAIN, 1))),
    "chain, two logs": Scope(CHAIN, (1, 1), ((0, 0), (0, 1))),
    "change, lost": Scope(CHAIN, (1, 1), ((0, 0),), changes=1, lost=1),
    "chain, split": Scope(CHAIN, (1, 1), ((0, 0), (PLAIN, 1)), split=True),
    "chain, failed": Scope(CHAIN, (1, 1), ((0, 0), (PLAIN, 1)), failed=1),
}
