"""Explores every interleaving of the real cores in small worlds, up to the first violation.

    python -m bench.search [--scope NAME] [--larger]

The search is breadth first: it takes every possible step from each state, and visits equal states
once. Nothing is drawn at random, so no behaviour of this size is missed. `explorer` says what is
checked. The exit code is 3 for a violation; the shortest path to it is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from bench.search.explorer import ScopeExplorer, ScopeResult
from bench.search.scopes import LARGER, SCOPES


def _report(exploration: ScopeResult, seconds: float) -> bool:
    lines = [
        (
            f"states {exploration.states:,}  steps {exploration.steps:,}  "
            f"at rest {exploration.at_rest:,}  seconds {seconds:.1f}"
        ),
        *([f"violated: {exploration.violation}"] if exploration.violation else []),
        *(f"  {number}. {step}" for number, step in enumerate(exploration.path, 1)),
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return not exploration.violation


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code, 3 for a violation."""
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--scope", choices=[*SCOPES, *LARGER], help="one scope")
    parser.add_argument("--larger", action="store_true", help="the larger scopes, too")
    options = parser.parse_args(arguments)
    every = SCOPES | LARGER
    scopes = every if options.larger else SCOPES
    if options.scope:
        scopes = {options.scope: every[options.scope]}
    for name, scope in scopes.items():
        sys.stdout.write(f"{name}: ")
        sys.stdout.flush()
        began = time.monotonic()
        if not _report(ScopeExplorer(scope).explore(), time.monotonic() - began):
            return 3
    sys.stdout.write("nothing is violated\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
