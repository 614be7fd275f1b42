"""Writes the planner's table: `python -m bench.micro.planner > docs/planner.md`.

For each kind and size of interests it compares the planner's time, gap and objective with

    one root    a single collector that knows all logs
    layering    the poster's: interests as collectors, in a spanning tree of greatest overlap
    ByzCast     its own objective over consumers as groups, sum of F(d) * (|d| + 2 * other groups
                passed), by exhaustive search over all rooted trees, for at most seven groups

Inputs come from fixed seeds, so only the times differ between runs. `--quick` omits large inputs.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from time import perf_counter

from bench.harness.interests import file_of
from topology.check import check
from topology.interests import InterestFile
from topology.planner.cost import Measure, TreeNode, bits
from topology.planner.heuristic import greedy
from topology.planner.hypergraph import is_acyclic, logs_met, reduced
from topology.planner.solver import PHI, solve

GROUPS_MAX = 7  # of the exhaustive search: 7**7 parent vectors; 8**8 are 20 times as many
TEAMS = {
    "A": ["P1", "P2", "P3"],
    "B": ["P2", "P3", "P4"],
    "C": ["P3", "P4", "P5"],
}


def chain(count: int) -> InterestFile:
    """Neighbours share one partition, and each has one of its own."""
    return file_of({f"C{n:03}": [f"P{2 * n + k:03}" for k in range(3)] for n in range(count)})


def star(count: int) -> InterestFile:
    """One interest shares a partition with each other one."""
    rays = {f"ray{n}": [f"s{n}", f"p{n}", f"q{n}"] for n in range(count)}
    return file_of({"centre": [f"s{n}" for n in range(count)], **rays})


def acyclic(seed: int, partitions: int = 64, count: int = 50) -> InterestFile:
    """Each interest of 3 to 6 takes some partitions of one before it, and new ones."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    first = dice.randint(3, 6)
    interests = [[f"P{n:03}" for n in range(first)]]
    for number in range(1, count):
        size, base = dice.randint(3, 6), dice.choice(interests)
        left = partitions - first
        fresh = min(size - 1, 1 if left <= count - number else dice.randint(1, 2), left)
        shared = dice.sample(base, min(len(base), size - fresh))
        interests.append([*shared, *(f"P{first + n:03}" for n in range(fresh))])
        first += fresh
    return file_of({f"C{n:03}": interest for n, interest in enumerate(interests)})


def scattered(seed: int, partitions: int = 64, count: int = 50) -> InterestFile:
    """Interests of 3 to 6 partitions anywhere: the worst case."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    names = [f"P{n:03}" for n in range(partitions)]
    return file_of({f"C{n:03}": dice.sample(names, dice.randint(3, 6)) for n in range(count)})


def local(seed: int, partitions: int = 64, count: int = 50, span: int = 12) -> InterestFile:
    """Interests of 3 to 6 partitions within a window of a ring."""
    dice = random.Random(seed)  # noqa: S311 - a workload, not a secret
    interests = {}
    for number in range(count):
        middle = dice.randrange(partitions)
        near = [f"P{(middle + k) % partitions:04}" for k in range(span)]
        interests[f"C{number:04}"] = dice.sample(near, dice.randint(3, 6))
    return file_of(interests)


def pairs(count: int) -> InterestFile:
    """Chains of blocks with transactions between any two of them."""
    names = [f"chain{n}" for n in range(count)]
    sets = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    return file_of({name: [name] for name in names}, sets)


def inputs(*, quick: bool) -> Iterator[tuple[str, InterestFile]]:
    """List the table's inputs, small ones first."""
    yield "poster", file_of(TEAMS)
    yield "poster with a cycle", file_of({**TEAMS, "D": ["P1", "P5"]})
    yield "triangle", file_of({"X": ["A", "B"], "Y": ["B", "C"], "Z": ["C", "A"]})
    yield "3 block chains, all pairs", pairs(3)
    yield "8 block chains, all pairs", pairs(8)
    yield "nested", file_of({f"C{n}": [f"P{k}" for k in range(n + 2)] for n in range(6)})
    yield "star", star(6)
    yield "scattered", scattered(0, 12, 7)
    yield "local", local(0, 16, 7, 6)
    yield "chain", chain(32)
    if not quick:
        for seed in range(3):
            yield "acyclic", acyclic(seed)
        yield "local", local(1)
        for seed in range(2):
            yield "scattered", scattered(seed)
        yield "local", local(0, 1000, 1000)


