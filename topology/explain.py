"""What a plan costs one consumer in foreign work, and which other interests cause it.

`explained` takes a plan and a consumer's name and gives an `Explanation`; `remedy` gives the single
change that would help it most. Both look at the tree as it is; nothing is planned again. No I/O.
Rates are those of the plan: messages/s, or one message per log and round if the plan has none.

    its collectors   the one that it reads, and those above it up to the highest top of its logs
    foreign          entries that one of these passes on or drops, or that the consumer drops
    cause            another consumer whose interest puts the log where it is foreign

Why a log is in a bag: because consumers that read this collector want it; else because consumers
in two or more directions from it (below, above) want it, and the collectors that hold a log are
connected. The entries of a foreign log are divided equally among its causes. A consumer's own
direction is no cause, because only the others can change anything about it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from topology.changes import interests_of, with_interests
from topology.check import figures
from topology.repairs import Change, RepairAction, applied, loses, words
from topology.tree import CollectorSpec, Plan, Subscription
from topology.work import collector_work, consumer_work

# Changes that `remedy` tries, those of the greatest causes first: 200 take 2 s for 64 consumers.
# With more consumers it tries as many fewer, but no fewer than 8.
TRIED_MAX, TRIED_MIN, TRIED_CONSUMERS = 200, 8, 64
PRICED_MAX = 8  # of these, the best are priced with the whole tree: 0.5 s each for 1,000 consumers


@dataclass(frozen=True, slots=True)
class ForeignCause:
    """Another consumer, the rate of the foreign entries for which it stands, and their logs."""

    consumer: str
    entries: float
    logs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForeignWork:
    """The foreign logs of one worker: `worker` passes on or drops (`does`) entries of `logs`."""

    worker: str
    does: str
    logs: tuple[str, ...]
    entries: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What one consumer wants, by which way it gets it, and what foreign work is done on it.

    `wanted` and `handled` are rates of entries: of its logs, and of all that it and its collectors
    handle. `ways` lists the collectors from a top down to its own, each with the logs that take
    this way. `collectors` begins with its own. `work` and `causes` have the greatest first.
    """

    consumer: str
    logs: tuple[str, ...]
    wanted: float
    collectors: tuple[str, ...]
    ways: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]
    handled: float
    work: tuple[ForeignWork, ...]
    causes: tuple[ForeignCause, ...]

    @property
    def foreign(self) -> float:
        """The rate of the entries that it and its collectors handle without a use for them."""
        return sum(work.entries for work in self.work)

    @property
    def leftover(self) -> float:
        """The foreign rate without a cause: in a tree that stayed, nobody needs the log there."""
        return max(0.0, self.foreign - sum(cause.entries for cause in self.causes))

    @property
    def genuineness(self) -> float:
        """The part of the entries handled for a consumer that they address, 0 to 1."""
        return 1.0 if not self.handled else 1 - self.foreign / self.handled


@dataclass(frozen=True, slots=True)
class Remedy:
    """A single change in words, and its effect in the same tree with the smallest bags.

    `loses`: some consumer gets fewer messages, or a set can no longer be addressed. `foreign` is
    what the consumer and its collectors then handle as foreign work, `cost` that of the plan.
    Another tree may be cheaper still.
    """

    change: str
    loses: bool
    foreign: float
    cost_before: float
    cost: float


def explained(plan: Plan, consumer: str) -> Explanation:
    """Explain one consumer of a plan. Raises `KeyError` if the plan does not name it."""
    entry = plan.subscription(consumer)
    if entry is None:
        raise KeyError(consumer)
    return _Account(_Tree(plan), entry).explanation()


def explanations(plan: Plan) -> tuple[Explanation, ...]:
    """Explain each consumer that has foreign work, or whose collectors have, in plan order."""
    tree = _Tree(plan)
    every = (_Account(tree, entry).explanation() for entry in plan.consumers)
    return tuple(explanation for explanation in every if explanation.work)


