"""Who runs which node: a list of members and the nodes' names go in, everybody's part comes out.

Pure, so that members with the same list come to the same answer and need not talk. That the lists
differ for a moment is no harm: any number of instances of a node may run at once, and a standby
does the work of a node that nobody thinks his.

    primary   orders the node's logs
    standby   follows, and takes over within a second where the primary falls silent

Invariants, of N nodes and M members: each node has one primary, and one standby where M > 1,
another than the primary; a member is primary of floor(N/M) or of ceil(N/M) nodes.
Where a member comes or goes, few of the others' nodes move: each node ranks the members by a digest
of both names, and takes the first that has room.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """Who runs one node; no standby where there is one member only."""

    primary: str
    standby: str | None


def share_out(nodes: Sequence[str], members: Sequence[str]) -> Mapping[str, Placement]:
    """Give each node its place; `members` must not be empty. The order of neither matters."""
    assert members, "somebody shares out, so somebody is there"
    ranks = {node: _ranked(node, members) for node in sorted(nodes)}
    least, more = divmod(len(ranks), len(members))
    primaries: Counter[str] = Counter()
    standbys: Counter[str] = Counter()
    chosen: dict[str, str] = {}
    for node, ranked in ranks.items():
        room = least + (more > 0)
        chosen[node] = primary = next(one for one in ranked if primaries[one] < room)
        primaries[primary] += 1
        more -= primaries[primary] == least + 1
    places: dict[str, Placement] = {}
    for node, ranked in ranks.items():
        others = [one for one in ranked if one != chosen[node]]
        standby = min(others, key=lambda one: standbys[one]) if others else None
        if standby is not None:
            standbys[standby] += 1
        places[node] = Placement(chosen[node], standby)
    return places


def _ranked(node: str, members: Sequence[str]) -> list[str]:
    def digest(member: str) -> bytes:
        return hashlib.blake2b(f"{node}\0{member}".encode(), digest_size=16).digest()

    return sorted(members, key=lambda member: (digest(member), member))
