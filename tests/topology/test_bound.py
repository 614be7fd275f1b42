"""The lower bound against every tree: never above the least cost, and equal where it must be."""

import itertools
import random
from dataclasses import replace
from functools import cache

import pytest

from tests.topology.test_optimal import random_file
from topology.interests import Hosts
from topology.planner.cost import Measure, bits
from topology.planner.exact import SearchState, best_choices, choices
from topology.planner.reduction import reduced
from topology.proof import bound
from topology.proof.boundaries import (
    Budget,
    Exhausted,
    Restricted,
    small_boundaries,
)
from topology.proof.light import NEVER, LightCollectors
from topology.proof.pairs import partners
from topology.proof.prices import DemandPrices, Numbers

STEPS = 10_000_000


def random_part(seed):
    """A connected problem of 2 to 5 demands; weights below one and phi of 10, 1 and 0.1 too."""
    dice = random.Random(seed)
    while True:
        count, logs = dice.randint(2, 5), dice.randint(2, 8)
        largest = dice.choice((3, count))
        readers = [dice.randrange(1, 1 << count) for _ in range(logs)]
        readers = [mask for mask in readers if mask.bit_count() <= largest]
        rates = [dice.randint(1, 3) if seed % 2 else 1 for _ in readers]
        weight = [dice.randint(1, 4) if seed % 3 else 1 for _ in range(count)]
        one = dice.choice((1, 2, 3)) if seed % 3 else 1
        discard, hop = dice.choice(((10, 1), (1, 1), (1, 10)))
        joined = 1
        for _ in range(count):
            for mask in readers:
                joined |= mask if mask & joined else 0
        if joined == (1 << count) - 1:
            units = tuple(m for m, rate in zip(readers, rates, strict=True) for _ in range(rate))
            drop = discard * min(one, *weight)
            return Restricted(units, tuple(weight), hop, drop, discard), discard * one


def uneven(seed, part, largest):
    """The part with other rates of its logs, of up to `largest` units."""
    dice = random.Random(seed)
    rates = {mask: dice.randint(1, largest) for mask in part.readers}
    return replace(part, readers=tuple(m for m, rate in rates.items() for _ in range(rate)))


def divisions(demands):
    """List the ways to divide a set of demands among children."""
    if not demands:
        yield ()
        return
    first, rest = demands & -demands, demands & (demands - 1)
    some = rest
    while True:
        for others in divisions(rest & ~some):
            yield (first | some, *others)
        if not some:
            return
        some = (some - 1) & rest


def least_of_all_trees(part, price):
    """Search all trees; `price` is of a collector: what is below, what it serves, its children."""

    @cache
    def least(below):
        costs, served = [], below
        while True:
            costs.extend(
                price(below, served, children) + sum(map(least, children))
                for children in divisions(below & ~served)
                if below not in children
            )
            if not served:
                return min(costs)
            served = (served - 1) & below

    return least(part.everyone)


def least_cost(part, drop):
    """Search all trees, by the definition of the cost; entries that are dropped cost `drop`.

    The hops of own logs are left out.
    """

    def touched(demands):
        return {n for n, mask in enumerate(part.readers) if mask & demands}

    def inner(demands):
        return {n for n in touched(demands) if not part.readers[n] & ~demands}

    def price(below, served, children):
        bag = touched(below).difference(*(inner(child) for child in children))
        wanted = touched(served)
        cost = drop * len(bag - wanted)
        cost += sum(drop * len(bag - (touched(child) - inner(child))) for child in children)
        for demand in bits(served):
            cost += part.discard * part.weight[demand] * len(bag - touched(1 << demand))
        for number in bag:
            cost += part.hop * sum(part.weight[d] for d in bits(part.readers[number] & below))
        return cost

    own_hops = part.hop * sum(w * own for w, own in zip(part.weight, part.own, strict=True))
    return least_of_all_trees(part, price) - own_hops


@pytest.mark.parametrize("level", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(24))
def test_no_prices_at_any_level_prove_more_than_the_least_cost(seed, level):
    part, drop = random_part(seed)
    dice = random.Random(seed)
    least = least_cost(part, drop)

    light = LightCollectors(part, level, Budget(STEPS))
    prices = DemandPrices(light)
    any_prices = [
        [dice.randint(-20, 60) for _ in part.weight],
        [dice.randint(0, 9) * len(mask) for mask in map(list, map(bits, part.needs))],
        prices.served,
    ]

    for some in any_prices:
        assert prices.proven(some) <= least


