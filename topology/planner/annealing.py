"""Moves of subtrees in a tree of collectors, and simulated annealing with them. Integers only.

A `MovableTree` holds items: demands, and subtrees that stay as they are (`fixed`; only their
boundary counts). `moved_to` lifts one subtree off and prices every place where it could go in one
pass over the tree; `annealed` takes a place at random among those that cost little more than the
best, at a falling temperature, and keeps the best tree. No clock: a budget counts moves. The random
numbers are a sequence of integers, so the same input gives the same tree on every machine.

What a pass uses: with count(K) = weight served at K + number of its children,

    foreign = sum over K of  (count(K) - 1) * rate(bag(K)) + rate(relayed at K)  + a constant
    hops    = sum over K of  hops of the demands below K - hops of the logs inner to a child of K

If the subtree X goes somewhere below the child C of K, then the bag of K gains the logs of X's
boundary that K did not touch, and loses those that only C and X need. Neither depends on where
below C. So the change of all collectors above a place adds up on the way down.

    below      the items of a subtree        touch    the classes that they need
    boundary   of those, the ones that items outside need, too        inner    the others
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

NONE = -1
FAR_OFF = 1 << 400  # the price of a place that is not allowed
# How a floating subtree meets the collector of a place: a new collector above it has both as
# children; it becomes the collector's parent; its child; or their demands and children are joined.
BESIDE, ABOVE, CHILD, JOINED = range(4)
# Knuth's MMIX generator, modulo 2**64; its low bits are poor and left out.
FACTOR, STEP, WORD, LOW_BITS = 6364136223846793005, 1442695040888963407, (1 << 64) - 1, 20
# Exponentially distributed numbers with mean 1000, each as likely as the other.
EXPONENTIAL = [int(-1000 * math.log((number + 0.5) / 256)) for number in range(256)]
SUMS_KEPT_MAX = 200_000  # some 40 MB
LIFT_MAX = 3  # collectors above an item's own that are tried as roots of the subtree to move
EXCESS_WEIGHT = 2  # times the items: more than a log in the busiest bag can save


class Sums(dict[int, int]):
    """The sum of the values of a bit set's members; it remembers the sums that it gave."""

    def __init__(self, values: Sequence[int]) -> None:
        super().__init__({0: 0})
        self._tables: list[list[int]] = []
        for base in range(0, len(values), 8):
            table = [0]
            for value in values[base : base + 8]:
                table += [value + other for other in table]
            self._tables.append(table)

    def __missing__(self, mask: int) -> int:
        if len(self) > SUMS_KEPT_MAX:
            self.clear()
        whole = mask.to_bytes(len(self._tables), "little")
        total = sum([table[byte] for table, byte in zip(self._tables, whole, strict=True)])
        self[mask] = total
        return total


@dataclass(frozen=True, slots=True)
class Item:
    """A demand, or a fixed subtree: the classes it shares with others, and hops to it per level."""

    touch: int
    hops: int
    weight: int = 0
    fixed: bool = False
    levels: int = 1


@dataclass(frozen=True, slots=True)
class Pricing:
    """What places cost. `foreign` of a class: one entry too many; `hops`: a level for all readers.

    `unit` is the weight of a collector. Loads are in the unit of `foreign`.
    """

    foreign: Sums
    hops: Sums
    unit: int
    load_max: int | None = None
    load_wanted: int | None = None
    levels_max: int | None = None

    @property
    def bent(self) -> bool:
        """Whether a load may cost more than its rate."""
        return self.load_max is not None or self.load_wanted is not None


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


