"""Small changes of the interests, or of the destination sets, that make a cyclic input acyclic.

`names_needed` gives a proven lower bound of the number of names to change. `repairs` searches for
the least changes of one kind. `applied` makes the changed interest file. No I/O, no prices.

A hypergraph stays acyclic if vertices are removed from it. So if the logs S of a witness are left
alone, what remains of the interests on S stays cyclic: every repair has a change that touches S.
This bounds the number of changes below (witnesses without a common partition need a change each),
and it gives the candidates of the search: all changes of a name that stands in the witness. For
the same reason, declaring another set never helps, unless it takes the place of others.

The search is exhaustive for changes of a single name. For more names it keeps a few of the most
promising changes and looks for the next one there, so it may miss a repair.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from topology.acyclicity import residue
from topology.interests import Interest, InterestFile
from topology.planner.hypergraph import logs_by_partition, logs_met
from topology.safety import SafetyWitness, cycle
from topology.tree import log_name

# More names than this are new interests, not a small change; each costs the search a round.
NAMES_MAX = 4
NEEDED_MAX = 20  # disjoint witnesses that are counted; "at least 20" says enough
WIDTH = 8  # the most promising changes that get a further change; 16 gave the same on our examples
REPAIRS_MAX = 60  # of one kind; more alternatives do not help to choose
# Logs looked up while reducing hypergraphs, about 3 s; interests of 1,000 consumers hit it.
STEPS_MAX = 10_000_000
COVER_SHOWN_CHARACTERS_MAX = 40  # a longer name hides the rest of its sentence

Edges = Mapping[str, frozenset[str]]


class ChangeKind(StrEnum):
    """What a change is about."""

    INTERESTS = "interests"
    DESTINATIONS = "destination sets"


class RepairAction(StrEnum):
    """What a change does with its two names."""

    TAKE = "take"  # consumer, partition
    LEAVE = "leave"  # consumer, partition
    UNDECLARE = "undeclare"  # log, ""
    MERGE = "merge"  # log, log: their union is declared instead of both


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A change of one name, or the merge of two declared sets."""

    action: RepairAction
    subject: str
    name: str = ""

    @property
    def names(self) -> int:
        """How many names it changes."""
        return 2 if self.action is RepairAction.MERGE else 1


def names_needed(interests: InterestFile) -> int:
    """Give a lower bound of the names to change, up to `NEEDED_MAX`; 0: the input is acyclic."""
    edges = _edges(interests)
    count = 0
    while count < NEEDED_MAX:
        witness = cycle(edges)
        if witness is None:
            break
        count += 1
        touched = _partitions(witness)
        rest = residue(edge for edge in edges.values() if len(edge) > 1)
        gone = {log for edge in rest for log in edge if not touched.isdisjoint(log.split("+"))}
        inside = frozenset(log for edge in rest for log in edge) - gone
        edges = {name: edge & inside for name, edge in edges.items()}
    return count


def repairs(interests: InterestFile, kind: ChangeKind) -> tuple[tuple[Change, ...], ...]:
    """Search for the least changes of one kind that make a cyclic input acyclic.

    All results have the same number of names, up to `NAMES_MAX`; empty: none was found.
    """
    search = _Search(kind)
    start = search.state(interests, ())
    assert start.witness is not None, "an acyclic input needs no repair"
    waiting: dict[int, list[_Candidate]] = {}
    frontier = [start]
    for names in range(1, NAMES_MAX + 1):
        for state in frontier:
            for candidate in search.candidates(state):
                waiting.setdefault(state.names + candidate.change.names, []).append(candidate)
        kept = {candidate.key: candidate for candidate in waiting.pop(names, [])}
        following = sorted(kept.values(), key=_Candidate.order)
        complete = tuple(candidate.key for candidate in following if not candidate.left)
        if complete:
            return complete[:REPAIRS_MAX]
        if names < NAMES_MAX:
            frontier = [search.state(interests, c.key) for c in following[:WIDTH]]
    return ()


