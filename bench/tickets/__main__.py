"""Random schedules of version 2 in virtual time: `python -m bench.tickets simulate`.

    python -m bench.tickets simulate --schedules 100000 [--first-seed K] [--processes 2]
    python -m bench.tickets simulate --first-seed N --schedules 1        repeats one

The exit code is 3 if a guarantee was violated.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from multiprocessing import get_context

from bench.tickets.simulation import TicketTotals, simulate

_CHUNK = 100  # schedules that a process takes at a time: some seconds


def _run(first: int, count: int, processes: int) -> Iterator[TicketTotals]:
    starts = range(first, first + count, _CHUNK)
    counts = [min(_CHUNK, first + count - start) for start in starts]
    if processes == 1:
        yield from map(simulate, starts, counts)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(simulate, starts, counts)


def _simulate(first: int, count: int, processes: int) -> int:
    began = time.monotonic()
    totals = TicketTotals()
    for more in _run(first, count, processes):
        for name in (field.name for field in fields(TicketTotals)):
            value, other = getattr(totals, name), getattr(more, name)
            if isinstance(value, Counter):
                value.update(other)
            elif name not in ("violation", "seed", "digest"):
                setattr(totals, name, value + other)
        totals.digest ^= more.digest
        if more.violation:
            totals.violation, totals.seed = more.violation, more.seed
            break
    write = sys.stdout.write
    write(
        f"schedules {totals.schedules:,}  epochs {totals.epochs:,}  "
        f"multicasts {totals.multicasts:,}  deliveries {totals.deliveries:,}  "
        f"skips {totals.skips:,}  corrections {totals.corrections:,}\n"
        f"checkpoints {totals.checkpoints:,}  removed {totals.removed:,}  "
        f"restored {totals.restored:,}\n"
        f"seconds {time.monotonic() - began:.0f}  processes {processes}  "
        f"digest {totals.digest:016x}\n"
    )
    for title, counts in (("faults", totals.faults), ("not counted", totals.uncounted)):
        shown = ", ".join(f"{name} {number:,}" for name, number in sorted(counts.items()))
        write(f"{title}: {shown}\n")
    if totals.violation:
        write(
            f"violated: {totals.violation}\n"
            f"to repeat: python -m bench.tickets simulate --first-seed {totals.seed} "
            f"--schedules 1\n"
        )
        return 3
    write("nothing is violated\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.tickets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    simulating = commands.add_parser("simulate", help="run random schedules in virtual time")
    simulating.add_argument("--schedules", type=int, default=1000)
    simulating.add_argument("--first-seed", type=int, default=0)
    simulating.add_argument("--processes", type=int, default=1)
    options = parser.parse_args(arguments)
    if options.schedules < 1 or options.processes < 1:
        parser.error("--schedules and --processes must be 1 or more")
    return _simulate(options.first_seed, options.schedules, options.processes)


if __name__ == "__main__":
    sys.exit(main())
