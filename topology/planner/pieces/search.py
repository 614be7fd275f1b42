"""The bound by pieces of one part: levels, divisions and branches.

level      up to it bags are listed, and it rises as long as the steps suffice: each time to the
           last one before another bag, since the higher of two with the same bags proves more
division   of what groups cost (`proof.py`): even at first, then by linear programs (`shares.py`).
           If a tree is known, each proof leaves out cuts that no cheaper tree has (`cheaper.py`),
           for the next levels, too. A program has the cuts of the cheapest trees only; others
           follow if the next proof finds cheaper trees with them
branch     if nothing more is left out: a tree has one of the cuts that are left, or it has not.
           The lower of the two bounds counts
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topology.planner.boundaries import Budget, Exhausted, Restricted
from topology.planner.integer_program import maximised, relaxed
from topology.planner.pieces.cheaper import CheaperTrees
from topology.planner.pieces.cuts import Cut, Pieces
from topology.planner.pieces.proof import PieceBound, Shares
from topology.planner.pieces.shares import UNDIVIDED, Division, Flow

LEVELS = 128  # at most so many up to the rate of all shared logs
FAR = 0.7  # of the cost of the known tree: if the bound lacks more, programs take too long
BEHIND = 0.45  # of another bound: one that is lower after programs hardly gets above it
PROGRAMS = 60  # for one level or branch at most
PROGRAM_CUTS = 500  # with which the programs of a level begin; and so many more at a time
PROGRAM_STEPS = 20_000  # to start the solver
CUT_STEPS = 20  # of a proof, for each cut
# The last program is the one after which this many did not bring the bound nearer to the known tree
# by that part of the distance.
PATIENCE, NEARER = 4, 0.02
BRANCH_CUTS_MAX, BRANCH_HEAVY_MAX = 300, 2  # with more, another level leaves out more


class Level(NamedTuple):
    """What one level proves: a bound; how many pieces and cuts there are, and are left at the end.

    `cuts` are those that were listed at this level and those below. `heavy` is the number of pieces
    that may still have a bag above the level. `programs` says whether expenses were divided by
    programs.
    """

    level: int
    bound: int
    pieces: int
    cuts: int
    left: int
    heavy: int
    programs: bool


def bounded_by_pieces(
    part: Restricted, budget: Budget, *, below: int | None = None, proven: int = 0
) -> int:
    """Give a lower bound of the cost of a part, without the hops of own logs.

    If a tree is known, `below` is its cost, and the bound is not more: then no tree is cheaper.
    It ends early if it stays far behind a bound that is `proven`. Blocks; starts solver processes
    and waits for their end.
    """
    best = sum(part.leaf(demand) for demand in range(len(part.weight)))
    for level in levels(part, budget, below=below):
        best = max(best, level.bound)
        if level.programs and best < BEHIND * proven:
            break
    return best if below is None else min(best, below)


def levels(part: Restricted, budget: Budget, *, below: int | None = None) -> Iterator[Level]:
    """Bound a part at one level after the other, as far as the steps suffice (see above)."""
    if len(part.weight) == 1 or part.drop == 0:
        return
    level, listed, cuts = 0, 0, 0
    pieces, node, search = None, Node([], []), Search(budget, below)
    while level < part.shared and (below is None or search.best < below):
        level += max(1, part.shared // LEVELS)
        left = budget.steps
        try:
            pieces = Pieces(part, level, budget, pieces, node.heavy)
        except Exhausted:
            return
        growth, listed = (left - budget.steps) / (listed or left), left - budget.steps
        pieces.raise_level()
        node, level = node.raised(pieces), pieces.level
        search.bound(pieces, node)
        cuts += len(pieces.cuts)
        counts = len(pieces.pieces), cuts, len(node.cuts), sum(node.heavy), bool(node.expenses)
        yield Level(level, search.best, *counts)
        if not any(node.heavy) or listed * growth > budget.steps:
            return


@dataclass(slots=True)
class Node:
    """What trees are left: their cuts, and the pieces that may have larger bags.

    `expenses` are divided by `division`: bags with a load (`Expense`). `doubtful` are cuts which
    the last program's optimum takes in part; those that it takes by about one half come first.
    """

    cuts: list[Cut]
    heavy: Sequence[bool]
    division: Division = UNDIVIDED
    expenses: set[tuple[int, int]] = field(default_factory=set)
    doubtful: Sequence[Cut] = ()

    def raised(self, pieces: Pieces) -> Node:
        """Add what is listed at the next level. Greater loads have the shares of the last one."""
        heavy = [pieces.rate(pieces.touched(p.demands)) > pieces.level for p in pieces.pieces]
        for number, before in enumerate(self.heavy):
            heavy[number] &= before
        shares = dict(self.division.shares)
        for bag, at in {(bag, at) for bag, _, at in shares}:
            known = Shares({}, {})
            for load in range(pieces.level + 2):
                known = shares.setdefault((bag, load, at), known)
        division = self.division._replace(shares=shares)
        return Node([*self.cuts, *pieces.cuts], heavy, division, set(self.expenses))


class Search:
    """Bounds the trees of a part; `best` is the greatest bound of all of them so far."""

    def __init__(self, budget: Budget, below: int | None) -> None:
        """Bound trees with a cost below that of a known one; or, without one, all trees."""
        self.budget, self.below, self.best = budget, below, 0

    def bound(self, pieces: Pieces, node: Node) -> None:
        """Bound the trees of a level; without a known tree, by one proof."""
        try:
            self._divided(pieces, node, whole=True)
            few = len(node.cuts) <= BRANCH_CUTS_MAX and sum(node.heavy) <= BRANCH_HEAVY_MAX
            if few and self.below is not None and self.best < self.below:
                self.best = max(self.best, self._branched(pieces, node))
        except Exhausted:
            self.budget.steps = 0

    def _divided(self, pieces: Pieces, node: Node, *, whole: bool) -> int:
        """Divide expenses better and better, and leave out cuts; give the best bound.

        `whole` says whether each cheaper tree than the known one is in the node.
        """
        best, bounds, division = 0, list[int](), node.division
        flow, active, upper, used = None, set[Cut](), 0, set[tuple[int, int]]()
        for _ in range(PROGRAMS):
            proof = PieceBound(pieces, node.cuts, node.heavy, division.shares)
            self.budget.take(CUT_STEPS * len(node.cuts))
            found = proof.bound(maximised, division.prices)
            if found is None and not proof.violating:
                break
            if found is not None and found > best:
                best, node.division = found, division
                self.best = max(self.best, best) if whole else self.best
            bounds.append(best)
            if self._ends(bounds):
                break
            assert self.below is not None, "it ends after one proof"
            worse = list(proof.violating)
            if found is not None:
                cheaper = CheaperTrees(proof, self.below)
                node.cuts, node.heavy = [cut for _, cut in cheaper.cuts], cheaper.heavy
                order = sorted(cheaper.cuts, key=lambda pair: pair[0])
                worse += [cut for least, cut in order if flow is None or least < upper]
            new = [cut for cut in worse if cut not in active][:PROGRAM_CUTS]
            if flow is not None and not new and not used:
                break
            active = {cut for cut in node.cuts if cut in active}.union(new)
            flow = Flow(proof, node.expenses, [cut for cut in node.cuts if cut in active])
            self.budget.take(PROGRAM_STEPS + len(flow.program.costs))
            answer = relaxed(flow.program)
            if answer is None:
                break
            upper, division = flow.cost(answer), flow.division(answer)
            used, node.doubtful = flow.used(answer), flow.doubtful(answer)
            node.expenses |= used
        return best

    def _ends(self, bounds: Sequence[int]) -> bool:
        """Whether no more programs are worth it after these bounds, of which none is the lower."""
        last, below = bounds[-1], self.below
        if below is None or last >= below or last < (1 - FAR) * below:
            return True
        return len(bounds) > PATIENCE and last - bounds[-1 - PATIENCE] < NEARER * (below - last)

    def _branched(self, pieces: Pieces, node: Node) -> int:
        """Bound the trees with one of the cuts, and those without it."""
        count = collections.Counter(cut.piece for cut in node.cuts)
        several = {cut for cut in node.cuts if count[cut.piece] > 1 or node.heavy[cut.piece]}
        cut = next((cut for cut in node.doubtful if cut in several), None)
        if cut is None:
            return 0
        without = [other for other in node.cuts if other != cut]
        only = [other for other in node.cuts if other.piece != cut.piece or other == cut]
        light = [heavy and number != cut.piece for number, heavy in enumerate(node.heavy)]
        bounds = []
        for cuts, heavy in ((only, light), (without, node.heavy)):
            branch = Node(cuts, heavy, node.division, set(node.expenses))
            bound = self._divided(pieces, branch, whole=False)
            if self.below is not None and bound < self.below:
                bound = max(bound, self._branched(pieces, branch))
            bounds.append(bound)
        return min(bounds)
