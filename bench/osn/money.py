"""Whether the banks' money adds up at every common point of their chains.

    cut            a prefix of each chain
    common point   a cut such that each transfer is in it with all of its parts that stand in any
                   chain, or with none: where the banks can compare their books
    group          transfers that no common point separates. Where all chains have one common order,
                   each transfer is a group of its own
    effect         of a group: the sum of its changes in all chains

Every common point is a union of groups, in an order that the chains allow, and each union that is
closed under the chains' orders is a common point. So money is conserved at every common point if
and only if the effect of each group is zero, or what an opening brings in. It is enough to look at
the points of one such order: one point after each group.

Groups are the strongly connected components of "stands before, in some chain", by Kosaraju's
algorithm.
A pure function: no I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class BookEntry:
    """What a bank reads in its own blocks: a change of its balance, by the transfer's key.

    `opening`: it brings money in; its key occurs once.
    """

    key: str
    change: int
    opening: bool = False


@dataclass(frozen=True, slots=True)
class Books:
    """The balances, and what was counted over the common points."""

    balances: Mapping[str, int]
    opened: int
    points: int
    points_off: int
    """Common points at which the banks' money is not what the openings brought in."""
    witness: str
    """The first common point at which money is missing or too much; empty if there is none."""


def books(chains: Mapping[str, Sequence[BookEntry]]) -> Books:
    """Add up the entries of all chains, each in the order of its blocks."""
    effects: dict[str, int] = {}
    brought: dict[str, int] = {}
    for entries in chains.values():
        for entry in entries:
            effects[entry.key] = effects.get(entry.key, 0) + entry.change
            if entry.opening:
                brought[entry.key] = brought.get(entry.key, 0) + entry.change
    points = off = held = opened = 0
    witness = ""
    for group in groups([entry.key for entry in entries] for entries in chains.values()):
        points += 1
        held += sum(effects[key] for key in group)
        opened += sum(brought.get(key, 0) for key in group)
        if held != opened:
            off += 1
            witness = witness or (
                f"money: after {group[0][:16]} the banks hold {held}, not {opened}"
            )
    balances = {chain: sum(entry.change for entry in entries) for chain, entries in chains.items()}
    return Books(balances, opened, points, off, witness)


def groups(chains: Iterable[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the groups of these chains' keys, in an order that all chains allow."""
    after: dict[str, list[str]] = {}
    before: dict[str, list[str]] = {}
    for keys in chains:
        for key in keys:
            after.setdefault(key, [])
            before.setdefault(key, [])
        for key, following in pairwise(keys):
            after[key].append(following)
            before[following].append(key)
    left_last = [key for tree in _trees(list(after), after) for key in tree]
    yield from _trees(left_last[::-1], before)


def _trees(keys: Sequence[str], neighbours: Mapping[str, Sequence[str]]) -> Iterator[list[str]]:
    """Search depth first from each of `keys`; yield what each search enters, as it leaves it."""
    entered: dict[str, bool] = {}
    for start in keys:
        if start in entered:
            continue
        entered[start] = True
        path = [(start, iter(neighbours[start]))]
        left = []
        while path:
            key, rest = path[-1]
            other = next((each for each in rest if each not in entered), None)
            if other is None:
                left.append(key)
                path.pop()
            else:
                entered[other] = True
                path.append((other, iter(neighbours[other])))
        yield left
