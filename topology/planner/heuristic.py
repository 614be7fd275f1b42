"""Good trees for components that are too large for the exact search.

`constructed` gives the best tree within the limits that it finds, or None. It moves subtrees by
simulated annealing (`annealing.py`), in one window of the tree after the other. A window is a
collector with some of its descendants; the subtrees below them stay as they are. The best tree for
the demands below a collector does not depend on what is above it, so a better window is a better
tree. A large component begins with a maximum spanning tree of common rates (`greedy`). In a small
one the demands are inserted one after the other, each where it costs least, and most moves go over
the whole tree. At the end, what shares a log below one collector gets a collector of its own where
that is cheaper (`gathered`), which takes annealing several moves that are dear alone. The result is
never worse than that spanning tree, or one root for all demands. Budgets count moves, not seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from topology.planner.annealing import FACTOR, LOW_BITS, STEP, WORD, PricedTree, annealed, settled
from topology.planner.cost import NOWHERE, Measure, TreeNode, bits
from topology.planner.movable_tree import Item, PlacePrices, Sums
from topology.planner.reduction import find
from topology.planner.watch import Watch

# These bounds trade time for better trees; docs/planner.md shows times and costs with these values,
# and `--effort` multiplies them.
MOVES_PER_DEMAND = 1_600  # some 50 microseconds each: 4 s for fifty demands
MOVES_MAX = 320_000  # half a minute in windows
WHOLE_DEMANDS_MAX = 80  # up to this size the whole tree is annealed, too
WINDOW_ITEMS, WINDOW_MOVES = 25, 1_500  # windows of 40 and 60 items give the same cost, slower
SETTLED_NODES_MAX = 400_000  # some seconds
REPORTS = 20  # of the progress in windows
# Temperatures, in hundredths of what an entry too many costs at the mean rate, or a hop for a
# consumer of the mean weight if that is more. From HOT a tree forgets how it began; from MILD it
# keeps its outline; at COLD it stands still.
HOT, MILD, COLD = 200, 100, 20
ROOTS_TRIED_MAX = 12  # of the spanning tree


class Annealing:
    """The search for one component's tree, as if each hop cost `hop`."""

    def __init__(self, measure: Measure, *, hop: int, watch: Watch | None = None) -> None:
        self.measure, self.watch = measure, watch or Watch()
        scale = measure.scale
        far = scale.phi.numerator * scale.hops
        near = scale.phi.denominator * hop
        self.hop = near // far if far else near
        self.foreign = [far * rate for rate in measure.rate]
        self.level = [
            near * rate * weight
            for rate, weight in zip(measure.rate, measure.readers_weight, strict=True)
        ]
        self.load_max = None if measure.load_max is None else far * measure.load_max
        self.load_wanted = None if measure.load_wanted is None else far * measure.load_wanted
        self.items = [
            Item(needs, near * weight * load, weight)
            for needs, weight, load in zip(
                measure.needs, measure.weight, measure.loads, strict=True
            )
        ]
        shared = [r for r, m in zip(measure.rate, measure.readers, strict=True) if m & (m - 1)]
        dear = max(far * scale.weights, near * sum(measure.weight) // len(measure.weight))
        self.mean = dear * sum(shared), 100 * len(shared)
        self.tree = PricedTree(self.items, self._pricing(range(len(measure.rate)), 0))
        self.seed = 1
        self.base: int | None = None  # of the tree's own prices, in units of the measure

    def _pricing(self, classes: Sequence[int], above: int) -> PlacePrices:
        """Give the prices for the classes, renumbered, under so many levels."""
        levels = self.measure.levels_max
        return PlacePrices(
            Sums([self.foreign[number] for number in classes]),
            Sums([self.level[number] for number in classes]),
            self.measure.scale.weights,
            self.load_max,
            self.load_wanted,
            None if levels is None else levels - above,
            self.hop,
        )

    def _draw(self) -> int:
        self.seed = (self.seed * FACTOR + STEP) & WORD
        return self.seed >> LOW_BITS

    def insert_all(self, order: Sequence[int]) -> None:
        """Build a first tree."""
        for number in order:
            self.tree.insert(number)

    def start(self, tree: TreeNode) -> None:
        """Begin with a given tree."""
        made: dict[int, int] = {}
        for entry in reversed(list(tree.walk())):
            children = [made[child.below] for child in entry.children]
            made[entry.below] = self.tree.node(list(bits(entry.served)), children)
        self.tree.root = made[tree.below]

    def anneal(self, tree: PricedTree, moves: int, hot: int) -> None:
        """Anneal a tree from a temperature."""
        total, count = self.mean
        hot, cold = (1 + degree * total // count for degree in (hot, COLD))
        annealed(tree, moves, hot=hot, cold=cold, seed=self._draw(), stopped=self.watch.stopped)

    def tell(self, what: str) -> None:
        """Tell the cost of the tree; with hosts, as if each hop cost the same."""
        if self.base is None:
            start = self.measure.priced(self.result()) // self.measure.tie_work
            self.base = start - self.tree.price()
        price = (self.tree.price() + self.base) * self.measure.tie_work
        self.watch.best(self.measure.cost(price), what)

    # -- windows ----------------------------------------------------------------------------

    def anneal_windows(self, moves: int) -> None:
        """Anneal one window after the other, at random places.

        A collector with many children and demands is a wide window, with more moves than others.
        """
        left = max(moves, WINDOW_MOVES)
        told = left
        while left >= WINDOW_MOVES and not self.watch.stopped():
            if left <= told:
                self.tell("annealing")
                told -= max(moves // REPORTS, 1)
            top, inside = self.window(self._draw() % len(self.items))
            small, nodes = self.cut_out(top, inside)
            share = min(left, WINDOW_MOVES * max(1, len(nodes) // WINDOW_ITEMS))
            self.anneal(small, share, MILD)
            self.put_back(top, inside, small, nodes)
            left -= share

    def window(self, number: int) -> tuple[int, list[int]]:
        """Pick the collectors of a window near a demand, parents first."""
        tree = self.tree
        top = tree.place[number]
        while True:
            inside, items = [top], len(tree.serves[top]) + len(tree.children[top])
            for node in inside:
                for child in tree.children[node]:
                    more = len(tree.serves[child]) + len(tree.children[child]) - 1
                    if items + more <= WINDOW_ITEMS:
                        inside.append(child)
                        items += more
            if 2 * items > WINDOW_ITEMS or top == tree.root:
                return top, inside
            top = tree.parent[top]

    def cut_out(self, top: int, inside: Sequence[int]) -> tuple[PricedTree, list[int]]:
        """Copy a window to a tree of its own.

        Its items are the demands that the window serves and the subtrees below it. Also gives for
        each item the demand, or the node of the large tree.
        """
        tree, within = self.tree, set(inside)
        needed, depth = self._surroundings(top, inside)
        keys: list[int] = []
        items: list[Item] = []
        members: dict[int, tuple[list[int], list[int]]] = {}
        for node in inside:
            fixed = [child for child in tree.children[node] if child not in within]
            first, second = len(items), len(items) + len(tree.serves[node])
            members[node] = list(range(first, second)), list(range(second, second + len(fixed)))
            keys += [*tree.serves[node], *fixed]
            items += [self.items[number] for number in tree.serves[node]]
            items += [self._fixed(child, needed[child]) for child in fixed]
        whole = 0
        for item in items:
            whole |= item.touch
        classes = list(bits(whole))
        place = {number: position for position, number in enumerate(classes)}

        def narrow(mask: int) -> int:
            return sum(1 << place[number] for number in bits(mask))

        small = PricedTree(
            [replace(item, touch=narrow(item.touch)) for item in items],
            self._pricing(classes, depth),
            outside=narrow(needed[top] & whole),
        )
        made: dict[int, int] = {}
        for node in reversed(inside):
            demands, fixed = members[node]
            below = [made[child] for child in tree.children[node] if child in within]
            made[node] = small.node(demands, [*below, *map(small.leaf, fixed)])
        small.root = made[top]
        return small, keys

    def _surroundings(self, top: int, inside: Sequence[int]) -> tuple[dict[int, int], int]:
        """Give the classes needed outside each node of a window and each child of these.

        Also gives the number of collectors above the window.
        """
        tree, above = self.tree, [top]
        while above[-1] != tree.root:
            above.append(tree.parent[above[-1]])
        needed = {tree.root: 0}
        for node in (*reversed(above[1:]), *inside):
            _, sure, once = tree.around(node, needed[node])
            for child in tree.children[node]:
                needed[child] = sure | (once & ~tree.touch[child])
        return needed, len(above) - 1

    def _fixed(self, node: int, needed: int) -> Item:
        tree = self.tree
        if tree.pricing.levels_max is not None:
            tree.count_levels(node)
        touch = tree.touch[node] & needed
        hops = tree.hops[node] - tree.pricing.hops[tree.touch[node] & ~needed]
        return Item(touch, hops, fixed=True, levels=tree.levels[node])

    def put_back(
        self, top: int, inside: Sequence[int], small: PricedTree, keys: Sequence[int]
    ) -> None:
        """Replace the collectors of a window by those of its own tree."""
        tree, above = self.tree, self.tree.parent[top]
        tree.free += inside
        made = {
            small.place[number]: key for number, key in enumerate(keys) if small.items[number].fixed
        }
        for node in reversed(small.nodes()):
            if not small.fixed[node]:
                demands = [keys[number] for number in small.serves[node]]
                made[node] = tree.node(demands, [made[child] for child in small.children[node]])
        tree.hang(made[small.root], above, top)

    def result(self) -> TreeNode:
        """Give the tree as the other searches do."""
        tree, host = self.tree, self.measure.hosts[0]
        made: dict[int, TreeNode] = {}
        for node in reversed(tree.nodes()):
            children = tuple(made.pop(child) for child in tree.children[node])
            served = sum(1 << number for number in tree.serves[node])
            below = served | sum(child.below for child in children)
            made[node] = TreeNode(below, served, children, host)
        return made[tree.root]


# -- the greedy start, and hosts ---------------------------------------------------------------


def greedy(measure: Measure, *, load_max: int | None = None) -> TreeNode | None:
    """Build the maximum spanning tree of common rates, under the best of its central demands."""
    demands = len(measure.weight)
    joined = spanning(demands, overlaps(measure))
    central = sorted(range(demands), key=lambda d: (-len(joined[d]), d))[:ROOTS_TRIED_MAX]
    trees = (hung(measure, joined, root) for root in central)
    kept = (tree for tree in trees if _allowed(measure, tree, load_max))
    return min(kept, key=lambda tree: measure.priced(tree, measure.hosts[0]), default=None)


def overlaps(measure: Measure) -> list[tuple[int, int, int]]:
    """List the pairs of demands that share logs, with their common rate, the largest first."""
    common: dict[tuple[int, int], int] = {}
    for number, mask in enumerate(measure.readers):
        members = list(bits(mask))
        for place, a in enumerate(members):
            for b in members[place + 1 :]:
                common[a, b] = common.get((a, b), 0) + measure.rate[number]
    return sorted(((rate, a, b) for (a, b), rate in common.items()), key=lambda e: (-e[0], e[1:]))


def spanning(demands: int, links: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """Take links (value, demand, demand) in turn that close no cycle; give each demand's others."""
    root = list(range(demands))
    joined: list[list[int]] = [[] for _ in range(demands)]
    for _, a, b in links:
        if find(root, a) != find(root, b):
            root[find(root, b)] = find(root, a)
            joined[a].append(b)
            joined[b].append(a)
    return joined


def hung(measure: Measure, joined: Sequence[Sequence[int]], root: int) -> TreeNode:
    """Hang a tree of demands under one of them, each with a collector of its own."""
    order, above = [root], {root: NOWHERE}
    for number in order:
        following = [n for n in joined[number] if n not in above]
        above.update(dict.fromkeys(following, number))
        order.extend(following)
    made: dict[int, TreeNode] = {}
    for number in reversed(order):
        children = tuple(made[n] for n in joined[number] if above.get(n) == number)
        below = (1 << number) | sum(child.below for child in children)
        made[number] = TreeNode(below, 1 << number, children, measure.hosts[0])
    return made[root]


def _levels(tree: TreeNode) -> int:
    deepest, pending = 0, [(tree, 1)]
    while pending:
        node, level = pending.pop()
        deepest = max(deepest, level)
        pending += [(child, level + 1) for child in node.children]
    return deepest


def placed(measure: Measure, tree: TreeNode) -> TreeNode:
    """Place all collectors on hosts at the least cost for the given tree: exact."""
    if measure.hosts == (NOWHERE,):
        return tree
    # For a node's demands and each host of its parent: the subtree and its price.
    best: dict[int, dict[int, tuple[int, TreeNode]]] = {}
    for node in reversed(list(tree.walk())):
        sets = [child.below for child in node.children]
        below = [best.pop(child) for child in sets]
        best[node.below] = {}
        for parent in (NOWHERE, *measure.hosts):
            options = []
            for host in measure.hosts:
                price = measure.price(node.below, sets, host=host, parent=parent)
                total = price + sum(child[host][0] for child in below)
                children = tuple(child[host][1] for child in below)
                options.append((total, TreeNode(node.below, node.served, children, host)))
            best[node.below][parent] = min(options, key=lambda option: option[0])
    return best[tree.below][NOWHERE][1]


# -- what shares a log, below a collector of its own -------------------------------------------


def gathered(measure: Measure, tree: TreeNode) -> TreeNode:
    """Give collectors of their own to what shares a log, from the root down, where that is cheaper.

    Those are some children of a collector and some demands that it serves: all with a log of its
    bag, or only the children. The result has more levels, and no heavier collectors.
    """
    nodes = [tree]
    for place, node in enumerate(nodes):
        nodes[place] = _gathered(measure, node)
        nodes.extend(nodes[place].children)
    made: dict[int, TreeNode] = {}
    for node in reversed(nodes):
        children = tuple(made.pop(child.below) for child in node.children)
        made[node.below] = replace(node, children=children)
    return made[tree.below]


def _gathered(measure: Measure, node: TreeNode) -> TreeNode:
    """Divide one collector as long as that is cheaper, each time in the best way."""
    while True:
        best = min(_divided(measure, node), key=lambda option: option[0], default=(0, node))
        if best[0] >= 0:
            return node
        node = best[1]


def _divided(measure: Measure, node: TreeNode) -> Iterator[tuple[int, TreeNode]]:
    """List the ways to divide a collector in two, each with the change of the price."""
    host, sets = node.host, [child.below for child in node.children]
    touched = [measure.touching(below) for below in sets]
    now = measure.price(node.below, sets, host=host, parent=host)
    ways: dict[tuple[int, int], None] = {}
    for number in bits(measure.bag(node.below, sets)):
        some = sum(1 << place for place, logs in enumerate(touched) if logs >> number & 1)
        ways[some, 0] = ways[some, node.served & measure.readers[number]] = None
    for some, served in ways:
        apart = [child for place, child in enumerate(node.children) if some >> place & 1]
        if len(apart) + served.bit_count() < 2 or (len(apart), served) == (len(sets), node.served):
            continue
        inside = [child.below for child in apart]
        below = served | sum(inside)
        left = [child for place, child in enumerate(node.children) if not some >> place & 1]
        price = measure.price(below, inside, host=host, parent=host)
        price += measure.price(
            node.below, [below, *(child.below for child in left)], host=host, parent=host
        )
        new = TreeNode(below, served, tuple(apart), host)
        yield price - now, TreeNode(node.below, node.served & ~served, (*left, new), host)


def constructed(
    measure: Measure, *, effort: float = 1.0, watch: Watch | None = None
) -> TreeNode | None:
    """Give the best tree of all constructions; None if none of them keeps the limits."""
    everyone = measure.component.everyone
    single = TreeNode(everyone, everyone, (), measure.hosts[0])
    limit = measure.load_max
    trees = [single, greedy(measure, load_max=limit)]
    watch = watch or Watch()
    trees += [_annealed(measure, hop, effort, watch) for hop in measure.typical_hops()]
    trees += [gathered(measure, tree) for tree in trees[1:] if tree]
    known = [placed(measure, tree) for tree in trees if tree and _allowed(measure, tree, limit)]
    return min(known, key=measure.priced, default=None)


def _annealed(measure: Measure, hop: int, effort: float, watch: Watch) -> TreeNode:
    search = Annealing(measure, hop=hop, watch=watch)
    demands = len(measure.weight)
    moves = int(min(MOVES_PER_DEMAND * demands, MOVES_MAX) * effort)
    spanning = greedy(measure)
    if demands <= WHOLE_DEMANDS_MAX or spanning is None:
        search.insert_all(range(demands))
    else:
        search.start(spanning)
    if demands > WHOLE_DEMANDS_MAX:
        search.anneal_windows(moves)
    else:
        for whole, windows, hot in ((50, 20, HOT), (20, 10, MILD)):
            search.tell("annealing")
            search.anneal(search.tree, moves * whole // 100, hot)
            search.anneal_windows(moves * windows // 100)
    search.tell("settling")
    nodes_max = int(SETTLED_NODES_MAX * effort)
    settled(search.tree, nodes_max=nodes_max, stopped=watch.stopped)
    return search.result()


def _allowed(measure: Measure, tree: TreeNode, load_max: int | None) -> bool:
    """Whether a tree keeps this limit of the load, and that of the levels."""
    if measure.levels_max is not None and _levels(tree) > measure.levels_max:
        return False
    return load_max is None or measure.heaviest(tree) <= load_max
