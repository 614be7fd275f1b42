"""The work that each kind of transaction makes in a plan: which collectors and nodes handle it.

A kind of transaction is a log of the plan: the transactions of one chain, or those of one set of
chains. The numbers are entries for one transaction, and by the objective's own definition of
foreign work (`topology/work.py`): summed over kinds, times the rates, they are the plan's figures.
A consumer counts as often as its weight says: in a plan made of a chain file, once for each node.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from topology.tree import Log, Plan
from topology.work import CollectorWork, ConsumerWork, collector_work, consumer_work


@dataclass(frozen=True, slots=True)
class TransactionWork:
    """What one transaction of a kind costs, in entries; `rate` is in transactions/s.

    `ordered_at` are the collectors that append it and serve one of its chains, `passed_on_at` those
    that append it for others, `dropped_at` those that read it in their parent's stream and do not
    take it over. `nodes_taking` and `nodes_dropping` count nodes that read it in a collector's
    stream. A chain without sets has no collector: its nodes read the log itself, and no entry.
    """

    transaction: str
    rate: float
    ordered_at: tuple[str, ...]
    passed_on_at: tuple[str, ...]
    dropped_at: tuple[str, ...]
    nodes_taking: float
    nodes_dropping: float

    @property
    def chains(self) -> int:
        """How many chains the transaction has."""
        return self.transaction.count("+") + 1

    @property
    def collectors(self) -> int:
        """How many collectors handle it, whether they have a use for it or not."""
        return len(self.ordered_at) + len(self.passed_on_at) + len(self.dropped_at)

    @property
    def handled(self) -> float:
        """The entries that collectors and nodes handle for one transaction."""
        return self.collectors + self.nodes_taking + self.nodes_dropping

    @property
    def foreign(self) -> float:
        """The entries of these that are handled for nobody."""
        return len(self.passed_on_at) + len(self.dropped_at) + self.nodes_dropping


@dataclass(frozen=True, slots=True)
class MeanWork:
    """The mean of several kinds of transactions, weighted by their rates, for one transaction.

    `chains` is how many chains each of them has; None: of all kinds. `rate` is their sum.
    """

    chains: int | None
    kinds: int
    rate: float
    ordered: float
    passed_on: float
    dropped: float
    nodes_dropping: float
    handled: float
    foreign: float


def transactions(plan: Plan) -> tuple[TransactionWork, ...]:
    """Give the work of each kind of transaction: one chain first, then larger sets; by name."""
    collectors = [(node.name, collector_work(plan, node)) for node in plan.collectors]
    consumers = [(entry.weight, consumer_work(plan, entry)) for entry in plan.consumers]
    logs = sorted(plan.logs, key=lambda log: (len(log.to), log.to))
    return tuple(_work(plan, log, collectors, consumers) for log in logs)


def _work(
    plan: Plan,
    log: Log,
    collectors: Sequence[tuple[str, CollectorWork]],
    consumers: Sequence[tuple[float, ConsumerWork]],
) -> TransactionWork:
    name = log.name
    passing = tuple(node for node, work in collectors if name in work.passes_on)
    return TransactionWork(
        transaction=name,
        rate=plan.rates.get(name, 1.0),
        ordered_at=tuple(
            node for node, work in collectors if name in work.appends - work.passes_on
        ),
        passed_on_at=passing,
        dropped_at=tuple(node for node, work in collectors if name in work.drops),
        nodes_taking=math.fsum(w for w, work in consumers if name in work.reads - work.drops),
        nodes_dropping=math.fsum(w for w, work in consumers if name in work.drops),
    )


def means(kinds: Sequence[TransactionWork]) -> tuple[MeanWork, ...]:
    """Give the mean for each number of chains, and of all kinds as the last one."""
    sizes = sorted({kind.chains for kind in kinds})
    rows = [_mean(size, [kind for kind in kinds if kind.chains == size]) for size in sizes]
    return (*rows, _mean(None, kinds))


def _mean(chains: int | None, kinds: Sequence[TransactionWork]) -> MeanWork:
    total = math.fsum(kind.rate for kind in kinds)
    # Kinds that never occur count alike, so that they have a mean, too.
    parts = [kind.rate / total if total else 1 / len(kinds) for kind in kinds]

    def mean(figures: Sequence[float]) -> float:
        return math.fsum(part * figure for part, figure in zip(parts, figures, strict=True))

    return MeanWork(
        chains=chains,
        kinds=len(kinds),
        rate=total,
        ordered=mean([len(kind.ordered_at) for kind in kinds]),
        passed_on=mean([len(kind.passed_on_at) for kind in kinds]),
        dropped=mean([len(kind.dropped_at) for kind in kinds]),
        nodes_dropping=mean([kind.nodes_dropping for kind in kinds]),
        handled=mean([kind.handled for kind in kinds]),
        foreign=mean([kind.foreign for kind in kinds]),
    )


def passing_above(kinds: Sequence[TransactionWork]) -> tuple[TransactionWork, ...]:
    """List the kinds of one chain that pass a collector which does not serve this chain.

    If there is none, nothing above a chain's own collector handles its transactions: a collector
    reads streams of its parent only, so all that drop one are below the collector that orders it.
    """
    return tuple(kind for kind in kinds if kind.chains == 1 and kind.passed_on_at)
