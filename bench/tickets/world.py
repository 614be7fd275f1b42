"""The simulated cluster of tickets: a drawn tree, partitions in memory, appends with faults.

Everything is drawn from one generator. Virtual time is the number of turns so far. An append is
stored after a delay; with faults it may be lost, doubled, late or refused, and its writer may never
learn of it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import TypeVar

SKIP = "skip"  # the record that fills a hole; never delivered
MARKER = "marker"  # ends a transaction
ABORTED = "aborted"
REMOVED = "removed"  # by retention; who has not delivered it goes on without it
UNSEEN = frozenset((SKIP, MARKER, ABORTED, REMOVED))  # what no reader delivers
_Item = TypeVar("_Item")
LATE_TURNS = 400  # the longest delay of a late append


class TicketFate(Enum):
    """What happens to an append."""

    STORED = "stored"
    LATE = "late"
    LOST = "lost"  # the writer learns that the outcome is unknown
    UNHEARD = "stored, unheard"  # as LOST, but stored
    GHOST = "stored late, unheard at once"
    DOUBLED = "stored twice"
    REFUSED = "refused"  # certainly not stored


class AppendEnd(Enum):
    """What a writer learns of an append that was not acknowledged."""

    UNKNOWN = "unknown"
    REFUSED = "refused"


Outcome = int | AppendEnd


@dataclass(frozen=True)
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

    def tree_of(self, node: int) -> int:
        """Give the root of a collector's tree."""
        parent = self.parents[node]
        return node if parent is None else self.tree_of(parent)

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


def draw_tree(rng: Random) -> TicketTree:
    """Draw trees of together up to four collectors, and two to five logs."""
    count = rng.choice((1, 2, 2, 3, 4))
    parents = (
        None,
        *(None if rng.random() < 0.25 else rng.randrange(node) for node in range(1, count)),
    )
    bags: list[list[int]] = [[] for _ in range(count)]
    for log in range(rng.choice((2, 3, 3, 5))):
        top = rng.randrange(count)
        known = {top}
        for node in range(top + 1, count):
            if parents[node] in known and rng.random() < 0.7:
                known.add(node)
        for node in sorted(known):
            bags[node].append(log)
    return TicketTree(parents, tuple(map(tuple, bags)))


def inherits_one(tree: TicketTree, node: int, bag: tuple[int, ...]) -> bool:
    """Whether exactly one log of a collector's bag comes from its parent's stream."""
    return sum(tree.top(log) != node for log in bag) == 1


# A log at the root and another one further down, all known to the last two collectors: what is
# restored to the middle one must come in its order to the last one, too.
DEEP = TicketTree((None, 0, 1), ((0, 1), (0, 1, 2), (0, 1, 2)))


@dataclass
class TicketWorld:
    """Partitions, and what is still in the network."""

    rng: Random
    logs: list[list[str]]
    streams: list[list[bytes]]
    fault_share: float
    delay_max: int
    now: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    skips: int = 0
    hidden_from: dict[int, int] = field(default_factory=dict)  # logs: where the transaction begins
    _network: list[tuple[int, int, Callable[[], object]]] = field(default_factory=list)
    _number: int = 0

    def later(self, turns: int, what: Callable[[], object]) -> None:
        """Do something after so many turns."""
        self._number += 1
        heapq.heappush(self._network, (self.now + turns, self._number, what))

    def pass_time(self, turns: int) -> None:
        """Let time pass, and what is due arrive."""
        end = self.now + turns
        while self._network and self._network[0][0] <= end:
            self.now, _, what = heapq.heappop(self._network)
            what()
        self.now = end

    def stable_end(self, log: int) -> int:
        """Give a log's last stable offset."""
        return self.hidden_from.get(log, len(self.logs[log]))

    def transaction(self, log: int, values: list[str], *, commits: bool) -> Callable[[], None]:
        """Store messages in a transaction; give what ends it."""
        records = self.logs[log]
        first = len(records)
        self.hidden_from[log] = first
        records += values

        def end() -> None:
            if not commits:
                records[first : first + len(values)] = [ABORTED] * len(values)
            records.append(MARKER)
            del self.hidden_from[log]

        return end

    @property
    def waiting(self) -> int:
        """The number of events in the network."""
        return len(self._network)

    def end_faults(self) -> None:
        """Let appends be stored at once from now on; those in the network still arrive."""
        self.fault_share, self.delay_max = 0.0, 0

    def append(self, partition: list[_Item], item: _Item, done: Callable[[Outcome], None]) -> None:
        """Append with a drawn fate; `done` gets the offset, or what the writer learns instead."""
        rng = self.rng
        fate = TicketFate.STORED
        if rng.random() < self.fault_share:
            fate = rng.choice(list(TicketFate))
            self.faults[fate.value] += 1
        # Without faults appends keep their order, as those of one Kafka producer do.
        delay = rng.randint(0 if self.fault_share else self.delay_max, self.delay_max)
        answer = delay + rng.randint(0 if self.fault_share else self.delay_max, self.delay_max)
        late = rng.randint(1, LATE_TURNS)

        def store() -> int:
            partition.append(item)
            return len(partition) - 1

        def store_and_answer() -> None:
            offset = store()
            self.later(answer - delay, lambda: done(offset))

        match fate:
            case TicketFate.STORED:
                self.later(delay, store_and_answer)
            case TicketFate.LATE:
                self.later(late, store_and_answer)
            case TicketFate.DOUBLED:
                self.later(delay, store_and_answer)
                self.later(late, store)
            case TicketFate.REFUSED:
                self.later(answer, lambda: done(AppendEnd.REFUSED))
            case TicketFate.LOST:
                self.later(answer, lambda: done(AppendEnd.UNKNOWN))
            case TicketFate.UNHEARD | TicketFate.GHOST:
                self.later(delay if fate is TicketFate.UNHEARD else late, store)
                self.later(answer, lambda: done(AppendEnd.UNKNOWN))
