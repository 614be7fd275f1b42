"""Small changes of the interests, or of the destination sets, that make a cyclic input acyclic.

`repairs` searches for the least changes of one kind; `applied` makes the changed interest file. No
I/O, no prices.

A hypergraph stays acyclic if vertices are removed from it. So if the logs S of a witness are left
alone, what remains of the interests on S stays cyclic: every repair has a change that touches S.
This gives the candidates of the search: all changes of a name that stands in the witness. For the
same reason, declaring another set never helps.

The search is exhaustive for changes of a single name. For more names it keeps a few of the most
promising changes and looks for the next one there, so it may miss a repair.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from topology.acyclicity import residue
from topology.interests import InterestFile
from topology.planner.hypergraph import logs_by_partition, logs_met
from topology.safety import SafetyWitness, cycle
from topology.tree import log_name

# More names than this are new interests, not a small change; each costs the search a round.
NAMES_MAX = 4
WIDTH = 8  # the most promising changes that get a further change; 16 gave the same on our examples
REPAIRS_MAX = 60  # of one kind; more alternatives do not help to choose
# Logs of the residue, for each change that is tried: about 3 s. Inputs with many cycles hit it; for
# these there is no small change anyway.
STEPS_MAX = 1_500_000
COVER_SHOWN_CHARACTERS_MAX = 40  # a longer name hides the rest of its sentence

Edges = dict[str, frozenset[str]]


class ChangeKind(StrEnum):
    """What a change is about."""

    INTERESTS = "interests"
    DESTINATIONS = "destination sets"


class RepairAction(StrEnum):
    """What a change does with its names."""

    TAKE = "take"  # consumer, partition
    LEAVE = "leave"  # consumer, partition
    UNDECLARE = "undeclare"  # log, ""


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """A change of one name."""

    action: RepairAction
    subject: str
    name: str = ""


def repairs(interests: InterestFile, kind: ChangeKind) -> tuple[tuple[Change, ...], ...]:
    """Search for the least changes of one kind that make a cyclic input acyclic.

    All results have the same number of names, up to `NAMES_MAX`; empty: none was found.
    """
    steps = STEPS_MAX
    frontier: list[tuple[Change, ...]] = [()]
    for _ in range(NAMES_MAX):
        left: dict[tuple[Change, ...], int] = {}  # the size of the residue; 0: acyclic
        for changes in frontier:
            file = applied(interests, changes)
            edges = {name: frozenset(logs) for name, logs in logs_met(file).items()}
            witness = cycle(edges)
            assert witness is not None, "an acyclic input needs no repair"
            rest = residue(edges.values())
            for change, changed in _changes(file, kind, edges, witness):
                key = tuple(sorted({*changes, change}))
                if key not in left and len(key) > len(changes) and steps > 0:
                    steps -= sum(map(len, rest))
                    left[key] = _left(edges, changed, rest)
        best = sorted(left, key=lambda key: (left[key], key))
        complete = [key for key in best if not left[key]]
        if complete:
            return tuple(complete[:REPAIRS_MAX])
        frontier = best[:WIDTH]
    return ()


def _left(edges: Edges, changed: Edges, rest: Iterable[frozenset[str]]) -> int:
    """Give the size of the residue; first on the cyclic logs only, which is quick."""
    inside = frozenset().union(*rest, *changed.values())
    after = [changed.get(name, edge) for name, edge in edges.items()]
    return sum(map(len, residue(edge & inside for edge in after) or residue(after)))


def _changes(
    file: InterestFile, kind: ChangeKind, edges: Edges, witness: SafetyWitness
) -> Iterator[tuple[Change, Edges]]:
    """List the changes of a name of the witness, each with the edges that it changes."""
    if kind is ChangeKind.DESTINATIONS:
        for log in (log for log in witness.logs if "+" in log):
            gone = {name: edge - {log} for name, edge in edges.items() if log in edge}
            yield Change(RepairAction.UNDECLARE, log), gone
        return
    holding = logs_by_partition(file)
    partitions = sorted({name for log in witness.logs for name in log.split("+")})
    for entry in file.consumers:
        for name in partitions:
            takes = name not in entry.interest
            if takes or len(entry.interest) > 1:
                action = RepairAction.TAKE if takes else RepairAction.LEAVE
                logs = (holding[other] for other in {*entry.interest} ^ {name})
                yield Change(action, entry.name, name), {entry.name: frozenset().union(*logs)}


# -- the changed file -----------------------------------------------------------------------


def applied(interests: InterestFile, changes: Iterable[Change]) -> InterestFile:
    """Make the interest file after the changes.

    The rate of a set that is no longer declared is added to that of its cover, if it has one.
    """
    for change in changes:
        if change.action is RepairAction.UNDECLARE:
            interests = _without(interests, change.subject)
        else:
            consumers = tuple(
                replace(entry, interest=tuple(sorted({*entry.interest} ^ {change.name})))
                if entry.name == change.subject
                else entry
                for entry in interests.consumers
            )
            interests = replace(interests, consumers=consumers)
    return interests


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
