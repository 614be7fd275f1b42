"""What the trees that are cheaper than a known one may have, by a proof of a bound (`proof.py`)."""

from __future__ import annotations

from typing import NamedTuple

from topology.planner.pieces.cuts import Cut
from topology.planner.pieces.proof import NEVER, PieceBound, SharedCut


class Rest(NamedTuple):
    """What a tree costs at the least without a piece, but with its way; `least` is without it."""

    least: int
    alone: int
    shared: dict[SharedCut, int]


class CheaperTrees:
    """The cuts and heavy pieces of the trees with a cost below a limit.

    `cuts` has each cut with the least cost of a tree that has it; `heavy` says which pieces may
    have a bag above the level. A pass from the root down gives the least cost of the rest of the
    tree, by a piece's way.
    """

    def __init__(self, bound: PieceBound, below: int) -> None:
        """Find them; the bound must be proven."""
        self.bound, self.below = bound, below
        self.cuts: list[tuple[int, Cut]] = []
        self.heavy = [False] * len(bound.pieces)
        self._rest = [Rest(NEVER, NEVER, {}) for _ in bound.pieces]
        self._rest[bound.all.everyone] = Rest(0, 0, {})
        for number in reversed(bound.order):
            if self._rest[number].least >= NEVER:
                continue
            for cut, price in zip(bound.cuts[number], bound.priced[number], strict=True):
                total = NEVER if price >= NEVER else self._least_with(cut, price)
                if total < below:
                    self.cuts.append((total, cut))
            total = self._rest[number].least + bound.dear(number)
            if total < below:
                self.heavy[number] = True
                self._extend_below(number, total)

    def _least_with(self, cut: Cut, price: int) -> int:
        """Give the least cost of a tree with this cut; notes it for its parts."""
        bound, rest = self.bound, self._rest[cut.piece]
        totals = {0: rest.alone + price}
        for key, least in rest.shared.items():
            if bound.fits(cut, key):
                total = least + bound.with_more(cut, price, key.more)
                totals[key.more] = min(total, totals.get(key.more, NEVER))
        for more, total in totals.items():
            if total < self.below:
                load = min(cut.load + more, bound.cap)
                for part in cut.parts:
                    self._extend(part, total - bound.pays[part][load], load)
        return min(totals.values())

    def _extend(self, number: int, rest: int, load: int) -> None:
        """Note the cost of the rest of a tree, in which the home of a piece has some load."""
        way, known = self.bound.ways[number][load], self._rest[number]
        for key, paid in way.shared.items():
            known.shared[key] = min(rest + paid, known.shared.get(key, NEVER))
        least, alone = min(known.least, rest), min(known.alone, rest + way.alone)
        self._rest[number] = Rest(least, alone, known.shared)

    def _extend_below(self, heavy: int, total: int) -> None:
        """Note the cost of the rest of a tree for each piece within one with a heavy cut."""
        bound, demands = self.bound, self.bound.pieces[heavy].demands
        for number, piece in enumerate(bound.pieces):
            if number != heavy and not piece.demands & ~demands and bound.ways[number]:
                self._extend(number, total - bound.price(piece.demands), bound.cap)
