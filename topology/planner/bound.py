"""A proven lower bound of the cost of any tree, for components too large for the exact search.

Each consumer's logs pass at least one collector.
"""

from __future__ import annotations

from topology.planner.cost import Measure


def bounded(measure: Measure) -> int:
    """Give a lower bound of the price of any tree of the component, as an integer of `measure`."""
    hops = sum(weight * load for weight, load in zip(measure.weight, measure.loads, strict=True))
    return hops * measure.cheapest_hop() * measure.scale.phi.denominator * measure.tie_work
