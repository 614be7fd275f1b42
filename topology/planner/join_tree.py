"""The least join tree: the cheapest tree in which a collector is one interest, for acyclic inputs.

A join tree has one collector for each demand. It reads exactly the demand's logs, serves only that
demand, and the collectors that hold a log are connected. Above it there may be one collector that
serves nobody, with a separator as its bag. `least_join_tree` finds the cheapest of these trees, by
a linear program, with proof. It is no proof over all trees: a tree with bags of other forms, which
pass on a log or serve two demands at one collector, can be cheaper. Only if `bound.py` proves a
bound that is the same is it the least of all trees (fifty sliding windows, chains).

Let k(K) be the number of children of K plus the weights of the demands served there. The foreign
work of any tree is, by summing over the logs of each bag,

    sum over K of [(k(K) - 1) * rate(bag K) + rate(bag K without logs wanted there)] - constant

In a join tree each child thus pays the rate of its parent's bag. Nothing else depends on the tree,
but the hops. The separators of a join tree are, with their counts, the same in all join trees of
an input; so only arcs whose common logs are one of these can occur.

    y[P, C]     C is a child of P, for bags whose common logs are a separator
    r[K]        K is the root
    f[d, P, C]  the way of d's logs from the top to d's collector takes this arc, if P holds a log
                of d and C holds all that P does (if P holds none, the way costs nothing and is
                left out; if C lacks one, d is not below C, for a log's collectors are connected)

    minimise    sum y[P, C] * phi * rate(P) + sum f[d, P, C] * weight of d * rate(logs of d in both)
    each demand has one parent, or is the root; there is one root
    for each log, and each separator:   arcs in it = collectors that hold it - 1
    f[d, P, C] <= y[P, C], and what leaves P must have entered it, or d's logs begin there
    f[d, P, d] = y[P, d]

The rows for logs state that the collectors of each log are connected; those for separators follow
for trees (subtrees meet in a subtree) and sharpen the program. It was whole (no fractional y) for
all inputs that were tried; if it is not, the same program is solved with whole numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topology.planner.cost import Measure, TreeNode
from topology.planner.integer_program import LinearProgram, minimised

# 50 random interests of 64 logs have up to 30,000 columns, some seconds for CBC. More are left out:
# fifty prefixes have 76,000, which takes CBC a minute, and their join trees are dear.
COLUMNS_MAX = 40_000
# Where foreign work is cheaper, several demands at one collector are better than one each: with phi
# 1 the least join tree cost 7 to 14 % more than the heuristic's (4 of 4 inputs of 50 interests).
PHI_MIN = 2
WHOLE = 1e-6  # the solver's tolerance for a whole number
TOLERANCE = 1e-6  # relative; the program has floating point, the price of its tree is exact


def join_edges(measure: Measure) -> list[tuple[int, int]] | None:
    """Find a join tree of the demands, as edges; None: the demands are cyclic.

    It is a maximum spanning tree, where the weight of two demands is the number of classes that
    they share. By Bernstein and Goodman it is a join tree if and only if one exists.
    """
    needs = measure.needs
    nearest = {number: (needs[0] & needs[number]).bit_count() for number in range(1, len(needs))}
    link = dict.fromkeys(nearest, 0)
    edges = []
    while nearest:
        taken = max(nearest, key=lambda number: (nearest[number], -number))
        del nearest[taken]
        edges.append((link[taken], taken))
        for number, most in nearest.items():
            common = (needs[taken] & needs[number]).bit_count()
            if common > most:
                nearest[number], link[number] = common, taken
    # The readers of each class must be one subtree: it has one edge fewer than readers.
    shared = sum((needs[one] & needs[other]).bit_count() for one, other in edges)
    return edges if shared == sum(mask.bit_count() - 1 for mask in measure.readers) else None


def least_join_tree(measure: Measure, *, time_limit_s: float | None = None) -> TreeNode | None:
    """Find the cheapest join tree of a component without limits and hosts.

    None if the demands are cyclic, the program is too large, or the solver did not finish. Blocks;
    starts a solver process and waits for its end.
    """
    assert measure.plain, "with limits or hosts, the price is not linear in the arcs"
    edges = join_edges(measure)
    if edges is None:
        return None
    program = _JoinProgram(measure, edges)
    if not program.made():
        return None
    return program.solved(time_limit_s)


@dataclass
class _JoinProgram:
    """The linear program of one component. Bags 0.. are the demands', then possible roots."""

    measure: Measure
    edges: list[tuple[int, int]]
    program: LinearProgram = field(default_factory=LinearProgram)

    def __post_init__(self) -> None:
        needs = self.measure.needs
        self.separators = sorted({needs[one] & needs[other] for one, other in self.edges})
        self.demands = len(needs)
        self.bags = needs + [bag for bag in self.separators if bag not in needs]
        self.arc: dict[tuple[int, int], int] = {}
        self.root: list[int] = []

    def made(self) -> bool:
        """Make columns and rows; False: there would be more than `COLUMNS_MAX` columns."""
        self._add_arcs()
        if len(self.program.costs) > COLUMNS_MAX:
            return False
        self._add_rows()
        for demand in range(self.demands):
            self._add_way(demand)
            if len(self.program.costs) > COLUMNS_MAX:
                return False
        return True

    def _add_arcs(self) -> None:
        """Add the columns for roots, and for arcs whose common logs are a separator."""
        program, bags = self.program, self.bags
        phi, units = self.measure.scale.phi, self.measure.scale.weights
        known = set(self.separators)
        self.root = [program.column(0) for _ in bags]
        for above, bag in enumerate(bags):
            far = phi.numerator * units * self.measure.load(bag)
            for child in range(self.demands):
                if above != child and bag & bags[child] in known:
                    self.arc[above, child] = program.column(far)

    def _add_rows(self) -> None:
        """Add the rows that make the arcs a tree whose logs are connected."""
        program, bags = self.program, self.bags
        self.into: list[list[int]] = [[] for _ in bags]  # the parents of each bag
        self.out: list[list[int]] = [[] for _ in bags]
        for above, child in self.arc:
            self.into[child].append(above)
            self.out[above].append(child)
        for child in range(self.demands):
            entering = [(self.arc[above, child], 1) for above in self.into[child]]
            program.equal([*entering, (self.root[child], 1)], 1)
        for above in range(self.demands, len(bags)):
            leaving = [(self.arc[above, child], 1) for child in self.out[above]]
            for column, _ in leaving:
                program.at_most([(column, 1), (self.root[above], -1)], 0)
            program.at_most([(self.root[above], 2), *((column, -1) for column, _ in leaving)], 0)
        program.equal([(column, 1) for column in self.root], 1)
        self._connect()

    def _connect(self) -> None:
        """Add the rows: the collectors that hold a log, or all logs of a separator, are connected.

        The common logs of an arc are a separator, so what lies within them is found once for each.
        """
        single = [1 << number for number in range(len(self.measure.readers))]
        groups = sorted({*single, *self.separators})
        within = {
            common: [logs for logs in groups if not logs & ~common] for common in self.separators
        }
        rows: dict[int, list[tuple[int, int]]] = {logs: [] for logs in groups}
        holders = dict.fromkeys(groups, 0)
        for (above, child), column in self.arc.items():
            for logs in within[self.bags[above] & self.bags[child]]:
                rows[logs].append((column, 1))
        for number, bag in enumerate(self.bags):
            for logs in groups:
                if not logs & ~bag:
                    if number < self.demands:
                        holders[logs] += 1
                    else:
                        rows[logs].append((self.root[number], -1))
        for logs, pairs in rows.items():
            if pairs:
                self.program.equal(pairs, holders[logs] - 1)

    def _add_way(self, demand: int) -> None:
        """Add the way of one demand's logs: its hops beyond the first."""
        program, bags, measure = self.program, self.bags, self.measure
        wanted, near = bags[demand], measure.scale.phi.denominator * measure.weight[demand]
        way: dict[tuple[int, int], int] = {}
        for (above, child), column in self.arc.items():
            common = bags[above] & wanted
            if not common or above == demand or common & ~bags[child]:
                continue
            if child == demand:
                way[above, child] = column
                program.costs[column] += near * measure.load(common)
            else:
                way[above, child] = program.column(near * measure.load(common))
                program.at_most([(way[above, child], 1), (column, -1)], 0)
        leaving: dict[int, list[tuple[int, int]]] = {}
        for (above, _), column in way.items():
            leaving.setdefault(above, []).append((column, 1))
        for above, columns in leaving.items():
            begun = [self.arc[top, above] for top in self.into[above] if not bags[top] & wanted]
            entered = [way[top, above] for top in self.into[above] if (top, above) in way]
            sources = [(column, -1) for column in (*begun, *entered, self.root[above])]
            program.at_most([*columns, *sources], 0)

    def solved(self, time_limit_s: float | None) -> TreeNode | None:
        """Solve the program, and build its tree; None if there is no answer, or it is no tree."""
        chosen = [*self.arc.values(), *self.root]
        answer = minimised(self.program, time_limit_s=time_limit_s)
        if answer is not None and any(WHOLE < answer[column] < 1 - WHOLE for column in chosen):
            answer = minimised(self.program, whole=chosen, time_limit_s=time_limit_s)
        if answer is None:
            return None
        tree = self._tree(answer)
        if tree is None or not self._agrees(tree, answer):
            return None
        return tree

    def _tree(self, answer: list[float]) -> TreeNode | None:
        order = [number for number, column in enumerate(self.root) if answer[column] > 0.5]
        if len(order) != 1:
            return None
        for above in order:
            order += [c for c in self.out[above] if answer[self.arc[above, c]] > 0.5]
            if len(order) > self.demands + 1:
                return None
        nodes: dict[int, TreeNode] = {}
        for number in reversed(order):
            below = [c for c in self.out[number] if answer[self.arc[number, c]] > 0.5]
            served = 1 << number if number < self.demands else 0
            children = tuple(nodes[child] for child in below)
            nodes[number] = TreeNode(
                served | sum(child.below for child in children), served, children
            )
        tree = nodes[order[0]]
        return tree if tree.below == self.measure.component.everyone else None

    def _agrees(self, tree: TreeNode, answer: list[float]) -> bool:
        """Whether the program's objective is the tree's cost, so that the proof holds for it."""
        measure, scale = self.measure, self.measure.scale
        constant = scale.phi.numerator * (
            scale.weights * sum(measure.rate) - scale.weights * sum(measure.loads)
        ) + scale.phi.denominator * sum(
            weight * load for weight, load in zip(measure.weight, measure.loads, strict=True)
        )
        value = constant + sum(
            cost * chosen for cost, chosen in zip(self.program.costs, answer, strict=True)
        )
        price = measure.priced(tree) // measure.tie_work
        return abs(value - price) <= TOLERANCE * max(1.0, abs(price))
