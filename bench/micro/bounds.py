"""Prints the planner's lower bound of one input: `python -m bench.micro.bounds local1 4000000`.

The number is the budget of steps; the bound depends on these only. (The planner also compares it
with the best tree that it knows, and ends early if they meet.) With `--pieces` a tree is planned
first, and what each level of pieces proves is printed: how many pieces and cuts are listed, and how
many cuts, and pieces with larger bags, a cheaper tree may have. The seconds are CPU time of this
process and of the solvers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from itertools import combinations

from bench.harness.acyclic_interests import block_tree, kinds, paired, paths, services, triangles
from bench.micro.planner import acyclic, cpu_seconds, hubs, local, measures, scattered
from topology.interests import InterestFile
from topology.planner.bound import STEPS_MAX, bounded, component_by_pieces
from topology.planner.cost import Measure, TreeNode
from topology.planner.heuristic import constructed

INPUTS: dict[str, Callable[[], InterestFile]] = {
    "local1": lambda: local(1),
    "scattered0": lambda: scattered(0),
    "scattered1": lambda: scattered(1),
    "large": lambda: local(0, 1000, 1000),
    "hubs": lambda: hubs(3, 4),
    "acyclic0": lambda: acyclic(0),
    "acyclic1": lambda: acyclic(1),
    "acyclic2": lambda: acyclic(2),
    "blocktree2": lambda: block_tree(2),
    "kinds": kinds,
    "pairs": paired,
    "paths": paths,
    "services": lambda: services(1000),
    "triangles": lambda: triangles(combinations(range(7), 2)),
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


def by_pieces(name: str, steps: int) -> None:
    """Print a row for each level of the input's largest part."""
    measure = max(measures(INPUTS[name]()), key=lambda part: len(part.weight))
    known = constructed(measure, load_max=None)
    assert known is not None, "without limits there is a tree"
    sys.stdout.write(f"{name}: best known {measure.cost(measure.priced(known)):g}\n")
    started = cpu_seconds()
    for level, bound in component_by_pieces(measure, known, steps):
        sys.stdout.write(
            f"bags of {level.level}: {level.pieces} pieces, {level.cuts} cuts; left {level.left} "
            f"cuts, {level.heavy} with larger bags; bound {bound:.1f}, "
            f"CPU {cpu_seconds() - started:.1f} s\n"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.micro.bounds", description=__doc__)
    parser.add_argument("input", choices=INPUTS)
    parser.add_argument("steps", type=int, nargs="?", default=STEPS_MAX)
    parser.add_argument("--pieces", action="store_true")
    options = parser.parse_args()
    (by_pieces if options.pieces else main)(options.input, options.steps)
