"""Groups: pieces around one bag, which may be below one collector together (`proof.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from topology.planner.pieces.cuts import Cut, Pieces

# What a group costs somewhere: its bag, the load of the collector above, and the load of a host, or
# what it is instead.
Expense = tuple[int, int, int]
JOINT, HUB = -1, -2


class Option(NamedTuple):
    """What a group offers a member: a way to a joint, or a step on the way, with a hop of its logs.

    The group costs `cost`, which is what may be divided; `share` is what each pays if undivided. A
    step leads below a collector with the load `to_load`. A joint has it for the boundary and the
    logs of one member.
    """

    expense: Expense
    cost: int
    share: int
    to_load: int


class Group(NamedTuple):
    """The pieces around a bag, which may be below one collector together.

    `joints` and `steps` have what it offers, by the load of the collector above. `paid` are the
    logs in boundaries of heavy members, and `loads` those of possible hosts.
    """

    bag: int
    members: list[int]
    rate: int
    paid: int
    loads: list[int]
    joints: list[Option]
    steps: list[list[Option]]


class _Around(NamedTuple):
    """The pieces around a bag that may be below a collector, and how many at most together."""

    bag: int
    members: list[int]
    most: int


def groups(pieces: Pieces, cuts: Sequence[Sequence[Cut]], heavy: Sequence[bool]) -> Iterator[Group]:
    """List the groups of the pieces that have cuts or are heavy. Loads go up to the level + 1."""
    ordered = [bool(some) or large for some, large in zip(cuts, heavy, strict=True)]
    for bag, around in pieces.around.items():
        members = [number for number in around if ordered[number]]
        most = min(len(members), len(around) - 1)  # all together are no piece's parts
        needed = paid = 0
        for member in members:
            boundary = pieces.pieces[member].boundary
            needed |= boundary
            paid |= boundary if heavy[member] else 0
        if most >= 2 and needed == bag:  # else it is not the boundary of what a collector orders
            hosts = _hosts(pieces, bag, [(member, cuts[member]) for member in members])
            options = _options(pieces, _Around(bag, members, most), paid, hosts)
            yield Group(bag, members, pieces.rate(bag), paid, sorted(hosts), *options)


def _hosts(
    pieces: Pieces, bag: int, members: Iterable[tuple[int, Iterable[Cut]]]
) -> dict[int, set[tuple[int, int]]]:
    """List the loads of hosts; with a hop of the piece, and what is discarded for the guests."""
    hosts: dict[int, set[tuple[int, int]]] = {}
    for member, cuts in members:
        piece = pieces.pieces[member]
        more = pieces.rate(bag) - piece.rate
        for cut in cuts:
            if cut.load + more <= pieces.level:
                hosts.setdefault(cut.load + more, set()).add((piece.hop, cut.discard * more))
    return hosts


def _options(
    pieces: Pieces, around: _Around, paid: int, hosts: Mapping[int, Iterable[tuple[int, int]]]
) -> tuple[list[Option], list[list[Option]]]:
    """Give the ways to joints and the steps, by the load of the collector above."""
    drop, most, bag, rate = pieces.part.drop, around.most, around.bag, pieces.rate(around.bag)
    inner = min(pieces.rates)
    for member in around.members:
        demands = pieces.pieces[member].demands
        if demands & (demands - 1) == 0:
            inner = min(inner, pieces.part.own[demands.bit_length() - 1])
    joints, steps = list[Option](), list[list[Option]]()
    for load in range(pieces.level + 2):
        share = drop * max(0, load - rate) // most  # and what the cut wants of the boundary
        cost = drop * (max(load, rate) - pieces.rate(paid))
        joints.append(Option((bag, load, JOINT), cost, share, rate + inner))
        steps.append([])
        if rate + 2 * inner < load:  # as a guest of a joint
            steps[-1].append(joints[-1]._replace(to_load=rate + 2 * inner))
        if rate < load:
            steps[-1].append(Option((bag, load, HUB), drop * load, drop * load // most, rate))
        for at, some in sorted(hosts.items()):
            saved = drop * (load - at)
            if saved > 0:
                cost = min(discard + max(0, saved - hop) for hop, discard in some)
                steps[-1].append(Option((bag, load, at), saved, cost // most, at))
    return joints, steps