# -- the search -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _State:
    changes: tuple[Change, ...]
    file: InterestFile
    edges: Edges
    rest: frozenset[str]  # the logs of the residue
    witness: SafetyWitness | None

    @property
    def names(self) -> int:
        return sum(change.names for change in self.changes)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A state's changes and one more; `left` is the size of the residue, 0: acyclic."""

    before: tuple[Change, ...]
    change: Change
    left: int

    @property
    def key(self) -> tuple[Change, ...]:
        return tuple(sorted((*self.before, self.change)))

    def order(self) -> tuple[int, tuple[Change, ...]]:
        return self.left, self.key


class _Search:
    def __init__(self, kind: ChangeKind) -> None:
        self.kind = kind
        self.steps = STEPS_MAX

    def state(self, interests: InterestFile, changes: tuple[Change, ...]) -> _State:
        file = applied(interests, changes)
        edges = _edges(file)
        rest = self._residue(edges.values())
        return _State(
            changes,
            file,
            edges,
            frozenset(log for edge in rest for log in edge),
            cycle(edges) if rest else None,
        )

    def candidates(self, state: _State) -> Iterator[_Candidate]:
        """List the changes that remove the state's witness, with what each leaves cyclic."""
        if state.witness is None:
            return
        logs = frozenset(state.witness.logs)
        traces = Counter(edge & logs for edge in state.edges.values())
        for change, changed in self._changes(state):
            if self.steps <= 0:
                return
            if change in state.changes or not _removes(state, changed, traces, logs):
                continue
            yield _Candidate(state.changes, change, self._left(state, changed))

    def _changes(self, state: _State) -> Iterator[tuple[Change, Edges]]:
        """List the changes of a name of the witness, each with the edges that it changes."""
        assert state.witness is not None, "an acyclic state has no candidates"
        if self.kind is ChangeKind.INTERESTS:
            yield from _of_interests(state.file, state.edges, sorted(_partitions(state.witness)))
        else:
            yield from _of_sets(state, state.witness.logs)

    def _left(self, state: _State, changed: Edges) -> int:
        """Give the size of the residue; first on the cyclic logs only, which is quick."""
        inside = state.rest | {log for edge in changed.values() for log in edge}
        after = [changed.get(name, edge) for name, edge in state.edges.items()]
        rest = self._residue(edge & inside for edge in after) or self._residue(after)
        return sum(len(edge) for edge in rest)

    def _residue(self, edges: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
        several = [edge for edge in edges if len(edge) > 1]
        self.steps -= sum(len(edge) for edge in several)
        return residue(several)


def _removes(
    state: _State, changed: Edges, traces: Counter[frozenset[str]], logs: frozenset[str]
) -> bool:
    """Whether the witness is gone; `traces` counts what the interests have of its logs."""
    after = Counter(traces)
    for name, edge in changed.items():
        after[state.edges[name] & logs] -= 1
        after[edge & (logs | (edge - state.edges[name]))] += 1
    return not residue(edge for edge, count in after.items() if count > 0 and len(edge) > 1)


def _of_interests(
    file: InterestFile, edges: Edges, partitions: Sequence[str]
) -> Iterator[tuple[Change, Edges]]:
    holding = logs_by_partition(file)
    for entry in file.consumers:
        for name in partitions:
            if name not in entry.interest:
                edge = edges[entry.name].union(holding[name])
                yield Change(RepairAction.TAKE, entry.name, name), {entry.name: edge}
            elif len(entry.interest) > 1:
                others = [other for other in entry.interest if other != name]
                edge = frozenset(log for other in others for log in holding[other])
                yield Change(RepairAction.LEAVE, entry.name, name), {entry.name: edge}


def _of_sets(state: _State, witness: Sequence[str]) -> Iterator[tuple[Change, Edges]]:
    edges, declared = state.edges, {log_name(to) for to in state.file.destinations}
    wide = [log for log in sorted(state.rest) if "+" in log]
    for log in (log for log in witness if "+" in log):
        gone = {name: edge - {log} for name, edge in edges.items() if log in edge}
        yield Change(RepairAction.UNDECLARE, log), gone
        for other in wide:
            both, union = {log, other}, log_name([*log.split("+"), *other.split("+")])
            if union not in declared:
                merged = {
                    name: (edge - both) | {union}
                    for name, edge in edges.items()
                    if not edge.isdisjoint(both)
                }
                yield Change(RepairAction.MERGE, min(both), max(both)), merged


def _partitions(witness: SafetyWitness) -> frozenset[str]:
    return frozenset(name for log in witness.logs for name in log.split("+"))


def _edges(interests: InterestFile) -> dict[str, frozenset[str]]:
    return {name: frozenset(logs) for name, logs in logs_met(interests).items()}


# -- the changed file -----------------------------------------------------------------------


def applied(interests: InterestFile, changes: Iterable[Change]) -> InterestFile:
    """Make the interest file after the changes.

    The rate of a set that is no longer declared is added to that of its cover, if it has one.
    """
    for change in changes:
        interests = _applied(interests, change)
    return interests


def _applied(interests: InterestFile, change: Change) -> InterestFile:
    if change.action is RepairAction.UNDECLARE:
        return _without(interests, change.subject)
    if change.action is RepairAction.MERGE:
        union = tuple(sorted({*change.subject.split("+"), *change.name.split("+")}))
        wider = replace(
            interests,
            destinations=(*interests.destinations, union),
            rates={**interests.rates, log_name(union): 0.0},
        )
        return _without(_without(wider, change.subject), change.name)
    consumers = []
    for entry in interests.consumers:
        partitions = set(entry.interest)
        if entry.name == change.subject:
            partitions ^= {change.name}
        consumers.append(Interest(entry.name, tuple(sorted(partitions)), entry.weight))
    return replace(interests, consumers=tuple(consumers))


def cover_of(interests: InterestFile, log: str) -> str | None:
    """Find the declared set that takes the messages of a set that is not declared itself.

    It is the smallest superset, the first by name of several, as `Plan.cover` chooses it.
    """
    wanted = set(log.split("+"))
    wider = [to for to in interests.destinations if wanted < set(to)]
    return min(map(log_name, wider), key=lambda name: (name.count("+"), name), default=None)


def loses(interests: InterestFile, changes: Sequence[Change]) -> bool:
    """Whether a consumer no longer gets some messages, or some can no longer be multicast."""
    changed = applied(interests, changes)
    return any(
        change.action is RepairAction.LEAVE
        or (change.action is RepairAction.UNDECLARE and cover_of(changed, change.subject) is None)
        for change in changes
    )


def words(interests: InterestFile, changes: Sequence[Change]) -> tuple[str, ...]:
    """Put each change into words, for an operator who makes all of them."""
    changed = applied(interests, changes)
    return tuple(_words(changed, change) for change in changes)


def _words(changed: InterestFile, change: Change) -> str:
    match change.action:
        case RepairAction.TAKE:
            return f"let {change.subject} also take {change.name}"
        case RepairAction.LEAVE:
            return f"let {change.subject} no longer take {change.name}"
        case RepairAction.MERGE:
            union = log_name([*change.subject.split("+"), *change.name.split("+")])
            return f"declare {union} instead of {change.subject} and {change.name}"
    cover = cover_of(changed, change.subject)
    if cover is None:
        return f"do not declare {change.subject} (nobody can multicast to it then)"
    if len(cover) > COVER_SHOWN_CHARACTERS_MAX:
        cover = f"the declared set of {cover.count('+') + 1} partitions"
    return f"do not declare {change.subject} (its messages go to {cover})"


def _without(interests: InterestFile, log: str) -> InterestFile:
    left = tuple(to for to in interests.destinations if log_name(to) != log)
    hosts = interests.hosts
    if hosts is not None:
        leaders = {name: host for name, host in hosts.leaders.items() if name != log}
        hosts = replace(hosts, leaders=leaders)
    rates = {name: rate for name, rate in interests.rates.items() if name != log}
    cover = cover_of(interests, log)
    if cover is not None:
        rates[cover] = interests.rate(cover) + interests.rate(log)
    return replace(interests, destinations=left, rates=rates, hosts=hosts)
