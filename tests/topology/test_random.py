"""Any interests, rates, weights, limits and hosts give a sound plan, or the name of a limit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topology.check import check, figures
from topology.interests import from_document
from topology.planner.solver import Infeasible, solve
from topology.proof import proven
from topology.tree import Plan

NAMES = [f"P{number}" for number in range(6)]
RATES = st.sampled_from([0.0, 0.1, 1.0, 2.5, 1234.56])


@st.composite
def documents(draw):
    partitions = NAMES[: draw(st.integers(1, 6))]
    some = st.lists(st.sampled_from(partitions), min_size=1, max_size=4, unique=True)
    destinations = []
    if len(partitions) > 1:
        wide = st.lists(st.sampled_from(partitions), min_size=2, max_size=4, unique=True)
        destinations = draw(st.lists(wide.map(sorted), max_size=3, unique_by=tuple))
    logs = [*partitions, *("+".join(to) for to in destinations)]
    consumers = [
        {"name": f"C{number}", "interest": interest, "weight": draw(RATES)}
        for number, interest in enumerate(draw(st.lists(some, min_size=1, max_size=9)))
    ]
    document = {
        "topic": "A",
        "partitions": partitions,
        "destinations": destinations,
        "consumer": consumers,
        "rates": draw(st.dictionaries(st.sampled_from(logs), RATES, max_size=4)),
    }
    limits = {
        "collector_rate_max": st.sampled_from([3.0, 5000.0]),
        "levels_max": st.integers(1, 3),
        "collectors_max": st.integers(1, 6),
        "collectors_per_host_max": st.integers(1, 3),
        "collector_rate_wanted": st.sampled_from([0.5, 2.0]),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(limits)), max_size=2, unique=True))
    document["limits"] = {name: draw(limits[name]) for name in chosen}
    if draw(st.booleans()):
        cell = st.sampled_from([0.0, 0.3, 1.0, 40.0])
        document["hosts"] = {
            "names": ["x", "y"],
            "latency": [[draw(cell), draw(cell)], [draw(cell), draw(cell)]],
            "leaders": draw(st.dictionaries(st.sampled_from(logs), st.sampled_from("xy"))),
        }
    else:
        document["limits"].pop("collectors_per_host_max", None)  # there it is refused
    return document


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True)
@given(documents(), st.sampled_from([10.0, 0.1]))
def test_a_plan_is_sound_or_the_limit_that_cannot_hold_is_named(document, phi):
    file = from_document(document)
    try:
        solution = solve(file, phi=phi, effort=0.1)
    except Infeasible as refused:
        assert any(name in str(refused) for name in document["limits"])  # noqa: PT017
        return
    plan = solution.plan
    check(plan)
    assert Plan.from_json(json.loads(plan.canonical())).canonical() == plan.canonical()
    check(proven(solution))
    assert solve(file, phi=phi, effort=0.1).plan.canonical() == plan.canonical()
    computed = figures(plan)
    assert computed.genuineness <= 1
