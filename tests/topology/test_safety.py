"""The verdict on interests and its witnesses, against deliberately simple oracles."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.test_plan import POSTER, interests
from topology.planner.hypergraph import logs_met
from topology.safety import judged


def test_the_posters_example_is_acyclic():
    verdict = judged(interests(POSTER))
    assert (verdict.acyclic, verdict.pairwise_safe, verdict.witness) == (True, True, None)


def test_the_posters_example_with_a_cycle_names_it():
    verdict = judged(interests({**POSTER, "C4": ["P1", "P5"]}))
    assert not verdict.acyclic
    assert not verdict.pairwise_safe
    assert verdict.witness.logs == ("P1", "P3", "P5")
    assert verdict.witness.sentence == (
        "C1 takes P1 and P3, C3 takes P3 and P5, C4 takes P5 and P1: decided pair by pair, "
        "they may deliver P1 before P3, P3 before P5, P5 before P1"
    )


def test_all_triples_of_four_logs_are_pairwise_safe_but_not_acyclic():
    verdict = judged(interests({"W": "ABC", "X": "BCD", "Y": "CDA", "Z": "DAB"}))
    assert (verdict.acyclic, verdict.pairwise_safe) == (False, True)
    assert verdict.witness.sentence == (
        "no consumer takes all of A, B, C, D, but X takes all of them but A; "
        "Y takes all of them but B; Z takes all of them but C; W takes all of them but D"
    )


def test_a_declared_set_can_close_a_cycle_over_partitions_that_have_none():
    apart = {"X": ["P1"], "Y": ["P2"], "Z": ["P3"]}
    assert judged(interests(apart)).acyclic
    verdict = judged(interests(apart, [("P1", "P2"), ("P2", "P3"), ("P1", "P3")]))
    assert verdict.witness.logs == ("P1+P2", "P1+P3", "P2+P3")


# -- oracles --------------------------------------------------------------------------------


def has_join_tree(edges: list[frozenset[str]]) -> bool:
    """Try all orders in which each edge hangs below an earlier one with running intersection."""
    for order in permutations(edges):
        if all(
            place == 0
            or any(edge & frozenset().union(*order[:place]) <= other for other in order[:place])
            for place, edge in enumerate(order)
        ):
            return True
    return False


def pairs_can_form_a_circle(edges: list[frozenset[str]]) -> bool:
    """Look for orders of all co-subscribed pairs that agree at each interest but form a cycle.

    Each pair of logs has one order. An interest notices a cycle only if it holds all its logs, so a
    cycle that no interest holds is unsafe.
    """
    vertices = sorted(frozenset().union(*edges))
    pairs = [p for p in combinations(vertices, 2) if any(set(p) <= edge for edge in edges)]
    for mask in range(1 << len(pairs)):
        before = {p if mask >> n & 1 else p[::-1] for n, p in enumerate(pairs)}
        seen_wrong = any(
            circular({(a, b) for a, b in before if a in edge and b in edge}) for edge in edges
        )
        if not seen_wrong and circular(before):
            return True
    return False


def circular(before: set[tuple[str, str]]) -> bool:
    left = {vertex for pair in before for vertex in pair}
    while left:
        first = [v for v in left if not any(b == v and a in left for a, b in before)]
        if not first:
            return True
        left -= set(first)
    return False


hypergraphs = st.lists(
    st.frozensets(st.sampled_from("ABCDE"), min_size=2, max_size=4), min_size=1, max_size=5
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(hypergraphs)
def test_the_verdict_agrees_with_trying_everything(edges):
    file = interests({f"C{number}": sorted(edge) for number, edge in enumerate(edges)})
    verdict = judged(file)
    assert verdict.acyclic == has_join_tree(edges)
    assert verdict.pairwise_safe == (not pairs_can_form_a_circle(edges))
    if verdict.witness is not None and not verdict.witness.clique:
        logs, met = verdict.witness.logs, logs_met(file)
        for place, consumer in enumerate(verdict.witness.consumers):
            assert {logs[place], logs[(place + 1) % len(logs)]} <= set(met[consumer])
