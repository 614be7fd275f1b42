"""Fuzzing from a seed: millions of inputs; a failure prints the command that repeats it.

    make fuzz                                        1,000,000 inputs, seed 13
    python -m bench.fuzz --inputs N --seed S         another number, another seed
    python -m bench.fuzz --target NAME --first I --inputs 1 --seed S      one input again

Input number I of a target depends only on the seed, the target's name and I.
"""

from __future__ import annotations

import sys
import time
import traceback
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from bench.fuzz.mutation import mutated
from bench.fuzz.target import FuzzTarget

SEED = 13  # of `make fuzz`; any seed serves, a fixed one makes runs comparable
SHOWN_MAX = 400  # bytes of an input, and characters of an error, that a report prints
SLOW_S = 5.0  # an input that takes longer is a failure: foreign bytes could block a process


@dataclass(frozen=True, slots=True)
class Failure:
    """An input for which a decoder raised an unexpected exception, or took too long."""

    target: str
    number: int
    seed: int
    raw: bytes
    error: str

    def __str__(self) -> str:
        """Describe the failure, and how to repeat it."""
        shown = self.raw if len(self.raw) <= SHOWN_MAX else self.raw[:SHOWN_MAX] + b"..."
        return (
            f"{self.target}: {self.error}\n"
            f"  input ({len(self.raw)} bytes): {shown!r}\n"
            f"  to repeat: python -m bench.fuzz --target '{self.target}' --seed {self.seed} "
            f"--first {self.number} --inputs 1"
        )


@dataclass(slots=True)
class InputTally:
    """Counts of a target's inputs, and its failures."""

    name: str
    inputs: int = 0
    readable: int = 0
    seconds: float = 0.0
    failures: list[Failure] = field(default_factory=list)


def input_of(target: FuzzTarget, number: int, seed: int) -> bytes:
    """Make the input with this number."""
    rng = Random(zlib.crc32(target.name.encode()) << 96 | seed << 48 | number)  # noqa: S311
    return mutated(rng, target.valid, target.shape)


def fuzz(
    target: FuzzTarget, count: int, *, seed: int, first: int = 0, failures_max: int = 3
) -> InputTally:
    """Decode a number of inputs; stop after `failures_max` failures."""
    tally = InputTally(target.name)
    began = time.perf_counter()
    for number in range(first, first + count):
        raw = input_of(target, number, seed)
        tally.inputs += 1
        since = time.perf_counter()
        try:
            tally.readable += target.holds(raw)
            error = ""
        except Exception as wrong:  # noqa: BLE001 - any other exception is the failure
            where = traceback.extract_tb(wrong.__traceback__)[-1]
            sentence = f"{type(wrong).__name__}: {str(wrong)[:SHOWN_MAX]}"
            error = f"{sentence} ({where.filename}:{where.lineno})"
        if not error and time.perf_counter() - since > SLOW_S:
            error = f"the decoder took longer than {SLOW_S:g} s"
        if error:
            tally.failures.append(Failure(target.name, number, seed, raw, error))
            if len(tally.failures) >= failures_max:
                break
    tally.seconds = time.perf_counter() - began
    return tally


def shares(targets: Sequence[FuzzTarget], inputs: int) -> list[int]:
    """Return how many of all inputs each target gets, by its share; at least one."""
    whole = sum(target.share for target in targets)
    return [max(1, -(-inputs * target.share // whole)) for target in targets]


def run(
    targets: Sequence[FuzzTarget], inputs: int, *, seed: int, first: int = 0
) -> list[InputTally]:
    """Fuzz every target with its share, and report on standard output."""
    tallies = []
    for target, count in zip(targets, shares(targets, inputs), strict=True):
        tally = fuzz(target, count, seed=seed, first=first)
        tallies.append(tally)
        sys.stdout.write(
            f"{tally.name:24} {tally.inputs:>9,} inputs {tally.readable:>9,} readable "
            f"{tally.seconds:7.1f} s  {len(tally.failures)} failures\n"
        )
        for failure in tally.failures:
            sys.stdout.write(f"{failure}\n")
        sys.stdout.flush()
    total = sum(tally.inputs for tally in tallies)
    failed = sum(len(tally.failures) for tally in tallies)
    seconds = sum(tally.seconds for tally in tallies)
    sys.stdout.write(
        f"{total:,} inputs to {len(tallies)} decoders, seed {seed}, in {seconds:.0f} s: "
        f"{failed} failures\n"
    )
    return tallies
