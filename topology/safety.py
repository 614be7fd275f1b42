"""Whether the interests of a file are acyclic and pairwise safe, with a witness if they are not.

`judged` takes an `InterestFile` and gives a `SafetyVerdict` with a witness in words: an example of
what can go wrong. What would remove it: `repairs.py`. No I/O. In the hypergraph, vertices are logs
(declared sets have logs of their own), and an edge holds the logs that one interest meets.

    acyclic         alpha-acyclic: the interests themselves can be the collectors' bags, so no
                    collector does foreign work
    pairwise safe   it is enough to order each pair of co-subscribed logs at one place, in every
                    execution: the co-subscription graph is chordal, and each triangle of logs lies
                    inside one interest. Acyclic implies pairwise safe.

The witness is of the first kind that exists, in this order: three logs that are pairwise
co-subscribed but not all by one consumer; a chordless cycle of four or more logs; a clique of logs
that no single interest holds, while for each of its logs some interest holds all the others
(interests with only such cliques are pairwise safe).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from topology.acyclicity import residue
from topology.interests import InterestFile
from topology.planner.hypergraph import logs_met

Graph = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class SafetyWitness:
    """The logs of a cycle, or of an uncovered clique.

    Of a cycle, consumer i takes log i and the next one; of a clique, all logs but log i.
    """

    logs: tuple[str, ...]
    consumers: tuple[str, ...]
    clique: bool

    @property
    def sentence(self) -> str:
        """The possible cycle of deliveries; of a clique, why the interests are not acyclic."""
        ring = list(zip(self.consumers, self.logs, (*self.logs[1:], self.logs[0]), strict=True))
        if self.clique:
            missing = [f"{consumer} takes all of them but {log}" for consumer, log, _ in ring]
            return f"no consumer takes all of {', '.join(self.logs)}, but {'; '.join(missing)}"
        pairs = [f"{consumer} takes {log} and {other}" for consumer, log, other in ring]
        around = [f"{log} before {other}" for _, log, other in ring]
        return f"{', '.join(pairs)}: decided pair by pair, they may deliver {', '.join(around)}"


@dataclass(frozen=True, slots=True)
class SafetyVerdict:
    """Whether the interests are acyclic and pairwise safe; if not acyclic, the reason."""

    acyclic: bool
    pairwise_safe: bool
    witness: SafetyWitness | None


def judged(interests: InterestFile) -> SafetyVerdict:
    """Give the verdict on an interest file."""
    met = {name: frozenset(logs) for name, logs in logs_met(interests).items()}
    witness = cycle(met)
    safe = witness is None or witness.clique
    return SafetyVerdict(acyclic=witness is None, pairwise_safe=safe, witness=witness)


def cycle(edges: Mapping[str, frozenset[str]]) -> SafetyWitness | None:
    """Find a witness among named edges; None if they are acyclic."""
    rest = residue(edge for edge in edges.values() if len(edge) > 1)
    if not rest:
        return None
    vertices = sorted({vertex for edge in rest for vertex in edge})
    graph = _co_subscribed(rest)
    around = _triangle(graph, rest) or _chordless(graph, vertices)
    if around is not None:
        return SafetyWitness(tuple(around), _holders(around, edges), clique=False)
    clique = _uncovered_clique(graph, rest, vertices)
    return SafetyWitness(tuple(clique), _all_but(clique, edges), clique=True)


# -- witnesses ------------------------------------------------------------------------------


def _co_subscribed(edges: Sequence[frozenset[str]]) -> Graph:
    near: dict[str, set[str]] = {}
    for edge in edges:
        for vertex in edge:
            near.setdefault(vertex, set()).update(edge)
    return {vertex: sorted(near[vertex] - {vertex}) for vertex in sorted(near)}


def _triangle(graph: Graph, edges: Sequence[frozenset[str]]) -> list[str] | None:
    """Find three logs that are pairwise neighbours while no edge holds all three."""
    holding: dict[str, set[int]] = {}
    for number, edge in enumerate(edges):
        for vertex in edge:
            holding.setdefault(vertex, set()).add(number)
    for a, near in graph.items():
        later = [b for b in near if b > a]
        for b, c in combinations(later, 2):
            if c in graph[b] and not holding[a] & holding[b] & holding[c]:
                return [a, b, c]
    return None


def _chordless(graph: Graph, vertices: Sequence[str]) -> list[str] | None:
    """Find a chordless cycle of four or more logs: a shortest one through the first log on any."""
    for start in vertices:
        best: list[str] | None = None
        near = set(graph[start])
        for x, y in combinations(graph[start], 2):
            if y not in graph[x]:
                path = _path(graph, x, y, without=(near | {start}) - {x, y})
                if path is not None and (best is None or len(path) + 1 < len(best)):
                    best = [start, *path]
        if best is not None:
            return best
    return None


def _path(graph: Graph, start: str, end: str, *, without: set[str]) -> list[str] | None:
    came = {start: start}
    queue = [start]
    for vertex in queue:
        if vertex == end:
            path = [end]
            while path[-1] != start:
                path.append(came[path[-1]])
            return path[::-1]
        for other in graph[vertex]:
            if other not in came and other not in without:
                came[other] = vertex
                queue.append(other)
    return None


def _uncovered_clique(
    graph: Graph, edges: Sequence[frozenset[str]], vertices: Sequence[str]
) -> list[str]:
    """Find a minimal clique of a chordal graph that no edge holds.

    Eliminating one vertex after the other whose neighbours form a clique visits every maximal
    clique.
    """
    near = {vertex: set(graph[vertex]) for vertex in vertices}
    left = list(vertices)
    while left:
        vertex = next(v for v in left if all(b in near[a] for a, b in combinations(near[v], 2)))
        clique = sorted(near[vertex] | {vertex})
        if not any(edge.issuperset(clique) for edge in edges):
            for spare in tuple(clique):
                fewer = [other for other in clique if other != spare]
                if not any(edge.issuperset(fewer) for edge in edges):
                    clique = fewer
            return clique
        left.remove(vertex)
        for other in near.pop(vertex):
            near[other].discard(vertex)
    raise AssertionError("a hypergraph that is chordal and conformal is acyclic")


def _holders(around: Sequence[str], edges: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    pairs = [{log, around[(place + 1) % len(around)]} for place, log in enumerate(around)]
    return tuple(next(name for name, edge in edges.items() if pair <= edge) for pair in pairs)


def _all_but(clique: Sequence[str], edges: Mapping[str, frozenset[str]]) -> tuple[str, ...]:
    return tuple(
        next(name for name, edge in edges.items() if set(clique) - {log} <= edge) for log in clique
    )