class _Cause(NamedTuple):
    """Readers of a log because of whom it is foreign somewhere, in one of three ways.

    All readers (`holder` is ""); those that read the collector `holder` (`own` is None); those in
    other directions from `holder` than `own`.
    """

    log: str
    holder: str
    own: str | None


class _Tree:
    """What all accounts of one plan look up.

    readers    by log: the consumers that want it and read a collector
    towards    by collector, and by each collector from it up to its root: the child of the latter
               on the way down, or, of the collector itself, its own name
    work       by collector
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.readers: dict[str, list[Subscription]] = {}
        for entry in plan.consumers:
            for log in plan.logs_of(entry.interest) if entry.collector is not None else ():
                self.readers.setdefault(log.name, []).append(entry)
        self.towards: dict[str, dict[str, str]] = {}
        for node in plan.collectors:
            below, name, way = node.name, node.parent, {node.name: node.name}
            while name is not None:
                way[name] = below
                below, name = name, plan.collector(name).parent
            self.towards[node.name] = way
        self.work = {node.name: collector_work(plan, node) for node in plan.collectors}
        self._named: dict[_Cause, tuple[str, ...]] = {}

    def readers_at(self, log: str, collector: str) -> tuple[str, ...]:
        """Name the readers of a log that read this collector."""
        return self.named(_Cause(log, collector, None))

    def named(self, cause: _Cause) -> tuple[str, ...]:
        """Name the readers of a log that are one cause; worked out once for all accounts."""
        names = self._named.get(cause)
        if names is None:
            log, holder, own = cause
            readers = self.readers.get(log, [])
            if holder and own is None:
                readers = [entry for entry in readers if entry.collector == holder]
            elif holder:
                readers = [each for each in readers if self.direction(holder, each) != own]
            names = tuple(entry.name for entry in readers)
            self._named[cause] = names
        return names

    def direction(self, holder: str, entry: Subscription) -> str:
        """Give the child of `holder` below which a consumer reads, or its own name; "": above."""
        assert entry.collector is not None, "a reader of a collector"
        return self.towards[entry.collector].get(holder, "")


class _Account:
    def __init__(self, tree: _Tree, entry: Subscription) -> None:
        self.tree = tree
        self.plan = tree.plan
        self.entry = entry
        self.logs = tuple(log.name for log in self.plan.logs_of(entry.interest))
        self.collectors = tuple(_collectors(self.plan, entry, self.logs))
        self.charged: dict[_Cause, float] = {}

    def explanation(self) -> Explanation:
        work = [work for work in self._work() if work.logs]
        handled = self._rate(consumer_work(self.plan, self.entry).reads)
        for node in self.collectors:
            own = self.tree.work[node.name]
            handled += self._rate(own.appends) + self._rate(own.drops)
        return Explanation(
            consumer=self.entry.name,
            logs=self.logs,
            wanted=self._rate(self.logs),
            collectors=tuple(node.name for node in self.collectors),
            ways=self._ways(),
            handled=handled,
            work=tuple(sorted(work, key=lambda item: -item.entries)),
            causes=self._causes(),
        )

    def _causes(self) -> tuple[ForeignCause, ...]:
        share: dict[str, float] = {}
        caused: dict[str, set[str]] = {}
        for cause, entries in self.charged.items():
            names = self.tree.named(cause)
            for name in names:
                share[name] = share.get(name, 0.0) + entries / len(names)
                caused.setdefault(name, set()).add(cause.log)
        causes = [
            ForeignCause(name, entries, tuple(sorted(caused[name])))
            for name, entries in share.items()
        ]
        return tuple(sorted(causes, key=lambda cause: -cause.entries))

    def _ways(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        ways: dict[tuple[str, ...], list[str]] = {}
        for log in self.logs if self.collectors else ():
            way = [node.name for node in self.collectors if log in node.bag]
            ways.setdefault(tuple(reversed(way)), []).append(log)
        return tuple((way, tuple(logs)) for way, logs in ways.items())

    def _work(self) -> Iterator[ForeignWork]:
        """List the foreign work, and charge it to its causes."""
        if not self.collectors:
            return
        drops = consumer_work(self.plan, self.entry).drops
        yield self._foreign(self.entry.name, "drops", drops, self.collectors[0])
        for node in self.collectors:
            work = self.tree.work[node.name]
            yield self._foreign(node.name, "passes on", work.passes_on, node)
            if node.parent is not None:
                above = self.plan.collector(node.parent)
                yield self._foreign(node.name, "drops", work.drops, above)

    def _foreign(
        self, worker: str, does: str, logs: frozenset[str], holder: CollectorSpec
    ) -> ForeignWork:
        """Charge logs to those because of whom `holder` has them in its bag."""
        for log in sorted(logs):
            cause = self._cause(holder.name, log)
            self.charged[cause] = self.charged.get(cause, 0.0) + self.plan.rates.get(log, 1.0)
        return ForeignWork(worker, does, tuple(sorted(logs)), self._rate(logs))

    def _cause(self, holder: str, log: str) -> _Cause:
        """Say because of whom `holder` has the log in its bag; this consumer is not among them."""
        here = self.tree.readers_at(log, holder)
        if here and self.entry.name not in here:
            return _Cause(log, holder, None)
        if log not in self.logs:
            return _Cause(log, "", None)
        return _Cause(log, holder, self.tree.direction(holder, self.entry))

    def _rate(self, logs: Sequence[str] | frozenset[str]) -> float:
        return sum(self.plan.rates.get(log, 1.0) for log in sorted(logs))


def _collectors(plan: Plan, entry: Subscription, logs: Sequence[str]) -> list[CollectorSpec]:
    path: list[CollectorSpec] = []
    name = entry.collector
    while name is not None:
        node = plan.collector(name)
        if path and set(node.bag).isdisjoint(logs):
            break
        path.append(node)
        name = node.parent
    return path


# -- the change that would help most --------------------------------------------------------


def remedy(plan: Plan, explanation: Explanation) -> Remedy | None:
    """Find the single change that spares this consumer and its collectors most foreign work.

    Of equal ones, that which takes no messages from anybody, then that of the cheapest tree. None
    if no change that was tried helps.
    """
    interests = interests_of(plan)
    tries = TRIED_MAX * TRIED_CONSUMERS // max(TRIED_CONSUMERS, len(plan.consumers))
    helping = []
    for number, change in enumerate(islice(_changes(plan, explanation), max(TRIED_MIN, tries))):
        changed = with_interests(plan, applied(interests, (change,)))
        if changed is not None:
            left = explained(changed, explanation.consumer).foreign
            if left < explanation.foreign:
                takes = loses(interests, (change,))
                helping.append((left, takes, number, change, changed))
    helping.sort(key=lambda entry: entry[:3])
    priced = [
        (left, takes, figures(changed).cost, number, change)
        for left, takes, number, change, changed in helping[:PRICED_MAX]
    ]
    if not priced:
        return None
    left, takes, cost, _, change = min(priced, key=lambda entry: entry[:4])
    (sentence,) = words(interests, (change,))
    return Remedy(sentence, takes, left, figures(plan).cost, cost)


def _changes(plan: Plan, explanation: Explanation) -> Iterator[Change]:
    """List the changes that concern foreign logs; those of the greatest causes first.

    That the consumer itself gives up a log is none of them: it would get less, not cheaper.
    """
    mine = plan.subscription(explanation.consumer)
    assert mine is not None, "an explained consumer is one of the plan's"
    logs = list(dict.fromkeys(log for work in explanation.work for log in work.logs))
    for log in logs:
        if "+" in log:
            yield Change(RepairAction.UNDECLARE, log)
    names = list(dict.fromkeys(name for log in logs for name in log.split("+")))
    for name in names:
        if name not in mine.interest:
            yield Change(RepairAction.TAKE, mine.name, name)
    for cause in explanation.causes:
        entry = plan.subscription(cause.consumer)
        if entry is not None and len(entry.interest) > 1:
            for name in entry.interest:
                if any(name in log.split("+") for log in cause.logs):
                    yield Change(RepairAction.LEAVE, entry.name, name)