class MovableTree:
    """A tree of collectors in arrays; node numbers are reused.

    `outside` are the classes that readers outside the tree need.
    """

    def __init__(self, items: Sequence[Item], pricing: Pricing, *, outside: int = 0) -> None:
        size = 2 * len(items) + 4
        self.items = items
        self.pricing = pricing
        self.outside = outside
        self.heavy = EXCESS_WEIGHT * len(items)
        self.root = NONE
        self.parent = [NONE] * size
        self.children: list[list[int]] = [[] for _ in range(size)]
        self.serves: list[list[int]] = [[] for _ in range(size)]
        self.wanted = [0] * size
        self.count = [0] * size
        self.touch = [0] * size
        self.hops = [0] * size
        self.fixed = [False] * size
        self.levels = [1] * size
        self.place = [NONE] * len(items)
        self.free = list(range(size - 1, -1, -1))

    # -- the tree ---------------------------------------------------------------------------

    def leaf(self, number: int) -> int:
        """Make a floating node of one item."""
        item = self.items[number]
        node = self.node([] if item.fixed else [number])
        self.place[number] = node
        self.touch[node], self.hops[node] = item.touch, item.hops
        self.fixed[node], self.levels[node] = item.fixed, item.levels
        return node

    def node(self, serves: list[int], children: Sequence[int] = ()) -> int:
        """Make a floating node that serves demands and has children."""
        node = self.free.pop()
        self.parent[node] = NONE
        self.children[node] = list(children)
        self.serves[node] = serves
        self.fixed[node], self.levels[node] = False, 1
        self.wanted[node], self.hops[node] = 0, 0
        self.count[node] = self.pricing.unit * len(children)
        for number in serves:
            self.place[number] = node
            self.wanted[node] |= self.items[number].touch
            self.hops[node] += self.items[number].hops
            self.count[node] += self.items[number].weight
        for child in children:
            self.parent[child] = node
            self.hops[node] += self.hops[child]
        self._touched(node)
        return node

    def nodes(self) -> list[int]:
        """List the nodes, parents before children."""
        order = [self.root]
        for node in order:
            order.extend(self.children[node])
        return order

    def _touched(self, node: int) -> None:
        """Compute again what a node and all above it touch."""
        touch = self.touch
        while node >= 0:
            mask = self.wanted[node]
            for child in self.children[node]:
                mask |= touch[child]
            touch[node] = mask
            node = self.parent[node]

    def _lighter(self, node: int, hops: int) -> None:
        """Subtract the hops of demands that went away from a node and all above it."""
        while node >= 0:
            self.hops[node] -= hops
            node = self.parent[node]

    def around(self, node: int, out: int) -> tuple[int, int, int]:
        """Give a node's bag, and the classes that its children's surroundings surely and may need.

        `out` are the classes needed outside the node. A child's surroundings need the first set,
        and those of the second that the child does not touch.
        """
        once = twice = 0
        for child in self.children[node]:
            touch = self.touch[child]
            twice |= once & touch
            once |= touch
        wanted = self.wanted[node]
        return wanted | twice | (once & out), out | wanted | twice, once

    def bags(self) -> list[tuple[int, int, int]]:
        """List nodes, parents first, each with its bag and the classes needed outside it."""
        listed, pending = [], [(self.root, self.outside)]
        while pending:
            node, out = pending.pop()
            if self.fixed[node]:
                listed.append((node, self.touch[node], out))
                continue
            bag, sure, once = self.around(node, out)
            listed.append((node, bag, out))
            pending += [(c, sure | (once & ~self.touch[c])) for c in self.children[node]]
        return listed

    def price(self) -> int:
        """Give the price of all collectors, without fixed subtrees and up to a constant."""
        pricing, total = self.pricing, 0
        for node, bag, _ in self.bags():
            if not self.fixed[node]:
                load = pricing.foreign[bag]
                total += (self.count[node] - pricing.unit) * load
                total += pricing.unit * pricing.foreign[bag & ~self.wanted[node]]
                total += self.hops[node] - pricing.hops[self.touch[node] & ~bag]
                total += self._excess(load)
        return total

    def _excess(self, load: int) -> int:
        pricing, over = self.pricing, 0
        if pricing.load_wanted is not None and load > pricing.load_wanted:
            over = (load - pricing.load_wanted) * pricing.unit
        if pricing.load_max is not None and load > pricing.load_max:
            over += (load - pricing.load_max) * pricing.unit * self.heavy
        return over

    def count_levels(self, top: int) -> None:
        """Compute the levels of all subtrees under a node."""
        order = [top]
        for node in order:
            order.extend(self.children[node])
        for node in reversed(order):
            if not self.fixed[node]:
                self.levels[node] = 1 + max((self.levels[c] for c in self.children[node]), default=0)

    # -- lifting a subtree off, and putting it down ---------------------------------------------

    def lift_item(self, number: int) -> tuple[int, int]:
        """Lift off one demand of a node that has more. Give its new node, and its old place."""
        node, item = self.place[number], self.items[number]
        self.serves[node].remove(number)
        self.count[node] -= item.weight
        self.wanted[node] = 0
        for other in self.serves[node]:
            self.wanted[node] |= self.items[other].touch
        old = 4 * node + JOINED
        if not self.serves[node] and len(self.children[node]) == 1:
            child = self._shortcut(node)
            old, node = 4 * child + ABOVE, self.parent[child]
        self._touched(node)
        self._lighter(node, item.hops)
        return self.leaf(number), old

    def lift(self, node: int) -> int:
        """Lift off a node, which is not the root, with its subtree. Give its old place."""
        above = self.parent[node]
        self.parent[node] = NONE
        self.children[above].remove(node)
        self.count[above] -= self.pricing.unit
        old = 4 * above + CHILD
        if not self.serves[above] and len(self.children[above]) == 1:
            child = self._shortcut(above)
            old, above = 4 * child + BESIDE, self.parent[child]
        self._touched(above)
        self._lighter(above, self.hops[node])
        return old

    def lift_rest(self, child: int) -> tuple[int, int]:
        """Lift off everything but the subtree of a child of the root, which stays as the tree."""
        top = self.root
        self.parent[child] = NONE
        self.children[top].remove(child)
        self.count[top] -= self.pricing.unit
        old = 4 * child + ABOVE
        if not self.serves[top] and len(self.children[top]) == 1:
            old, top = 4 * child + BESIDE, self._shortcut(top)
        else:
            self.hops[top] -= self.hops[child]
            self._touched(top)
        self.root = child
        return top, old

    def _shortcut(self, node: int) -> int:
        """Replace a node that serves nobody by its only child."""
        child, above = self.children[node][0], self.parent[node]
        self.hang(child, above, node)
        self.children[node] = []
        self.free.append(node)
        return child

    def hang(self, node: int, above: int, instead: int) -> None:
        """Make a node the child of `above` that `instead` was, or the root."""
        self.parent[node] = above
        if above >= 0:
            siblings = self.children[above]
            siblings[siblings.index(instead)] = node
        else:
            self.root = node

    def put(self, afloat: int, place: int) -> None:
        """Put a floating subtree down at a place."""
        node, kind = place >> 2, place & 3
        hops = self.hops[afloat]
        if kind == CHILD:
            self.children[node].append(afloat)
            self.parent[afloat] = node
            self.count[node] += self.pricing.unit
        elif kind == JOINED:
            for child in self.children[afloat]:
                self.parent[child] = node
            for number in self.serves[afloat]:
                self.place[number] = node
            self.children[node] += self.children[afloat]
            self.serves[node] += self.serves[afloat]
            self.wanted[node] |= self.wanted[afloat]
            self.count[node] += self.count[afloat]
            self.free.append(afloat)
        else:
            above = self.parent[node]
            if kind == BESIDE:
                top = self.node([], [node, afloat])
            else:
                top = afloat
                self.children[top].append(node)
                self.parent[node] = top
                self.count[top] += self.pricing.unit
                self.hops[top] += self.hops[node]
            self.hang(top, above, node)
            self._touched(top)
            node = above
        self._touched(node)
        self._lighter(node, -hops)

    # -- prices of all places ---------------------------------------------------------------

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
        relayed = pricing.unit * pricing.foreign[bag & ~wanted]
        own = (count - pricing.unit) * load
        return _Afloat(
            touch, boundary, hops, levels, False, bag, wanted, count, own, own + relayed
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

    def _limited(
        self,
        x: _Afloat,
        four: tuple[int, int, int, int],
        bags: tuple[int, int, int],
        load: int,
        gain: int,
        depth: int,
        levels: int,
    ) -> tuple[int, int, int, int]:
        """Add what loads above the limits cost, and rule out places that need too many levels."""
        beside, over, child, joined = four
        if self.pricing.bent:
            foreign, excess = self.pricing.foreign, self._excess
            x_now, now = excess(foreign[x.bag]), excess(load)
            beside += excess(foreign[bags[0]])
            over += excess(foreign[bags[1]]) - x_now
            child += excess(load + gain) - now
            joined += excess(foreign[bags[2]]) - now - x_now
        left = FAR_OFF if self.pricing.levels_max is None else self.pricing.levels_max - depth
        return (
            FAR_OFF if max(levels, x.levels) > left else beside,
            FAR_OFF if max(levels, x.levels - 1) > left else over,
            FAR_OFF if x.levels > left else child,
            FAR_OFF if x.levels - 1 > left else joined,
        )

    def _descend(
        self, x: _Afloat, slack: int, kept: set[int], prices: list[int], nodes: list[int]
    ) -> int:
        """Price the places from the root down; `kept` nodes are listed at any price."""
        foreign, level, unit = self.pricing.foreign, self.pricing.hops, self.pricing.unit
        bent, deep = self.pricing.bent, self.pricing.levels_max is not None
        children, touches = self.children, self.touch
        x_touch, x_edge, x_bag, x_hops, x_count = x.touch, x.boundary, x.bag, x.hops, x.count
        low = limit = FAR_OFF
        # A node, the classes needed outside it, the change of all above it, whether it is priced
        # at any price, and its level.
        pending = [(self.root, self.outside, 0, True, 1)]
        while pending:
            node, out, above, certain, depth = pending.pop()
            if above > limit and not certain:
                continue
            touch, out_x = touches[node], out | x_touch
            up = touch & out_x
            up_hops = self.hops[node] - level[touch & ~out_x]
            beside = above + 2 * unit * foreign[up | x_edge] + up_hops + x_hops
            over = child = joined = FAR_OFF
            if not x.fixed:
                over = above + x_count * foreign[x_bag | up] - x.own + up_hops
                over += unit * foreign[up & ~x_bag]
            bag = load = gain = 0
            if not self.fixed[node]:
                once = twice = 0
                for other in children[node]:
                    mask = touches[other]
                    twice |= once & mask
                    once |= mask
                wanted, count = self.wanted[node], self.count[node]
                sure = wanted | twice
                bag = sure | (once & out_x)
                load, gain = foreign[bag], foreign[x_edge & ~touch]
                child = above + x_hops + unit * load + (count + unit) * gain
                if not x.fixed:
                    both = bag | x_bag
                    joined = above + (count + x_count - unit) * foreign[both] - x.priced
                    joined += unit * foreign[both & ~(wanted | x.wanted)]
                    joined -= (count - unit) * load + unit * foreign[bag & ~wanted]
                sure |= out
                down = above + count * gain + x_hops
                for other in children[node]:
                    mask = touches[other]
                    needed = sure | (once & ~mask)
                    below, lost = down, x_edge & ~needed
                    if lost:
                        below -= count * foreign[lost] + level[lost]
                    if bent:
                        below += self._excess(load + gain - foreign[lost]) - self._excess(load)
                    fix = lost != 0 or other in kept
                    if mask & x_edge:
                        pending.append((other, needed, below, fix, depth + 1))
                    elif fix or below <= limit:
                        pending.insert(0, (other, needed, below, fix, depth + 1))
            four = beside, over, child, joined
            if bent or deep:
                masks = up | x_edge, x_bag | up, bag | x_bag
                four = self._limited(x, four, masks, load, gain, depth, self.levels[node])
            nodes.append(node)
            prices += four
            best = min(four)
            if best < low:
                low, limit = best, best + slack
        return limit

    # -- the search -------------------------------------------------------------------------

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

    def copied(self) -> tuple[int, list[list[int]], list[list[list[int]]]]:
        """Give a copy of the tree for `restore`."""
        flat = self.parent, self.wanted, self.count, self.touch, self.hops, self.place, self.free
        nested = [[*map(list, lists)] for lists in (self.children, self.serves)]
        return self.root, [[*map(int, self.fixed)], *map(list, flat)], nested

    def restore(self, copy: tuple[int, list[list[int]], list[list[list[int]]]]) -> None:
        """Make this the tree that was copied. The copy can be used once."""
        self.root, (fixed, *flat), (self.children, self.serves) = copy
        self.parent, self.wanted, self.count, self.touch, self.hops, self.place, self.free = flat
        self.fixed = [flag == 1 for flag in fixed]


def annealed(tree: MovableTree, moves: int, *, hot: int, cold: int, seed: int) -> int:
    """Move subtrees so many times while the temperature falls from `hot` to `cold`, fast first.

    Temperatures are differences of price. The tree is the best that was met afterwards.
    Gives its price.
    """
    price = best = tree.price()
    kept = tree.copied()
    for left in range(moves, 0, -1):
        heat = cold + (hot - cold) * left * left // (moves * moves)
        seed = (seed * FACTOR + STEP) & WORD
        lifted = tree.lifted(seed >> LOW_BITS)
        if lifted is None:
            continue
        node, old = lifted
        seed = (seed * FACTOR + STEP) & WORD
        draw = seed >> LOW_BITS
        slack = heat * EXPONENTIAL[draw & 255] // 1000
        prices, nodes, limit, was = tree.places(node, slack, old)
        near = [number for number, change in enumerate(prices) if change <= limit]
        chosen = near[(draw >> 8) % len(near)]
        tree.put(node, 4 * nodes[chosen >> 2] + (chosen & 3))
        price += prices[chosen] - was
        if price < best:
            best, kept = price, tree.copied()
    tree.restore(kept)
    return best
