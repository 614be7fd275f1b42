"""Interests that are acyclic by their form, for the planner: seeds give the same ones again.

First random ones, then regular ones, as services have them. Each function gives an interest file of
up to `count` interests over `partitions` partitions, at rate 1 for each (but for `measured`) and
weight 1 for each consumer. `interests.py` has a further one, `acyclic`, where many interests share
the same partition.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from bench.harness.interests import file_of
from topology.interests import InterestFile


def intervals(seed: int, partitions: int = 64, count: int = 50) -> InterestFile:
    """Take two to six successive partitions, anywhere in a line of them."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    places: set[tuple[int, int]] = set()
    while len(places) < count:
        first, size = dice.randrange(partitions), dice.randint(2, 6)
        if first + size <= partitions:
            places.add((first, size))
    return _file(range(first, first + size) for first, size in sorted(places))


def nested(seed: int, partitions: int = 64, count: int = 50) -> InterestFile:
    """Take blocks of 2, 4, 8 or 16 partitions, each inside a larger block or apart from it."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    places: set[tuple[int, int]] = set()
    while len(places) < count:
        size = 2 ** dice.randint(1, 4)
        places.add((dice.randrange(0, partitions, size), size))
    return _file(range(first, first + size) for first, size in sorted(places))


def block_tree(seed: int, partitions: int = 64, count: int = 50) -> InterestFile:
    """Let each interest share one partition with one of the six before it, and add one or two."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    made, fresh = [[0, 1]], 2
    while len(made) < count and fresh < partitions - 2:
        new = dice.randint(1, 2)
        shared = dice.choice(dice.choice(made[-6:]))
        made.append([shared, *range(fresh, fresh + new)])
        fresh += new
    return _file(made)


def subtrees(seed: int, partitions: int = 64, count: int = 50, near: int = 3) -> InterestFile:
    """Make a tree of interests, and give each partition to a connected part of one to five.

    An interest hangs below one of the `near` before it. Those that got one partition only are left
    out.
    """
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    beside: list[list[int]] = [[] for _ in range(count)]
    for number in range(1, count):
        above = dice.randrange(max(0, number - near), number)
        beside[number].append(above)
        beside[above].append(number)
    made: list[list[int]] = [[] for _ in range(count)]
    for partition in range(partitions):
        size, members = dice.choice([1, 2, 2, 3, 3, 4, 5]), {dice.randrange(count)}
        while len(members) < size:
            members.add(dice.choice([n for m in members for n in beside[m] if n not in members]))
        for member in members:
            made[member].append(partition)
    return _file(interest for interest in made if len(interest) > 1)


def services(count: int = 50, own_max: int = 1) -> InterestFile:
    """Let all read one common partition, and each one to `own_max` of its own."""
    return file_of(
        {
            f"C{n:02}": ["common", *(f"own{n:02}-{k}" for k in range(n % own_max + 1))]
            for n in range(count)
        }
    )


def grouped(groups: int = 5, members: int = 10) -> InterestFile:
    """Let all read one common partition, one of their group, and one of their own."""
    return file_of(
        {
            f"C{group}-{n}": ["common", f"group{group}", f"own{group}-{n}"]
            for group in range(groups)
            for n in range(members)
        }
    )


def kinds(count: int = 50) -> InterestFile:
    """Let five kinds read different ones of three common partitions, and each one of its own."""
    common = (["a"], ["b"], ["a", "b"], ["a", "b", "c"], ["c"])
    return file_of({f"C{n:02}": [*common[n % 5], f"own{n:02}"] for n in range(count)})


def paths(width: int = 4, members: int = 3) -> InterestFile:
    """Let each read a path of three partitions in a tree of this width, and one of its own."""
    return file_of(
        {
            f"C{a}{b}{n}": ["root", f"area{a}", f"place{a}{b}", f"own{a}{b}{n}"]
            for a in range(width)
            for b in range(width)
            for n in range(members)
        }
    )


def paired(count: int = 50) -> InterestFile:
    """Let all read one common partition, each two one of theirs, and each one of its own."""
    return file_of({f"C{n:02}": ["common", f"pair{n // 2:02}", f"own{n:02}"] for n in range(count)})


def prefixes(count: int = 50) -> InterestFile:
    """Let the first read one partition, the next that and another, and so on."""
    return _file(range(n + 1) for n in range(count))


def measured(seed: int, file: InterestFile) -> InterestFile:
    """Give the partitions of a file rates from 1 to 40."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    return replace(file, rates={name: float(dice.randint(1, 40)) for name in file.partitions})


def _file(interests: Iterable[Iterable[int]]) -> InterestFile:
    named = [[f"P{number:03}" for number in interest] for interest in interests]
    return file_of({f"C{number:03}": interest for number, interest in enumerate(named)})
