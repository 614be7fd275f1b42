"""Simulated annealing of a tree of collectors. Integers only.

`PricedTree.places` prices every place where a floating subtree could go, in one pass over the tree;
`annealed` takes one at random among those that cost little more than the best, at a falling
temperature, and keeps the best tree; `settled` takes the best as long as that gains. No clock: a
budget counts moves. The random numbers are a
sequence of integers, so the same input gives the same tree on every machine.

Why one pass: if the subtree X goes somewhere below the child C of K, then the bag of K gains the
classes of X's boundary that K did not touch, and loses those that only C and X need. Neither
depends on where below C. So the change of all collectors above a place adds up on the way down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from topology.planner.movable_tree import NONE, MovableTree

FAR_OFF = 1 << 400  # the price of a place that is not allowed
# Knuth's MMIX generator, modulo 2**64; its low bits are poor and left out.
FACTOR, STEP, WORD, LOW_BITS = 6364136223846793005, 1442695040888963407, (1 << 64) - 1, 20
# Exponentially distributed numbers with mean 1000, each as likely as the other.
EXPONENTIAL = [int(-1000 * math.log((number + 0.5) / 256)) for number in range(256)]
LIFT_MAX = 3  # collectors above an item's own that are tried as roots of the subtree to move
# A move that prices more nodes than twice this counts as several. In most trees of fifty demands a
# move prices 6 to 13 nodes; under a collector with a thousand children it prices all of these.
NODES_PER_MOVE = 24
PASSES_MAX = 4  # over all demands, at the end; a pass that gains nothing is the last one


@dataclass(frozen=True, slots=True)
class _Afloat:
    """A subtree that was lifted off: its root's bag, what its consumers want, and its own terms."""

    touch: int
    boundary: int
    hops: int
    levels: int
    fixed: bool
    bag: int = 0
    wanted: int = 0
    count: int = 0
    own: int = 0
    priced: int = 0