# -- alternatives -----------------------------------------------------------------------------


def measures(file: InterestFile) -> list[Measure]:
    """Reduce an interest file, and return the cost measure of each of its parts."""
    problem = reduced(file)
    return [
        Measure(part, rates=problem.rates, weights=problem.weights, phi=PHI["genuine"])
        for part in problem.components
    ]


def one_root(measure: Measure) -> float:
    """Return the cost of a single collector for all consumers."""
    everyone = measure.component.everyone
    return measure.cost(measure.priced(TreeNode(everyone, everyone, ())))


def layering(measure: Measure) -> float:
    """Return the cost of the poster's layering."""
    tree = greedy(measure)
    assert tree is not None, "without limits a layering exists"
    return measure.cost(measure.priced(tree))


def byzcast(measure: Measure) -> tuple[float, float]:
    """Search ByzCast's best tree over the groups; of equal ones, the best by our cost.

    Returns ByzCast's objective and our cost of that tree.
    """
    count = len(measure.weight)
    messages = _messages(measure)
    best: tuple[float, int] | None = None
    for parents in rooted(count):
        value = _byzcast_value(parents, messages, best[0] if best else float("inf"))
        if value is not None:
            both = value, measure.priced(_tree_of(parents))
            best = both if best is None else min(best, both)
    assert best is not None, "every number of groups has a tree"
    return best[0] / measure.scale.rates, measure.cost(best[1])


def rooted(count: int) -> Iterator[tuple[int, ...]]:
    """Yield all rooted trees over labelled nodes as parent vectors; the root is its own parent."""
    for parents in product(range(count), repeat=count):
        roots = [node for node, parent in enumerate(parents) if node == parent]
        if len(roots) == 1 and _reaches(parents, roots[0]):
            yield parents


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


# -- the table --------------------------------------------------------------------------------


def row(kind: str, file: InterestFile) -> list[str]:
    """Plan one input, and return its row of the table."""
    started = perf_counter()
    solution = solve(file)
    seconds = perf_counter() - started
    plan = solution.plan
    check(plan)
    parts = measures(file)
    groups = max((len(part.weight) for part in parts), default=0)
    acyclic_too = is_acyclic(frozenset(logs) for logs in logs_met(file).values() if len(logs) > 1)
    ours_theirs = "-", "-"
    if 1 < groups <= GROUPS_MAX:
        values = [byzcast(part) for part in parts]
        ours_theirs = f"{sum(v for v, _ in values):g}", f"{sum(v for _, v in values):g}"
    return [
        kind,
        f"{len(file.partitions)} / {len(plan.logs)} / {len(file.consumers)}",
        "acyclic" if acyclic_too else "cyclic",
        f"{seconds:.2f}",
        "0" if plan.objective.gap == 0 else f"{plan.objective.gap:.0%}",
        f"{len(plan.collectors)}",
        f"{plan.objective.cost:g}",
        f"{sum(map(one_root, parts)):g}",
        f"{sum(map(layering, parts)):g}",
        ours_theirs[1],
        ours_theirs[0],
    ]


COLUMNS = (
    "interests",
    "partitions / logs / consumers",
    "kind",
    "s",
    "gap",
    "collectors",
    "cost",
    "one root",
    "layering",
    "ByzCast's tree",
    "its own objective",
)


def main(*, quick: bool) -> None:
    """Print the table as Markdown, each row as soon as it is computed."""
    out = sys.stdout
    out.write(f"{PREFACE}\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n")
    for kind, file in inputs(quick=quick):
        out.write(f"| {' | '.join(row(kind, file))} |\n")
        out.flush()


PREFACE = """\
# What the planner finds

Made by `python -m bench.micro.planner > docs/planner.md`; only the seconds differ between runs
(these: two cores with other load). Cost is hops + 10 * foreign work, at rate 1 for each log and
weight 1 for each consumer. A gap of 0 is a proof: no tree over any bags is cheaper. Otherwise the
gap is the distance to a proven lower bound. The bound is loose if interests are scattered: then
the true distance is smaller.

* one root: the cost of a single collector that knows every log.
* layering: the poster's method, interests as collectors in a spanning tree of greatest overlap.
* ByzCast's tree: consumers are groups. Of all rooted trees over up to seven groups, it is the
  best by ByzCast's objective, the sum of F(d) * (|d| + 2 * other groups passed); among equals,
  the cheapest by our cost. The column gives its cost by our measure, the last column its value by
  ByzCast's.
"""

if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
