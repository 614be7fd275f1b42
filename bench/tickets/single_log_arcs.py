"""Counts the arcs of the planner's trees on which a child collector inherits a single log.

There, and only there, a producer that writes the child's tickets, too, would spare the relay: with
two inherited logs, the child must repeat the relative order in which its parent has them.

    python -m bench.tickets.single_log_arcs [--quick]

The inputs are those of `docs/planner.md`.
"""

from __future__ import annotations

import argparse
import sys

from bench.micro.planner import inputs
from topology.planner.solver import plan


def main() -> None:
    """Print a row for each input whose tree has arcs."""
    parser = argparse.ArgumentParser(prog="bench.tickets.single_log_arcs")
    parser.add_argument("--quick", action="store_true", help="without the large inputs")
    for kind, file in inputs(quick=parser.parse_args().quick):
        made = plan(file, cluster_id="")
        common = [
            set(child.bag) & set(made.collector(child.parent).bag)
            for child in made.collectors
            if child.parent is not None
        ]
        if common:
            single = sum(len(logs) == 1 for logs in common)
            sys.stdout.write(f"{kind:40}{single:4} of {len(common)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
