"""Demands that are alike: fewer sets are searched, and the least trees and bounds are the same."""

import random
from dataclasses import replace

import pytest

from bench.harness.acyclic_interests import grouped, measured, services
from tests.topology.test_bound import STEPS, least_cost, least_value
from topology.check import check
from topology.planner.cost import bits
from topology.planner.solver import solve
from topology.proof.bound import proven
from topology.proof.boundaries import (
    KINDS_SETS_MAX,
    Budget,
    Restricted,
    small_boundaries,
)
from topology.proof.light import LightCollectors
from topology.proof.pairs import partners
from topology.proof.prices import DemandPrices


def part_with_alike(seed, *, sets_max=KINDS_SETS_MAX):
    """A connected problem of 3 to 6 demands of at most three kinds; own logs, weights.

    With a small `sets_max`, the own rates of a kind differ.
    """
    dice = random.Random(seed)
    while True:
        shared = dice.randint(1, 4)
        readers, weight = [0] * shared, []
        for _ in range(dice.randint(1, 3)):
            needs, own = dice.randrange(1, 1 << shared), dice.randint(0, 2)
            heavy = dice.randint(1, 3) if seed % 3 else 1
            for _ in range(dice.randint(1, 4)):
                bit = 1 << len(weight)
                for log in bits(needs):
                    readers[log] |= bit
                readers += [bit] * (own if sets_max == KINDS_SETS_MAX else dice.randint(0, 3))
                weight.append(heavy)
        order = dice.sample(range(len(weight)), len(weight))
        readers = [sum(1 << order[d] for d in bits(mask)) for mask in readers if mask]
        joined = 1
        for _ in weight:
            for mask in readers:
                joined |= mask if mask & joined else 0
        if 3 <= len(weight) <= 6 and joined == (1 << len(weight)) - 1:
            weights = [0] * len(weight)
            for demand, place in enumerate(order):
                weights[place] = weight[demand]
            discard, hop = dice.choice(((10, 1), (1, 1), (1, 10)))
            prices = hop, discard * min(weight), discard
            part = Restricted(tuple(readers), tuple(weights), *prices, sets_max=sets_max)
            if part.alike.groups:
                return part


def first_set(part, demands):
    """The set that holds the lowest of each group, by the definition."""
    result = demands & ~sum(part.alike.groups)
    for group in part.alike.groups:
        held = (group & demands).bit_count()
        result |= sum(1 << demand for demand in list(bits(group))[:held])
    return result


@pytest.mark.parametrize("level", [1, 2, 4, 20])
@pytest.mark.parametrize("seed", range(40))
def test_one_of_all_sets_that_differ_by_exchanges_is_listed(seed, level):
    part = part_with_alike(seed)
    expected = {}
    for demands in range(1, part.everyone + 1):
        logs = part.touched(demands) & part.touched(part.everyone & ~demands)
        if logs.bit_count() <= level or demands.bit_count() == 1:
            expected[first_set(part, demands)] = logs.bit_count()

    listed = small_boundaries(part, level, Budget(STEPS))

    assert {demands: logs.bit_count() for demands, logs in listed.items()} == expected
    for demands, logs in listed.items():
        assert logs == part.touched(demands) & part.touched(part.everyone & ~demands)


@pytest.mark.parametrize("level", [1, 3, 20])
@pytest.mark.parametrize("seed", range(40))
def test_partners_are_all_pairs_of_first_sets_that_fit(seed, level):
    part = part_with_alike(seed)
    listed = small_boundaries(part, level, Budget(STEPS))
    expected = {
        (one, other)
        for one in listed
        for other in listed
        if not other & part.alike.highest(one)
        and one & -one <= other & -other
        and (listed[one] | listed[other]).bit_count() <= level
    }

    found = [(one, other) for one, others, _ in partners(part, listed, level) for other in others]

    assert sorted(found) == sorted(expected)
    assert all(part.alike.union(one, other) in listed for one, other in found)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(40))
def test_no_prices_prove_more_than_the_least_cost(seed, level):
    part, dice = part_with_alike(seed), random.Random(seed)
    least = least_cost(part, part.drop)
    for prices in (None, [dice.randint(-20, 60) for _ in part.weight]):
        finder = DemandPrices(LightCollectors(part, level, Budget(STEPS)))
        assert finder.proven(prices or finder.served) <= least


@pytest.mark.parametrize("seed", range(40))
def test_if_every_bag_is_light_the_least_value_is_the_least_cost(seed):
    part = part_with_alike(seed)
    light = LightCollectors(part, len(part.readers), Budget(STEPS))
    assert least_value(light) == least_cost(part, part.drop)


def rated(common, own):
    """Services whose own rates are far from the common one, or near it but not multiples."""
    file = services(12)
    rates = {name: float(own + place % 7) for place, name in enumerate(file.partitions)}
    return replace(file, rates=rates | {"common": float(common)})


@pytest.mark.parametrize(
    ("file", "cost"),
    [
        (services(), 160),
        (services(own_max=3), 209),
        (services(120), 370),
        (grouped(), 410),
        (measured(0, services()), 3843),
        (rated(1, 300_000), 3_600_070),
        (rated(1000, 1000), 46_036),
    ],
    ids=[
        "one log of their own",
        "one to three",
        "more than a hundred",
        "groups",
        "measured rates",
        "great",
        "near",
    ],
)
def test_fifty_services_with_common_logs_are_proven_least(file, cost):
    plan = proven(solve(file, effort=0.1))

    check(plan)
    assert plan.objective.cost == cost
    assert plan.objective.gap == 0
