"""Judges the parts that blocks of several chains hold: torn transfers, pairwise order, cycles.

The input is, for each chain, its parts in the order of its blocks. Nothing else is consulted: no
client, no log, no node's word. A pure function: no I/O, no clock.

    torn       a transfer has a part in one of its chains, and not exactly one in each of them; or
               its parts disagree about its chains; or a part is not the envelope whose hash its
               siblings' metadata hold
    inverted   two chains have two common transfers in opposite orders
    cycle      chains whose orders have no common order, though each two may agree

Each violation is one sentence, a witness.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from multicast.verification.acyclic import core, shortest_cycle


@dataclass(frozen=True, slots=True)
class ChainPart:
    """One part of a transfer, as one chain's block holds it.

    `key`: the bundle ID in hexadecimal, or the transfer's name where it is no bundle. `digest`:
    SHA-256 of the envelope. `siblings`: the hash of each other chain's envelope, in the order of
    `chains`, as the block's metadata say; empty where it is no bundle.
    """

    key: str
    chains: tuple[str, ...]
    block: int
    index: int
    digest: bytes = b""
    siblings: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ChainsVerdict:
    """What the judge counted. `torn` has a witness for each torn transfer, by key."""

    transfers: int
    torn: Mapping[str, str]
    pairs: int
    """Pairs of chains with at least two common transfers."""
    inverted: Sequence[str]
    """A witness for each pair of chains that does not agree."""
    cycle: str
    """A witness, empty where a common order of all chains exists."""

    @property
    def witnesses(self) -> list[str]:
        """All violations, none where nothing is wrong."""
        return [*self.torn.values(), *self.inverted, *([self.cycle] if self.cycle else [])]


def judge_chains(chains: Mapping[str, Sequence[ChainPart]]) -> ChainsVerdict:
    """Judge the parts of all chains, each in the order of its blocks."""
    by_key: dict[str, list[tuple[str, ChainPart]]] = {}
    for chain, parts in chains.items():
        for part in parts:
            by_key.setdefault(part.key, []).append((chain, part))
    torn = {}
    for key, held in by_key.items():
        reason = next(_torn(held), None)
        if reason is not None:
            torn[key] = f"torn: {key[:16]} {reason}"
    numbers = {key: number for number, key in enumerate(by_key)}
    sequences = {chain: _sequence(parts, numbers) for chain, parts in chains.items()}
    pairs, inverted = _pairs(sequences, list(by_key))
    return ChainsVerdict(len(by_key), torn, pairs, inverted, _cycle(sequences, list(by_key)))


def _torn(held: Sequence[tuple[str, ChainPart]]) -> Iterator[str]:
    """Yield what is wrong with the parts of one transfer, by chain."""
    chain, first = held[0]
    for other, part in held[1:]:
        if part.chains != first.chains:
            yield (
                f"is for {'+'.join(first.chains)} in {chain}, "
                f"and for {'+'.join(part.chains)} in {other}"
            )
    names = [name for name, _ in held]
    for name in first.chains:
        if name not in names:
            yield f"is in {'+'.join(names)}, and not in {name}"
    for name in names:
        if names.count(name) > 1:
            yield f"is in {name} {names.count(name)} times"
        if name not in first.chains:
            yield f"is in {name}, and is for {'+'.join(first.chains)}"
    yield from _exchanged(dict(held))


def _exchanged(parts: Mapping[str, ChainPart]) -> Iterator[str]:
    """Yield which part of a complete transfer is not the one that its siblings' blocks say."""
    for name, part in parts.items():
        others = [other for other in part.chains if other != name]
        for other, digest in zip(others, part.siblings, strict=False):
            if parts[other].digest != digest:
                yield f"has another envelope in {other} than the block of {name} says"


def _sequence(parts: Sequence[ChainPart], numbers: Mapping[str, int]) -> array[int]:
    """Give a chain's transfers as numbers in order; one that occurs twice, where it is first."""
    return array("i", dict.fromkeys(numbers[part.key] for part in parts))


def _pairs(sequences: Mapping[str, array[int]], keys: Sequence[str]) -> tuple[int, list[str]]:
    """Compare each two chains' common transfers; returns the number of pairs, and witnesses."""
    pairs, witnesses = 0, []
    places = {
        chain: {number: place for place, number in enumerate(sequence)}
        for chain, sequence in sequences.items()
    }
    for first, second in combinations(sequences, 2):
        common = [number for number in sequences[first] if number in places[second]]
        if len(common) < 2:
            continue
        pairs += 1
        for before, after in pairwise(common):
            if places[second][before] > places[second][after]:
                witnesses.append(
                    f"inverted: {first} has {keys[before][:16]} before {keys[after][:16]}, "
                    f"{second} has them the other way round"
                )
                break
    return pairs, witnesses


def _cycle(sequences: Mapping[str, array[int]], keys: Sequence[str]) -> str:
    names = list(sequences)
    rest = core(list(sequences.values()), len(keys))
    if not rest:
        return ""
    steps = (
        f"{names[step.sequence]} has "
        f"{keys[rest.sequences[step.sequence][step.earlier]][:16]} before "
        f"{keys[rest.sequences[step.sequence][step.later]][:16]}"
        for step in shortest_cycle(rest)
    )
    return "cycle: " + ", ".join(steps)