class PricedTree(MovableTree):
    """A tree that prices the places of a floating subtree."""

    def _afloat(self, node: int) -> _Afloat:
        pricing = self.pricing
        touch, out = self.touch[node], self.touch[self.root] | self.outside
        boundary = touch & out
        hops = self.hops[node] - pricing.hops[touch & ~boundary]
        if pricing.levels_max is not None:
            self.count_levels(node)
            self.count_levels(self.root)
        levels = self.levels[node]
        if self.fixed[node]:
            return _Afloat(touch, boundary, hops, levels, fixed=True)
        bag, _, _ = self.around(node, out)
        load, wanted, count = pricing.foreign[bag], self.wanted[node], self.count[node]
        passed_on = pricing.unit * pricing.foreign[bag & ~wanted]
        own = (count - pricing.unit) * load
        return _Afloat(
            touch, boundary, hops, levels, False, bag, wanted, count, own, own + passed_on
        )

    def places(self, node: int, slack: int, old: int) -> tuple[list[int], list[int], int, int]:
        """Price the places of a floating subtree; those far from it and too dear are left out.

        A place is 4 * node + kind. Gives the changes of the price, four for each listed node, by
        kind; the listed nodes; the limit, which is the best price and `slack`; and the price of the
        place `old`.
        """
        kept, above = set(), old >> 2
        while above >= 0:
            kept.add(above)
            above = self.parent[above]
        prices: list[int] = []
        nodes: list[int] = []
        limit = self._descend(self._afloat(node), slack, kept, prices, nodes)
        was = prices[4 * nodes.index(old >> 2) + (old & 3)] if kept else 0
        return prices, nodes, limit, was

    def _descend(
        self, x: _Afloat, slack: int, kept: set[int], prices: list[int], nodes: list[int]
    ) -> int:
        """Price the places from the root down; `kept` nodes are listed at any price."""
        foreign, hops = self.pricing.foreign, self.pricing.hops
        touches, edge, own = self.touch, x.boundary, x.touch
        low = limit = FAR_OFF
        # A node, the classes needed outside it, the change of all above it, whether it is priced
        # at any price, and its level.
        pending = [(self.root, self.outside, 0, True, 1)]
        while pending:
            node, out, above, certain, depth = pending.pop()
            if above > limit and not certain:
                continue
            four, once, sure, load, gain = self._four(x, node, above, out | own, depth)
            nodes.append(node)
            prices += four
            best = min(four)
            if best < low:
                low, limit = best, best + slack
            sure |= out
            count = self.count[node]
            down = above + count * gain + x.hops
            for child in self.children[node]:
                touch = touches[child]
                needed = sure | (once & ~touch)
                below, lost = down, edge & ~needed
                if lost:
                    below -= count * foreign[lost] + hops[lost]
                if self.bent:
                    below += self._excess(load + gain - foreign[lost]) - self._excess(load)
                fix = lost != 0 or child in kept
                if touch & edge:
                    pending.append((child, needed, below, fix, depth + 1))
                elif fix or below <= limit:
                    pending.insert(0, (child, needed, below, fix, depth + 1))
        return limit

    def _four(
        self, x: _Afloat, node: int, above: int, out: int, depth: int
    ) -> tuple[tuple[int, int, int, int], int, int, int, int]:
        """Price the four ways to meet a node, if all above it cost `above` more.

        Also gives the classes that one of its children touches, those that are needed around each
        child, what its bag costs, and what the bag would gain.
        """
        foreign, unit = self.pricing.foreign, self.pricing.unit
        touch = self.touch[node]
        up = touch & out
        up_hops = self.hops[node] - self.pricing.hops[touch & ~out]
        beside = above + 2 * unit * foreign[up | x.boundary] + up_hops + x.hops
        over = child = joined = FAR_OFF
        if not x.fixed:
            over = above + x.count * foreign[x.bag | up] - x.own + up_hops
            over += unit * foreign[up & ~x.bag]
        once = twice = bag = load = gain = 0
        wanted, count = self.wanted[node], self.count[node]
        if not self.fixed[node]:
            for other in self.children[node]:
                mask = self.touch[other]
                twice |= once & mask
                once |= mask
            bag = wanted | twice | (once & out)
            load, gain = foreign[bag], foreign[x.boundary & ~touch]
            child = above + x.hops + unit * load + (count + unit) * gain
            if not x.fixed:
                both = bag | x.bag
                joined = above + (count + x.count - unit) * foreign[both] - x.priced
                joined += unit * foreign[both & ~(wanted | x.wanted)]
                joined -= (count - unit) * load + unit * foreign[bag & ~wanted]
        four = beside, over, child, joined
        if self.limited:
            four = self._limited(x, node, four, (up, bag, load, gain, depth))
        return four, once, wanted | twice, load, gain

    def _limited(
        self,
        x: _Afloat,
        node: int,
        four: tuple[int, int, int, int],
        more: tuple[int, int, int, int, int],
    ) -> tuple[int, int, int, int]:
        """Add what loads above the limits cost, and rule out places that need too many levels."""
        beside, over, child, joined = four
        up, bag, load, gain, depth = more
        if self.bent:
            foreign, excess = self.pricing.foreign, self._excess
            own = foreign[x.bag]
            beside += excess(foreign[up | x.boundary])
            over += excess(foreign[x.bag | up]) - excess(own)
            child += excess(load + gain) - excess(load)
            joined += excess(foreign[bag | x.bag]) - excess(load) - excess(own)
        levels = self.levels[node]
        left = FAR_OFF if self.pricing.levels_max is None else self.pricing.levels_max - depth
        return (
            FAR_OFF if max(levels, x.levels) > left else beside,
            FAR_OFF if max(levels, x.levels - 1) > left else over,
            FAR_OFF if x.levels > left else child,
            FAR_OFF if x.levels - 1 > left else joined,
        )

    def insert(self, number: int) -> None:
        """Put an item where it costs least."""
        node = self.leaf(number)
        if self.root == NONE:
            self.root = node
            return
        prices, nodes, _, _ = self.places(node, 0, 4 * NONE)
        best = prices.index(min(prices))
        self.put(node, 4 * nodes[best >> 2] + (best & 3))

    def lifted(self, draw: int) -> tuple[int, int] | None:
        """Lift something off, chosen by a random number. Give its node and its old place."""
        number, draw = draw % len(self.items), draw // len(self.items)
        node = self.place[number]
        several = len(self.serves[node]) + len(self.children[node]) > 1
        if draw & 1 and several and not self.fixed[node]:
            return self.lift_item(number)
        for _ in range((draw >> 1) % (LIFT_MAX + 1)):
            if self.parent[node] != NONE:
                node = self.parent[node]
        if node == self.root:
            if not self.children[node]:
                return None
            node = self.children[node][(draw >> 4) % len(self.children[node])]
        if self.parent[node] == self.root and draw & 8 and not self.fixed[node]:
            return self.lift_rest(node)
        return node, self.lift(node)


