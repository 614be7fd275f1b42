"""Makes interest files, for benchmarks and tests of the planner: seeds give the same ones again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from topology.interests import InterestFile, from_document
from topology.tree import PHI_DEFAULT


def file_of(
    interests: Mapping[str, Sequence[str]], destinations: Sequence[Sequence[str]] = ()
) -> InterestFile:
    """Make an interest file from consumers' interests and declared destination sets."""
    partitions = sorted({name for interest in interests.values() for name in interest})
    document: dict[str, Any] = {
        "topic": "bench",
        "partitions": partitions,
        "destinations": [list(to) for to in destinations],
        "consumer": [{"name": n, "interest": sorted(i)} for n, i in interests.items()],
    }
    return from_document(document)


def chain(count: int) -> InterestFile:
    """Neighbours share one partition, and each has one of its own."""
    return file_of({f"C{n:03}": [f"P{2 * n + k:03}" for k in range(3)] for n in range(count)})


def star(count: int) -> InterestFile:
    """One interest shares a partition with each other one."""
    rays = {f"ray{n}": [f"s{n}", f"p{n}", f"q{n}"] for n in range(count)}
    return file_of({"centre": [f"s{n}" for n in range(count)], **rays})


def hubs(count: int, members: int) -> InterestFile:
    """All share `a`, and the members of a group its `x`; each has one of its own, and high weight.

    If (count - 1) * (members - 2) > 2, each least tree has a collector that holds `a` and all `x`.
    """
    file = file_of(
        {f"C{x}-{y}": ["a", f"x{x}", f"y{x}-{y}"] for x in range(count) for y in range(members)}
    )
    # A hop weighs more than all that such a collector passes on and its children drop, times phi.
    foreign = count + 1 + members * count * (count - 1)
    weight = PHI_DEFAULT * foreign + 1
    return replace(file, consumers=tuple(replace(c, weight=weight) for c in file.consumers))


def acyclic(seed: int, partitions: int = 64, count: int = 50) -> InterestFile:
    """Each interest of 3 to 6 takes some partitions of one before it, and new ones."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    first = dice.randint(3, 6)
    interests = [[f"P{n:03}" for n in range(first)]]
    for number in range(1, count):
        size, base = dice.randint(3, 6), dice.choice(interests)
        left = partitions - first
        fresh = min(size - 1, 1 if left <= count - number else dice.randint(1, 2), left)
        shared = dice.sample(base, min(len(base), size - fresh))
        interests.append([*shared, *(f"P{first + n:03}" for n in range(fresh))])
        first += fresh
    return file_of({f"C{n:03}": interest for n, interest in enumerate(interests)})


def scattered(seed: int, partitions: int = 64, count: int = 50) -> InterestFile:
    """Interests of 3 to 6 partitions anywhere: the worst case."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    names = [f"P{n:03}" for n in range(partitions)]
    return file_of({f"C{n:03}": dice.sample(names, dice.randint(3, 6)) for n in range(count)})


def local(seed: int, partitions: int = 64, count: int = 50, span: int = 12) -> InterestFile:
    """Interests of 3 to 6 partitions within a window of a ring."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    interests = {}
    for number in range(count):
        middle = dice.randrange(partitions)
        near = [f"P{(middle + k) % partitions:04}" for k in range(span)]
        interests[f"C{number:04}"] = dice.sample(near, dice.randint(3, 6))
    return file_of(interests)


def windows(count: int) -> InterestFile:
    """Each interest takes four successive partitions."""
    return file_of({f"C{n:03}": [f"P{n + k:03}" for k in range(4)] for n in range(count)})


def pairs(count: int) -> InterestFile:
    """Chains of blocks with transactions between any two of them."""
    names = [f"chain{n}" for n in range(count)]
    sets = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    return file_of({name: [name] for name in names}, sets)