@pytest.mark.parametrize("seed", range(12))
def test_the_search_for_prices_proves_more_than_the_first_prices_and_no_more_than_the_least(seed):
    part, drop = random_part(seed)
    part = Restricted(
        part.readers, part.weight, part.hop * 100, part.drop * 100, part.discard * 100
    )
    low, high = (DemandPrices(LightCollectors(part, level, Budget(STEPS))) for level in (2, 3))

    first, numbers = low.best(stopped=lambda: False)
    bound, _ = high.best(numbers, stopped=lambda: False)

    assert first >= low.proven(low.prices(Numbers()))
    assert bound >= high.proven(high.prices(numbers))
    assert max(first, bound) <= 100 * least_cost(part, drop)


def least_value(light):
    """Give the least value of all demands over all trees with light collectors only."""
    values = [0, *[NEVER] * (light.nodes - 1)]
    for place in range(len(light.sets)):
        values[place + 1] = light.least(place, values)
    return values[light.node[light.part.everyone]]


@pytest.mark.parametrize("seed", range(24))
def test_if_every_bag_is_light_the_bound_is_the_least_cost(seed):
    part, drop = random_part(seed)

    least = least_value(LightCollectors(part, len(part.readers), Budget(STEPS)))

    assert least <= least_cost(part, drop)
    assert drop != part.drop or least == least_cost(part, drop)


@pytest.mark.slow
@pytest.mark.parametrize("phi", [10.0, 1.0, 0.1])
@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_areas_coarse_rates_few_steps_and_hosts_only_lower_the_bound(seed, hosts, phi, monkeypatch):
    file = random_file(seed, logs=6, count=4)
    leaders = dict.fromkeys(file.partitions, "b")
    where = Hosts(("a", "b"), ((1.0, 5.0), (5.0, 2.0)), leaders) if hosts else None
    problem = reduced(file)
    for part in problem.components:
        measure = Measure(part, rates=problem.rates, weights=problem.weights, phi=phi, hosts=where)
        root = SearchState(part.everyone, -1, None)
        least = best_choices(choices(measure))[root][0]
        for demands, units, steps in (
            (64, 512, STEPS),
            (2, 512, STEPS),
            (64, 9, STEPS),
            (3, 30, 60),
        ):
            monkeypatch.setattr(bound, "UNDIVIDED_DEMANDS_MAX", demands)
            monkeypatch.setattr(bound, "AREA_DEMANDS_MAX", demands)
            monkeypatch.setattr(bound, "UNITS_MAX", units)
            assert 0 < bound.bounded(measure, steps=steps) <= least


def test_a_level_that_cannot_end_within_the_budget_is_not_begun():
    part, _ = random_part(0)
    lower = LightCollectors(part, 3, Budget(STEPS))
    few = lower.steps // 4
    sets = Budget(STEPS)
    small_boundaries(part, 4, sets)
    budget = Budget(STEPS - sets.steps + few)  # all sets of demands, then a few steps more

    with pytest.raises(Exhausted):
        LightCollectors(part, 4, budget, lower=lower)

    assert budget.steps == few, "the search of families was begun"


@pytest.mark.parametrize("steps", [300, 3000, STEPS])
@pytest.mark.parametrize("seed", range(12))
def test_of_levels_with_hardly_more_collectors_only_the_highest_is_given(seed, steps, monkeypatch):
    part = uneven(seed, random_part(seed)[0], 12)
    given = list(bound._light_levels(part, Budget(steps)))
    counts = [light.count for light in given]
    assert all(more > bound.GROWN * few for few, more in itertools.pairwise(counts[:-1]))
    for light in given:
        direct = LightCollectors(part, light.level, Budget(STEPS))
        assert (light.keys, light.passing) == (direct.keys, direct.passing)

    monkeypatch.setattr(bound, "GROWN", 0)
    each = list(bound._light_levels(part, Budget(steps)))

    assert [light.level for light in given[-1:]] == [light.level for light in each[-1:]]


@pytest.mark.parametrize("largest_rate", [1, 12])
@pytest.mark.parametrize("level", [1, 2, 3, 5, 9, 20])
@pytest.mark.parametrize("seed", range(24))
def test_partners_are_all_disjoint_pairs_of_sets_whose_boundaries_fit_together(
    seed, level, largest_rate
):
    part = uneven(seed, random_part(seed)[0], largest_rate)
    listed = small_boundaries(part, level, Budget(STEPS))
    alike = part.alike
    expected = {
        (one, other)
        for one in listed
        for other in listed
        if not other & alike.highest(one)
        and one & -one <= other & -other
        and (listed[one] | listed[other]).bit_count() <= level
    }

    found = [(one, other) for one, others, _ in partners(part, listed, level) for other in others]

    assert sorted(found) == sorted(expected), "each pair is listed once"
    assert all(alike.union(one, other) in listed for one, other in found)
