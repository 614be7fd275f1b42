"""The lower bound against the least cost: never above it, and equal where one area holds all."""

from fractions import Fraction

import pytest

from tests.topology.test_optimal import random_file
from topology import proof
from topology.interests import Hosts, PlanLimits
from topology.planner.cost import Measure
from topology.planner.exact import SearchState, best_choices, choices
from topology.planner.reduction import reduced
from topology.planner.watch import Watch


def measures(seed, *, phi=10.0, hosts=None, limits=None):
    """Give small parts with weights and rates below one, each with the least cost of a tree."""
    problem = reduced(random_file(seed, logs=6, count=4))
    for part in problem.components:
        measure = Measure(
            part, rates=problem.rates, weights=problem.weights, phi=phi, hosts=hosts, limits=limits
        )
        root = SearchState(part.everyone, -1, None)
        price = best_choices(choices(measure))[root][0]
        yield measure, Fraction(price // measure.tie_work, measure.scale.cost)


@pytest.mark.parametrize("phi", [10.0, 1.0, 0.1])
@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_areas_and_hosts_only_lower_the_bound(seed, hosts, phi, monkeypatch):
    leaders = dict.fromkeys((f"P{number:02}" for number in range(6)), "b")
    where = Hosts(("a", "b"), ((1.0, 5.0), (5.0, 2.0)), leaders) if hosts else None
    for measure, least in measures(seed, phi=phi, hosts=where):
        for demands in (1, 2, 3, 6):
            monkeypatch.setattr(proof, "AREA_DEMANDS_MAX", demands)
            assert 0 < proof.bounded(measure) <= least


@pytest.mark.parametrize("seed", range(24))
def test_the_bound_of_a_part_that_one_area_holds_is_the_least_cost(seed):
    for measure, least in measures(seed):
        assert proof.bounded(measure) == least


@pytest.mark.parametrize("seed", range(8))
def test_limits_are_ignored(seed):
    wanted = PlanLimits(collector_rate_wanted=0.5)
    limited = [proof.bounded(measure) for measure, _ in measures(seed, limits=wanted)]

    assert limited == [proof.bounded(measure) for measure, _ in measures(seed)]


def test_hops_that_cost_nothing_leave_the_foreign_work():
    free = Hosts(("a", "b"), ((0.0, 3.0), (3.0, 0.0)), {})
    for measure, least in measures(1, hosts=free):
        assert 0 <= proof.bounded(measure) <= least


def test_what_is_left_when_it_is_stopped_counts_with_its_hops():
    for measure, _ in measures(1):
        stopped = proof.bounded(measure, watch=Watch(stopped=lambda: True))
        hops = sum(w * load for w, load in zip(measure.weight, measure.loads, strict=True))
        assert stopped == Fraction(hops, measure.scale.rates * measure.scale.weights)
