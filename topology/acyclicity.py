"""Whether a hypergraph is alpha-acyclic, and what of it is in the way. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def residue(edges: Iterable[frozenset[str]]) -> tuple[frozenset[str], ...]:
    """Apply the reduction of Graham, Yu and Ozsoyoglu, and give the edges that remain.

    It drops vertices that only one edge has, and edges inside other edges, while there are any. If
    nothing remains, the hypergraph is alpha-acyclic: its edges are the bags of a join tree.
    """
    rest = sorted({edge for edge in edges if edge}, key=sorted)
    while True:
        count: dict[str, int] = {}
        for edge in rest:
            for vertex in edge:
                count[vertex] = count.get(vertex, 0) + 1
        shared = [frozenset(v for v in edge if count[v] > 1) for edge in rest]
        kept = _maximal(shared)
        if kept == rest:
            return tuple(kept)
        rest = kept


def _maximal(edges: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    kept: list[frozenset[str]] = []
    holding: dict[str, list[frozenset[str]]] = {}
    for edge in sorted({edge for edge in edges if edge}, key=lambda e: (-len(e), sorted(e))):
        if not any(edge <= other for other in holding.get(min(edge), ())):
            kept.append(edge)
            for vertex in edge:
                holding.setdefault(vertex, []).append(edge)
    return sorted(kept, key=sorted)


def is_acyclic(edges: Iterable[frozenset[str]]) -> bool:
    """Whether the hypergraph is alpha-acyclic: then each collector's bag can be one interest."""
    return not residue(edges)
