"""Was everything that was acknowledged delivered, once, in one order, by all nodes? Pure.

Goes in: which transaction was acknowledged for which chain, and what each node delivered of each
chain. Comes out: sentences, each a witness; none where all is well.

    lost        acknowledged, and not in a chain that it was for
    doubled     twice in one chain
    strange     in a chain, and never acknowledged for it
    fork        two nodes differ about a block of one chain
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_WITNESSES_MAX = 3


@dataclass(frozen=True, slots=True)
class DeliveredChain:
    """A chain as one node delivered it: the hash of each block, and all IDs in their order."""

    hashes: Sequence[str] = ()
    transactions: Sequence[str] = field(default=())


def judge(
    acknowledged: Mapping[str, str],
    delivered: Mapping[str, Mapping[str, DeliveredChain]],
) -> list[str]:
    """Give what is wrong; `acknowledged` is chain by ID, `delivered` node by chain and name."""
    found: list[str] = []
    for chain, nodes in delivered.items():
        wanted = {one for one, its in acknowledged.items() if its == chain}
        found += _forks(chain, nodes)
        for node, told in nodes.items():
            found += _contents(f"{chain} at {node}", wanted, told.transactions)
    return found


def _contents(where: str, wanted: set[str], seen: Sequence[str]) -> Iterator[str]:
    counts = Counter(seen)
    yield from _some(f"lost in {where}", sorted(wanted - counts.keys()))
    yield from _some(f"strange in {where}", [one for one in counts if one not in wanted])
    yield from _some(f"doubled in {where}", [one for one, times in counts.items() if times > 1])


def _forks(chain: str, nodes: Mapping[str, DeliveredChain]) -> Iterator[str]:
    for (one, first), (other, second) in pairwise(nodes.items()):
        if len(first.hashes) != len(second.hashes):
            sizes = f"{len(first.hashes)} blocks at {one} and {len(second.hashes)} at {other}"
            yield f"fork: {chain} has {sizes}"
        for number, pair in enumerate(zip(first.hashes, second.hashes, strict=False)):
            if pair[0] != pair[1]:
                yield f"fork: block {number} of {chain} differs between {one} and {other}"
                break


def _some(what: str, found: Sequence[str]) -> Iterator[str]:
    if found:
        more = f" and {len(found) - _WITNESSES_MAX} more" if len(found) > _WITNESSES_MAX else ""
        yield f"{what}: {', '.join(found[:_WITNESSES_MAX])}{more}"
