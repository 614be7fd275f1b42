"""How much a new plan gains if rates and weights drift: `python -m bench.micro.hysteresis`.

The reason for `topology.hysteresis.MARGIN_DEFAULT`. A plan is made at equal rates and weights and
then runs. Each draw multiplies all rates and weights by factors of their own, from 0.9 to 1.1
(`--drift`), plans again, and weighs the new plan against the running tree. A gain above the margin
would turn the tree over for nothing. For comparison, two real changes, each tried in several
places: one log's rate is five times as high; one more consumer takes four logs of two others.

Draws come from fixed seeds; prints one line per input and change, and a running count to stderr.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import replace

from bench.harness.interests import file_of
from bench.micro.planner import TEAMS, acyclic, local
from topology.changes import with_kept_names
from topology.hysteresis import MARGIN_DEFAULT, weighed
from topology.interests import Interest, InterestFile
from topology.planner.solver import solve
from topology.tree import Plan

RATE = 100.0  # messages/s of each log before the changes


def drifted(file: InterestFile, dice: random.Random, drift: float) -> InterestFile:
    """Multiply each rate and each weight by a factor from 1 - drift to 1 + drift."""
    return replace(
        file,
        rates={log: rate * dice.uniform(1 - drift, 1 + drift) for log, rate in file.rates.items()},
        consumers=tuple(
            replace(entry, weight=entry.weight * dice.uniform(1 - drift, 1 + drift))
            for entry in file.consumers
        ),
    )


def busier(file: InterestFile, dice: random.Random) -> InterestFile:
    """Make one log five times as busy: one that several consumers take."""
    taken = [name for entry in file.consumers for name in entry.interest]
    shared = sorted({name for name in taken if taken.count(name) > 1})
    log = dice.choice(shared)
    return replace(file, rates={**file.rates, log: 5 * file.rates[log]})


def wider(file: InterestFile, dice: random.Random) -> InterestFile:
    """Add a consumer that takes two partitions of each of two others."""
    first, second = dice.sample(file.consumers, 2)
    names = {*dice.sample(first.interest, 2), *dice.sample(second.interest, 2)}
    more = Interest("another", tuple(sorted(names)))
    return replace(file, consumers=(*file.consumers, more))


def inputs() -> Iterator[tuple[str, InterestFile]]:
    """Give the inputs, with equal rates and weights."""
    for name, file in (
        ("poster", file_of(TEAMS)),
        ("local 64 x 50", local(1)),
        ("acyclic 64 x 50", acyclic(0)),
    ):
        yield name, replace(file, rates=dict.fromkeys(file.partitions, RATE))


def gains(running: Plan, files: list[InterestFile], effort: float) -> list[float | None]:
    """Plan each file, and give what the plan gains on the running tree; None: that cannot stay."""
    results = []
    for number, file in enumerate(files, start=1):
        new = with_kept_names(running, solve(file, base_epoch=1, effort=effort).plan)
        results.append(weighed(running, new, margin=MARGIN_DEFAULT).gain)
        sys.stderr.write(f"\r{number} of {len(files)} ")
    return results


def line(what: str, gained: list[float | None]) -> str:
    """Say how large the gains were."""
    known = sorted(gain for gain in gained if gain is not None)
    text = [f"{what}: {len(gained)} plans"]
    if known:
        above = sum(gain > MARGIN_DEFAULT for gain in known)
        text.append(f"gain from {known[0]:.1%} to {known[-1]:.1%}, {above} above the margin")
    if len(known) < len(gained):
        text.append(f"{len(gained) - len(known)} that the running tree cannot serve")
    return "; ".join(text)


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--draws", type=int, default=10, help="plans for each line")
    options.add_argument("--drift", type=float, default=0.1, help="of rates and weights, relative")
    options.add_argument("--effort", type=float, default=1.0, help="of the planner")
    chosen = options.parse_args()
    for name, file in inputs():
        running = solve(file, effort=chosen.effort).plan
        dice = random.Random(1)  # noqa: S311 - a workload, not a secret
        changes = {
            f"drift of {chosen.drift:.0%}": [
                drifted(file, dice, chosen.drift) for _ in range(chosen.draws)
            ],
            "one rate times five": [busier(file, dice) for _ in range(chosen.draws)],
            "one more consumer": [wider(file, dice) for _ in range(chosen.draws)],
        }
        for what, files in changes.items():
            gained = gains(running, files, chosen.effort)
            sys.stderr.write("\r")
            sys.stdout.write(line(f"{name}, {what}", gained) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
