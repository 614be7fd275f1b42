"""The placement of collectors: which member of the group is primary or standby of each.

A pure function of the members' and the collectors' names, so members with the same list get the
same result without talking to each other. Lists that differ for a moment do no harm: a collector
may have any number of instances, and a standby takes over a collector that nobody is primary of.

    primary   orders the collector's logs
    standby   follows, and takes over within a second if the primary falls silent

Invariants, for N collectors and M members: each collector has one primary and, if M > 1, one
standby on another member; each member is primary of floor(N/M) or ceil(N/M) collectors.
If a member joins or leaves, few collectors move between the others: each collector ranks the
members by a digest of both names, and takes the first one that is not full.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Placement:
    """The members that run one collector; `standby` is None if there is only one member."""

    primary: str
    standby: str | None


def share_out(collectors: Sequence[str], members: Sequence[str]) -> Mapping[str, Placement]:
    """Place each collector on the members, which must not be empty.

    The order of either argument has no influence.
    """
    assert members, "the caller is a member, so there is at least one"
    ranks = {name: _ranked(name, members) for name in sorted(collectors)}
    least, more = divmod(len(ranks), len(members))
    primaries: Counter[str] = Counter()
    standbys: Counter[str] = Counter()
    chosen: dict[str, str] = {}
    for name, ranked in ranks.items():
        capacity = least + (more > 0)
        chosen[name] = primary = next(each for each in ranked if primaries[each] < capacity)
        primaries[primary] += 1
        more -= primaries[primary] == least + 1
    places: dict[str, Placement] = {}
    for name, ranked in ranks.items():
        others = [member for member in ranked if member != chosen[name]]
        standby = min(others, key=lambda member: standbys[member]) if others else None
        if standby is not None:
            standbys[standby] += 1
        places[name] = Placement(chosen[name], standby)
    return places


def _ranked(collector: str, members: Sequence[str]) -> list[str]:
    def digest(member: str) -> bytes:
        return hashlib.blake2b(f"{collector}\0{member}".encode(), digest_size=16).digest()

    return sorted(members, key=lambda member: (digest(member), member))
