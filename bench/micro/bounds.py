"""Prints the planner's lower bound of one input: `python -m bench.micro.bounds local1 4000000`.

The input is `local1`, `scattered0`, `scattered1`, `large`, `hubs`, or `acyclic0` to `acyclic2`; the
number is the budget of steps. The bound depends on these only. (The planner also compares it with
the best tree that it knows, and ends early if they meet.) The seconds are CPU time of this process
and of the solvers.
"""

from __future__ import annotations

import argparse
import sys

from bench.micro.planner import acyclic, cpu_seconds, hubs, local, measures, scattered
from topology.planner.bound import STEPS_MAX, bounded
from topology.planner.cost import Measure, TreeNode

INPUTS = {
    "local1": lambda: local(1),
    "scattered0": lambda: scattered(0),
    "scattered1": lambda: scattered(1),
    "large": lambda: local(0, 1000, 1000),
    "hubs": lambda: hubs(3, 4),
    "acyclic0": lambda: acyclic(0),
    "acyclic1": lambda: acyclic(1),
    "acyclic2": lambda: acyclic(2),
}


def bound_of(measure: Measure, steps: int) -> float:
    """Bound the cost of one part's trees, as if one collector for all was the best tree known."""
    everyone = measure.component.everyone
    known = TreeNode(everyone, everyone, ())
    return measure.cost(bounded(measure, steps=steps, known=known).bound)


def main(name: str, steps: int) -> None:
    """Print the sum of the bounds of all parts, and the CPU seconds."""
    bound = sum(bound_of(measure, steps) for measure in measures(INPUTS[name]()))
    sys.stdout.write(f"{name} steps {steps} bound {bound:g} CPU {cpu_seconds():.0f} s\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.micro.bounds", description=__doc__)
    parser.add_argument("input", choices=INPUTS)
    parser.add_argument("steps", type=int, nargs="?", default=STEPS_MAX)
    options = parser.parse_args()
    main(options.input, options.steps)
