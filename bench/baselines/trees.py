"""Trees of collectors as other systems would build them, to be priced by our objective.

Each function takes the measure of one component and gives a tree of it. A tree is made of
interests: each has a collector of its own with the smallest bag that keeps each log's collectors
connected, so no tree here pays for logs that it does not need.

    one root     a single collector that knows every log
    poster       the spanning tree of the interests in which neighbours have most rate in common,
                 under the interest from which it costs least (of those with most neighbours)
    join tree    the spanning tree with most logs in common (Bernstein and Goodman: if the interests
                 are acyclic, it is a join tree), under the first interest; None if they are cyclic
    FlexCast     its ranking of the groups as a path: the two interests with most logs in common
                 first, then always the one that has most in common with all before it
    ByzCast      consumers are groups; of all rooted trees over them the best by ByzCast's own
                 objective, the sum of F(d) * (|d| + 2 * other groups passed); of equal ones the
                 cheapest by ours

FlexCast and ByzCast move messages in other ways than collectors do: FlexCast's first group sends to
the others directly and carries the history of dependencies in each message, which our measure does
not count. Only the shapes of their overlays are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, product

from topology.planner.cost import Measure, TreeNode, bits
from topology.planner.heuristic import greedy, hung, spanning

GROUPS_MAX = 7  # of ByzCast's exhaustive search: 7**7 parent vectors; 8**8 are 20 times as many


def one_root(measure: Measure) -> TreeNode:
    """Build a single collector for all consumers."""
    everyone = measure.component.everyone
    return TreeNode(everyone, everyone, ())


def poster(measure: Measure) -> TreeNode:
    """Build the poster's tree: interests next to each other by the rates that they share."""
    tree = greedy(measure)
    assert tree is not None, "no limit forbids it"
    return tree


def join_tree(measure: Measure) -> TreeNode | None:
    """Build the plain join tree under the first interest; None: the interests are cyclic."""
    count, needs = len(measure.needs), measure.needs
    links = [(_logs(measure, needs[a] & needs[b]), a, b) for a, b in combinations(range(count), 2)]
    joined = spanning(count, sorted(links, key=lambda link: -link[0]))
    edges = [(a, b) for a, others in enumerate(joined) for b in others if a < b]
    shared = sum(_logs(measure, needs[a] & needs[b]) for a, b in edges)
    needed = sum(
        len(entry.logs) * (mask.bit_count() - 1)
        for entry, mask in zip(measure.component.classes, measure.readers, strict=True)
    )
    # In a join tree the readers of each log are one subtree: one edge fewer than readers.
    return hung(measure, joined, 0) if shared == needed else None


def flexcast(measure: Measure) -> TreeNode:
    """Build the path of the interests that FlexCast's ranking by overlap gives."""
    left = dict.fromkeys(range(len(measure.needs)))
    pairs = combinations(left, 2)
    first = max(
        pairs,
        key=lambda pair: measure.load(measure.needs[pair[0]] & measure.needs[pair[1]]),
        default=(0,),
    )
    ranking = list(first)
    known = 0
    for taken in ranking:
        del left[taken]
        known |= measure.needs[taken]
    while left:
        taken = max(left, key=lambda d: measure.load(measure.needs[d] & known))
        ranking.append(taken)
        del left[taken]
        known |= measure.needs[taken]
    node: TreeNode | None = None
    for number in reversed(ranking):
        below = 0 if node is None else node.below
        node = TreeNode(below | 1 << number, 1 << number, () if node is None else (node,))
    assert node is not None, "a component has an interest"
    return node


def byzcast(measure: Measure) -> tuple[float, TreeNode]:
    """Search ByzCast's best tree; give its value by ByzCast's objective, and the tree.

    Takes at most `GROUPS_MAX` groups.
    """
    count = len(measure.weight)
    assert count <= GROUPS_MAX, "the search is exhaustive"
    messages = _messages(measure)
    best: tuple[float, int, TreeNode] | None = None
    for parents in rooted(count):
        value = _byzcast_value(parents, messages, best[0] if best else float("inf"))
        if value is not None:
            tree = _tree_of(parents)
            price = measure.priced(tree)
            if best is None or (value, price) < best[:2]:
                best = value, price, tree
    assert best is not None, "every number of groups has a tree"
    return best[0] / measure.scale.rates, best[2]


def rooted(count: int) -> Iterator[tuple[int, ...]]:
    """List all rooted trees over labelled nodes as parent vectors; the root is its own parent."""
    for parents in product(range(count), repeat=count):
        roots = [node for node, parent in enumerate(parents) if node == parent]
        if len(roots) == 1 and _reaches(parents, roots[0]):
            yield parents


def _logs(measure: Measure, classes: int) -> int:
    return sum(len(measure.component.classes[number].logs) for number in bits(classes))


def _reaches(parents: Sequence[int], root: int) -> bool:
    for start in range(len(parents)):
        node = start
        for _ in parents:
            node = parents[node]
        if node != root:
            return False
    return True


def _messages(measure: Measure) -> list[tuple[int, int]]:
    rates: dict[int, int] = {}
    for mask, rate in zip(measure.readers, measure.rate, strict=True):
        rates[mask] = rates.get(mask, 0) + rate
    return sorted(rates.items())


def _byzcast_value(
    parents: Sequence[int], messages: Sequence[tuple[int, int]], bound: float
) -> float | None:
    above = []
    for start in range(len(parents)):
        path, node = 1 << start, start
        while parents[node] != node:
            node = parents[node]
            path |= 1 << node
        above.append(path)
    total = 0.0
    for groups, rate in messages:
        every, some = -1, 0
        for group in bits(groups):
            every &= above[group]
            some |= above[group]
        # A message enters at the lowest common ancestor, so it does not pass those above it.
        passed = (some & ~every).bit_count() + 1
        total += rate * (groups.bit_count() + 2 * (passed - groups.bit_count()))
        if total > bound:
            return None
    return total


def _tree_of(parents: Sequence[int]) -> TreeNode:
    def made(node: int) -> TreeNode:
        children = tuple(
            made(child) for child, above in enumerate(parents) if above == node != child
        )
        return TreeNode(1 << node | sum(child.below for child in children), 1 << node, children)

    return made(next(node for node, parent in enumerate(parents) if node == parent))