def annealed(
    tree: PricedTree, moves: int, *, hot: int, cold: int, seed: int, stopped: Callable[[], bool]
) -> int:
    """Move subtrees while the temperature falls from `hot` to `cold`, fast first.

    There are so many moves, or fewer where a move prices many places (`NODES_PER_MOVE`), and none
    once `stopped` says so.
    Temperatures are differences of price. The tree is the best that was met afterwards.
    Gives its price.
    """
    price = best = tree.price()
    kept = tree.copied()
    left = moves
    while left > 0 and not stopped():
        heat = cold + (hot - cold) * left * left // (moves * moves)
        seed = (seed * FACTOR + STEP) & WORD
        lifted = tree.lifted(seed >> LOW_BITS)
        if lifted is None:
            left -= 1
            continue
        node, old = lifted
        seed = (seed * FACTOR + STEP) & WORD
        draw = seed >> LOW_BITS
        slack = heat * EXPONENTIAL[draw & 255] // 1000
        prices, nodes, limit, was = tree.places(node, slack, old)
        left -= max(1, len(nodes) // NODES_PER_MOVE)
        near = [number for number, change in enumerate(prices) if change <= limit]
        chosen = near[(draw >> 8) % len(near)]
        tree.put(node, 4 * nodes[chosen >> 2] + (chosen & 3))
        price += prices[chosen] - was
        if price < best:
            best, kept = price, tree.copied()
    tree.restore(kept)
    return best


def settled(tree: PricedTree, *, nodes_max: int, stopped: Callable[[], bool]) -> None:
    """Move each demand, and each of its collectors, to where it costs least, as long as that gains.

    No pass begins after so many nodes were priced, and it ends once `stopped` says so. Annealing
    leaves many small errors below a collector with hundreds of children: as many places cost little
    more than the best, and one of all is taken at random.
    """
    left = nodes_max
    for _ in range(PASSES_MAX):
        gained = False
        for number in range(len(tree.items)):
            if stopped():
                return
            for node, old in _lifted_in_turn(tree, number):
                prices, nodes, _, was = tree.places(node, 0, old)
                least = min(prices)
                best = prices.index(least)
                tree.put(node, 4 * nodes[best >> 2] + (best & 3) if least < was else old)
                gained |= least < was
                left -= len(nodes)
        if not gained or left < 0:
            return


def _lifted_in_turn(tree: PricedTree, number: int) -> Iterator[tuple[int, int]]:
    """Lift off an item, its collector and the one above, each after the other was put down.

    Gives the node and its old place.
    """
    node = tree.place[number]
    if len(tree.serves[node]) + len(tree.children[node]) > 1:
        yield tree.lift_item(number)
    node = tree.place[number]
    if tree.parent[node] != NONE:
        yield node, tree.lift(node)
    above = tree.parent[tree.place[number]]
    if above != NONE and tree.parent[above] != NONE:
        yield above, tree.lift(above)
