"""Random interests that are acyclic by their form, for the planner: seeds give the same ones again.

Each function gives an interest file of up to `count` interests over `partitions` partitions, at
rate 1 for each and weight 1 for each consumer. `bench/micro/planner.py` has a further one,
`acyclic`, where many interests share the same partition.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

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


def _file(interests: Iterable[Iterable[int]]) -> InterestFile:
    named = [[f"P{number:03}" for number in interest] for interest in interests]
    return file_of({f"C{number:03}": interest for number, interest in enumerate(named)})
