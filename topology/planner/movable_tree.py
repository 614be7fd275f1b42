"""A tree of collectors from which subtrees can be lifted off, to be put down elsewhere.

Arrays by node, kept up to date by each operation; integers only. Prices of places: `annealing.py`.

    item       a demand, or a subtree that stays as it is (`fixed`; only its boundary counts)
    touch      the classes that the items of a subtree need
    inner      of those, the ones that nothing outside the subtree needs; the others: boundary
    place      4 * node + the way in which a floating subtree meets that node

With count(K) = weight served at K + number of its children (each as one unit of weight), a tree's
foreign work and hops are, up to a constant of foreign work:

    foreign = sum over K of  (count(K) - 1) * rate(bag(K)) + rate(classes passed on at K)
    hops    = sum over K of  hops of the demands below K - hops of the classes inner to a child of K
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

NONE = -1  # no node: the parent of the root, and of a floating subtree
# How a floating subtree meets the collector of a place: a new collector above it has both as
# children; it becomes the collector's parent; its child; or their demands and children are joined.
BESIDE, ABOVE, CHILD, JOINED = range(4)
SUMS_KEPT_MAX = 200_000  # some 40 MB
EXCESS_WEIGHT = 2  # times items times load: an overloaded collector costs more than it can save


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
class PlacePrices:
    """What places cost. `foreign` of a class: one entry too many; `hops`: a level for all readers.

    `unit` is the weight of a collector. Loads are in the unit of `foreign`.
    """

    foreign: Sums
    hops: Sums
    unit: int
    load_max: int | None = None
    load_wanted: int | None = None
    levels_max: int | None = None
    hop: int = 0  # a hop costs so many times as much as a foreign entry, rounded down


class MovableTree:
    """A tree of collectors in arrays; node numbers are reused.

    `outside` are the classes that readers outside the tree need.
    """

    def __init__(self, items: Sequence[Item], pricing: PlacePrices, *, outside: int = 0) -> None:
        size = 2 * len(items) + 4
        self.items = items
        self.pricing = pricing
        self.outside = outside
        self.bent = pricing.load_max is not None or pricing.load_wanted is not None
        self.limited = self.bent or pricing.levels_max is not None
        self.heavy = EXCESS_WEIGHT * len(items) * (1 + pricing.hop)
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

    def nodes(self, top: int | None = None) -> list[int]:
        """List the nodes under a node, by default the root, parents before children."""
        order = [self.root if top is None else top]
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

    def price(self) -> int:
        """Give the price of all collectors, without fixed subtrees and up to a constant."""
        pricing, total = self.pricing, 0
        pending = [(self.root, self.outside)]  # nodes, each with the classes needed outside it
        while pending:
            node, out = pending.pop()
            if self.fixed[node]:
                continue
            bag, sure, once = self.around(node, out)
            load = pricing.foreign[bag]
            total += (self.count[node] - pricing.unit) * load
            total += pricing.unit * pricing.foreign[bag & ~self.wanted[node]]
            total += self.hops[node] - pricing.hops[self.touch[node] & ~bag]
            total += self._excess(load)
            pending += [(c, sure | (once & ~self.touch[c])) for c in self.children[node]]
        return total

    def _excess(self, load: int) -> int:
        pricing, over = self.pricing, 0
        if pricing.load_wanted is not None and load > pricing.load_wanted:
            over = (load - pricing.load_wanted) * pricing.unit
        if pricing.load_max is not None and load > pricing.load_max:
            over += load * pricing.unit * self.heavy
        return over

    def count_levels(self, top: int) -> None:
        """Compute the levels of all subtrees under a node."""
        for node in reversed(self.nodes(top)):
            if not self.fixed[node]:
                self.levels[node] = 1 + max(
                    (self.levels[c] for c in self.children[node]), default=0
                )

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
