"""Check that all nodes delivered all acknowledged transactions, each once, in the same order.

The input is which transaction was acknowledged for which chain, and what each node delivered of
each chain. Each violation is one sentence, a witness. A pure function: no I/O, no clock.

    lost        acknowledged for a chain, but not in it
    doubled     twice in one chain
    strange     in a chain, but never acknowledged for it
    fork        two nodes have different blocks at the same number of one chain
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

_WITNESSES_MAX = 3  # transactions named in one witness, to keep it one readable sentence


@dataclass(frozen=True, slots=True)
class DeliveredChain:
    """A chain as one node delivered it: each block's hash, and all transaction IDs in order."""

    hashes: Sequence[str] = ()
    transactions: Sequence[str] = field(default=())


def judge(
    acknowledged: Mapping[str, str],
    delivered: Mapping[str, Mapping[str, DeliveredChain]],
) -> list[str]:
    """Return the witnesses, empty where nothing is wrong.

    `acknowledged` maps a transaction ID to its chain; `delivered` maps chain, then node name, to
    what that node delivered.
    """
    witnesses: list[str] = []
    for chain, nodes in delivered.items():
        expected = {
            transaction for transaction, its_chain in acknowledged.items() if its_chain == chain
        }
        witnesses += _forks(chain, nodes)
        for node, history in nodes.items():
            witnesses += _contents(f"{chain} at {node}", expected, history.transactions)
    return witnesses


def _contents(where: str, expected: set[str], delivered: Sequence[str]) -> Iterator[str]:
    counts = Counter(delivered)
    yield from _some(f"lost in {where}", sorted(expected - counts.keys()))
    yield from _some(f"strange in {where}", [each for each in counts if each not in expected])
    yield from _some(f"doubled in {where}", [each for each, times in counts.items() if times > 1])


def _forks(chain: str, nodes: Mapping[str, DeliveredChain]) -> Iterator[str]:
    for (node, first), (other, second) in pairwise(nodes.items()):
        if len(first.hashes) != len(second.hashes):
            sizes = f"{len(first.hashes)} blocks at {node} and {len(second.hashes)} at {other}"
            yield f"fork: {chain} has {sizes}"
        for number, pair in enumerate(zip(first.hashes, second.hashes, strict=False)):
            if pair[0] != pair[1]:
                yield f"fork: block {number} of {chain} differs between {node} and {other}"
                break


def _some(what: str, transactions: Sequence[str]) -> Iterator[str]:
    if transactions:
        more = (
            f" and {len(transactions) - _WITNESSES_MAX} more"
            if len(transactions) > _WITNESSES_MAX
            else ""
        )
        yield f"{what}: {', '.join(transactions[:_WITNESSES_MAX])}{more}"
