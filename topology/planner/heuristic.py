"""Good trees for components that are too large for the exact search.

`constructed` gives the best of three trees within the limits, or None: one found with separators
(see below), one root for all demands, and a maximum spanning tree of common rates (`greedy`) under
its best root. So it is never worse than the latter two. Budgets count steps, not seconds.

Separators work from the top down. A collector's bag separates the demands below it: without the
logs of the bag they fall into components, and each component with logs of its own gets a collector.
Candidates for the bag are the thinnest cuts of a sweep through the demands, the logs with most
readers, the logs of one central demand, all shared logs, and all logs. Small sets are solved
exactly; for mid-sized sets the best candidates are followed to their leaves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from topology.planner.cost import NOWHERE, Measure, TreeNode, bits
from topology.planner.exact import families

# These bounds trade time for better trees; docs/planner.md shows times and gaps with these values,
# and `--effort` multiplies TRIED_OUT_MAX and CLIMB_STEPS_MAX.
EXACT_DEMANDS_MAX = 5  # sets up to this size are searched exactly: at most 203 families
TRIED_OUT_DEMANDS_MAX = 80  # sets up to this size: several candidates are followed to their leaves
TRIED_OUT_MAX = 4  # candidates of such a set
CLIMB_STEPS_MAX = 12_000  # moves of one log into a bag or out of it, in all
DEPTH_MAX = 60  # levels; bounds the recursion, a balanced tree of 1000 demands has ten
ROOTS_TRIED_MAX = 12  # of the spanning tree


@dataclass(frozen=True, slots=True)
class Split:
    """A collector for `below`: its bag, and the sets that its children order."""

    below: int
    bag: int
    children: tuple[int, ...]
    price: int


class Separators:
    """The top-down construction; it remembers the best tree found for each set."""

    def __init__(
        self, measure: Measure, *, load_max: int | None = None, effort: float = 1.0
    ) -> None:
        self.measure = measure
        self.load_max = measure.load_max if load_max is None else load_max
        self.host = measure.hosts[0]
        self.steps = int(CLIMB_STEPS_MAX * effort)
        self.tried_out = max(1, round(TRIED_OUT_MAX * effort))
        self.known: dict[tuple[int, int | None, bool], tuple[int, TreeNode] | None] = {}

    def tree(self) -> TreeNode | None:
        """Build the tree for all demands; None if no tree within the limits was found."""
        everyone = self.measure.component.everyone
        answer = self.best(everyone, self.measure.levels_max, depth=0, try_out=True)
        return None if answer is None else answer[1]

    def best(
        self, below: int, levels: int | None, *, depth: int, try_out: bool
    ) -> tuple[int, TreeNode] | None:
        """Give the price and the best tree found for a set, with so many levels left."""
        key = below, levels, try_out
        if key not in self.known:
            self.known[key] = self._search(below, levels, depth=depth, try_out=try_out)
        return self.known[key]

    def _search(
        self, below: int, levels: int | None, *, depth: int, try_out: bool
    ) -> tuple[int, TreeNode] | None:
        count = below.bit_count()
        splits = list(self._exactly(below) if count <= EXACT_DEMANDS_MAX else self._splits(below))
        if levels == 1 or depth > DEPTH_MAX:
            splits = [split for split in splits if not split.children]
        if count <= EXACT_DEMANDS_MAX:
            wanted = len(splits)
        else:
            thin = self._thinness(below)
            splits.sort(key=lambda split: (self._outlook(split, thin), split.children))
            wanted = self.tried_out if try_out and count <= TRIED_OUT_DEMANDS_MAX else 1
        left = None if levels is None else levels - 1
        further = try_out and wanted == 1
        answers: list[tuple[tuple[int, TreeNode], Split]] = []
        for split in splits:
            made = self._made(split, left, depth=depth + 1, try_out=further)
            if made is not None:
                answers.append((made, split))
                if len(answers) >= wanted:
                    break
        mid_sized = EXACT_DEMANDS_MAX < count <= TRIED_OUT_DEMANDS_MAX
        if answers and try_out and mid_sized and levels != 1:
            # The best split is kept, and each of its children is tried out again for itself.
            climbed = [self._climbed(*answer, left, depth=depth + 1) for answer in answers]
            best, chosen = min(climbed, key=lambda answer: answer[0][0])
            again = self._made(chosen, left, depth=depth + 1, try_out=True)
            return best if again is None or again[0] > best[0] else again
        return min((made for made, _ in answers), key=lambda made: made[0], default=None)

    def _climbed(
        self, answer: tuple[int, TreeNode], chosen: Split, levels: int | None, *, depth: int
    ) -> tuple[tuple[int, TreeNode], Split]:
        """Move one log at a time into the bag or out of it, as long as the price falls."""
        below, readers = chosen.below, self.measure.readers
        inner = list(bits(self.measure.inner(below)))
        shared = [n for n in inner if readers[n] & (readers[n] - 1)]
        bag = set(bits(chosen.bag)) & set(inner)
        since, place = 0, 0
        while since < len(shared) and self.steps > 0:
            number = shared[place % len(shared)]
            place, since, self.steps = place + 1, since + 1, self.steps - 1
            moved = bag ^ {number}
            children = self._children(below, inner, moved)
            for split in self._split(below, self.measure.bag(below, children), children):
                made = self._made(split, levels, depth=depth, try_out=False)
                if made is not None and made[0] < answer[0]:
                    answer, chosen, since = made, split, 0
                    bag = set(bits(split.bag)) & set(inner)
        return answer, chosen

    def _made(
        self, split: Split, levels: int | None, *, depth: int, try_out: bool
    ) -> tuple[int, TreeNode] | None:
        price, children = split.price, []
        for child in split.children:
            answer = self.best(child, levels, depth=depth, try_out=try_out)
            if answer is None:
                return None
            price += answer[0]
            children.append(answer[1])
        served = split.below & ~sum(split.children)
        return price, TreeNode(split.below, served, tuple(children), self.host)

    # -- candidates -------------------------------------------------------------------------

    def _exactly(self, below: int) -> Iterator[Split]:
        """List all families of children; a set without logs of its own needs no collector."""
        members = list(bits(below))
        subsets = [
            sum(1 << members[place] for place in bits(pick))
            for pick in range(1, (1 << len(members)) - 1)
        ]
        within = [subset for subset in subsets if self.measure.inner(subset)]
        for family in families(below, within):
            yield from self._split(below, self.measure.bag(below, family), family)

    def _split(self, below: int, bag: int, children: Sequence[int]) -> Iterator[Split]:
        if self.load_max is None or self.measure.load(bag) <= self.load_max:
            price = self.measure.price(below, children, bag=bag, host=self.host, parent=self.host)
            yield Split(below, bag, tuple(children), price)

    def _splits(self, below: int) -> Iterator[Split]:
        seen: set[tuple[int, ...]] = set()
        inner = list(bits(self.measure.inner(below)))
        for bag in self._bags(below, inner):
            children = self._children(below, inner, bag)
            if children not in seen:
                seen.add(children)
                yield from self._split(below, self.measure.bag(below, children), children)

    def _children(self, below: int, inner: Sequence[int], bag: set[int]) -> tuple[int, ...]:
        """Give the components that remain without the bag's logs.

        A single demand gets no collector of its own if it is cheaper to serve it here.
        """
        measure = self.measure
        root = {demand: demand for demand in bits(below)}

        def find(demand: int) -> int:
            while root[demand] != demand:
                root[demand] = root[root[demand]]
                demand = root[demand]
            return demand

        held = set()
        for number in inner:
            if number not in bag:
                first, *others = (find(demand) for demand in bits(measure.readers[number]))
                held.add(first)
                for other in others:
                    root[find(other)] = find(first)
        tops = {find(demand) for demand in held}
        parts: dict[int, int] = {}
        for demand in root:
            top = find(demand)
            if top in tops:
                parts[top] = parts.get(top, 0) | 1 << demand
        weight = measure.weight_of(below)
        return tuple(
            sorted(
                part
                for part in parts.values()
                if part != below and (part & (part - 1) or self._worth(part, weight))
            )
        )

    def _worth(self, single: int, weight: int) -> bool:
        """Whether a demand's own logs in the bag cost more than a collector of its own costs it."""
        measure = self.measure
        phi = measure.scale.phi
        number = single.bit_length() - 1
        private = measure.load(measure.inner(single))
        all_of_it = measure.loads[number] * measure.weight[number]
        saved = private * (
            phi.denominator * measure.weight[number]
            + phi.numerator * (weight - measure.weight[number])
        )
        return saved > all_of_it * phi.denominator

    def _bags(self, below: int, inner: Sequence[int]) -> Iterator[set[int]]:
        measure = self.measure
        shared = [n for n in inner if measure.readers[n] & (measure.readers[n] - 1)]
        yield set(inner)
        yield set(shared)
        by_readers = sorted(shared, key=lambda n: (-measure.readers[n].bit_count(), n))
        for part in (1, 2, 4, 8, 16, 32):
            if part < len(by_readers):
                yield set(by_readers[:part])
        within = set(shared)
        central = sorted(
            bits(below),
            key=lambda d: (-sum(measure.rate[n] for n in bits(measure.needs[d]) if n in within), d),
        )
        for demand in central[:4]:
            yield set(bits(measure.needs[demand])) & set(inner)
            yield set(bits(measure.needs[demand])) & within
        for order in self._sweeps(below, shared):
            yield from self._cuts(order, shared)

    def _sweeps(self, below: int, shared: Sequence[int]) -> Iterator[list[int]]:
        """Order the demands breadth first from one end, and from the other end."""
        members = list(bits(below))
        if not shared:
            return
        there = self.swept(members[0], below, shared)
        back = self.swept(there[-1], below, shared)
        yield back
        yield self.swept(back[-1], below, shared)

    def swept(self, start: int, below: int, shared: Sequence[int]) -> list[int]:
        """Order the demands breadth first through shared logs, from the demand `start`."""
        measure, within = self.measure, set(shared)
        order, seen = [start], 1 << start
        for demand in order:
            near = 0
            for number in bits(measure.needs[demand]):
                if number in within:
                    near |= measure.readers[number]
            order.extend(bits(near & ~seen))
            seen |= near
        return [*order, *bits(below & ~seen)]

    def _cuts(self, order: Sequence[int], shared: Sequence[int]) -> Iterator[set[int]]:
        """Cut a sweep into two, three, four and six parts, each time at the thinnest places."""
        spans = self._spans(order, shared)
        change = [0] * (len(order) + 1)
        for number, (first, last) in spans.items():
            change[first + 1] += self.measure.rate[number]
            change[last + 1] -= self.measure.rate[number]
        cut, thickness = 0, []
        for step in change:
            cut += step
            thickness.append(cut)
        for pieces in (2, 3, 4, 6):
            width = max(1, len(order) // (2 * pieces))
            places = []
            for piece in range(1, pieces):
                middle = len(order) * piece // pieces
                window = range(max(1, middle - width), min(len(order), middle + width + 1))
                places.append(min(window, key=lambda p: (thickness[p], abs(p - middle), p)))
            yield {n for n, (a, z) in spans.items() if any(a < place <= z for place in places)}

    def _spans(self, order: Sequence[int], shared: Sequence[int]) -> dict[int, tuple[int, int]]:
        place = {demand: position for position, demand in enumerate(order)}
        spans = {}
        for number in shared:
            positions = [place[demand] for demand in bits(self.measure.readers[number])]
            spans[number] = min(positions), max(positions)
        return spans

    # -- outlook ----------------------------------------------------------------------------

    def _thinness(self, below: int) -> int:
        """Give the rate of the thinnest cut: the cost of one more level for each demand below."""
        inner = list(bits(self.measure.inner(below)))
        shared = [n for n in inner if self.measure.readers[n] & (self.measure.readers[n] - 1)]
        cuts = [cut for order in self._sweeps(below, shared) for cut in self._cuts(order, shared)]
        return min((sum(self.measure.rate[n] for n in cut) for cut in cuts if cut), default=0)

    def _outlook(self, split: Split, thin: int) -> int:
        """Estimate the price of a split's tree, as if its children were halved level by level."""
        measure = self.measure
        phi = measure.scale.phi
        total = split.price
        for child in split.children:
            known = self.known.get((child, None, False))
            if known is not None:
                total += known[0]
                continue
            own = sum(measure.weight[d] * measure.loads[d] for d in bits(child))
            levels = child.bit_count().bit_length() - 1
            through = phi.numerator * measure.weight_of(child) * thin * levels
            guess = (own * phi.denominator + through) * measure.scale.hops * measure.tie_work
            touched = measure.touching(child)
            together = measure.price(child, (), bag=touched, host=self.host, parent=self.host)
            total += min(guess, together)
        return total


# -- the greedy start, and hosts ---------------------------------------------------------------


def greedy(measure: Measure, *, load_max: int | None = None) -> TreeNode | None:
    """Build the maximum spanning tree of common rates, under the best of its central demands."""
    demands = len(measure.weight)
    joined = _spanning(demands, _overlaps(measure))
    central = sorted(range(demands), key=lambda d: (-len(joined[d]), d))[:ROOTS_TRIED_MAX]
    best: tuple[int, TreeNode] | None = None
    for root in central:
        tree = _hung(measure, joined, root)
        if measure.levels_max is not None and _levels(tree) > measure.levels_max:
            continue
        if load_max is not None and measure.heaviest(tree) > load_max:
            continue
        price = measure.priced(tree, measure.hosts[0])
        if best is None or price < best[0]:
            best = price, tree
    return None if best is None else best[1]


def _overlaps(measure: Measure) -> list[tuple[int, int, int]]:
    """List the pairs of demands that share logs, with their common rate, the largest first."""
    common: dict[tuple[int, int], int] = {}
    for number, mask in enumerate(measure.readers):
        members = list(bits(mask))
        for place, a in enumerate(members):
            for b in members[place + 1 :]:
                common[a, b] = common.get((a, b), 0) + measure.rate[number]
    return sorted(((rate, a, b) for (a, b), rate in common.items()), key=lambda e: (-e[0], e[1:]))


def _spanning(demands: int, links: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    root = list(range(demands))

    def find(number: int) -> int:
        while root[number] != number:
            root[number] = root[root[number]]
            number = root[number]
        return number

    joined: list[list[int]] = [[] for _ in range(demands)]
    for _, a, b in links:
        if find(a) != find(b):
            root[find(b)] = find(a)
            joined[a].append(b)
            joined[b].append(a)
    return joined


def _hung(measure: Measure, joined: Sequence[Sequence[int]], root: int) -> TreeNode:
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
    return 1 + max((_levels(child) for child in tree.children), default=0)


def placed(measure: Measure, tree: TreeNode) -> TreeNode:
    """Place all collectors on hosts at the least cost for the given tree: exact."""
    if measure.hosts == (NOWHERE,):
        return tree
    memo: dict[tuple[int, int], tuple[int, TreeNode]] = {}

    def best(node: TreeNode, parent: int) -> tuple[int, TreeNode]:
        key = node.below, parent
        if key not in memo:
            sets = [child.below for child in node.children]
            options = []
            for host in measure.hosts:
                below = [best(child, host) for child in node.children]
                price = measure.price(node.below, sets, host=host, parent=parent)
                total = price + sum(value for value, _ in below)
                made = TreeNode(node.below, node.served, tuple(child for _, child in below), host)
                options.append((total, made))
            memo[key] = min(options, key=lambda option: option[0])
        return memo[key]

    return best(tree, NOWHERE)[1]


def constructed(
    measure: Measure, *, load_max: int | None = None, effort: float = 1.0
) -> TreeNode | None:
    """Give the best tree of all constructions; None if none of them keeps the limits."""
    everyone = measure.component.everyone
    single = TreeNode(everyone, everyone, (), measure.hosts[0])
    separated = Separators(measure, load_max=load_max, effort=effort).tree()
    trees = [separated, greedy(measure, load_max=load_max)]
    if load_max is None or measure.heaviest(single) <= load_max:
        trees.append(single)
    known = [placed(measure, tree) for tree in trees if tree is not None]
    return min(known, key=measure.priced, default=None)
