"""The command `python -m bench.fuzz`."""

from __future__ import annotations

import argparse
import sys

from bench.fuzz.campaign import SEED, run
from bench.fuzz.table import table


def main() -> int:
    """Run the fuzzer; return the exit code, 1 if a decoder raised an unexpected exception."""
    known = {target.name: target for target in table()}
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--target", choices=sorted(known), action="append")
    options = parser.parse_args()
    chosen = [known[name] for name in options.target or known]
    tallies = run(chosen, options.inputs, seed=options.seed, first=options.first)
    return 1 if any(tally.failures for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
