"""The command `python -m bench.fuzz`."""

from __future__ import annotations

import argparse
import sys

from bench.fuzz.campaign import SEED, run
from bench.fuzz.table import table


def main() -> int:
    """Fuzz; return the exit code: 1 where something came out that must not."""
    known = {target.name: target for target in table()}
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--target", choices=sorted(known), action="append")
    asked = parser.parse_args()
    chosen = [known[name] for name in asked.target or known]
    tallies = run(chosen, asked.inputs, seed=asked.seed, first=asked.first)
    return 1 if any(tally.failures for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
