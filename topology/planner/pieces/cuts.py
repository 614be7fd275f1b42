"""Pieces: the connected sets of demands that remain if the logs of a bag are taken away.

A *piece* is connected without the logs of its boundary. Where a collector has the bag X, the
demands fall into pieces, and each of its children orders some of them. A collector orders the
piece P itself if it has P's *cut*: a bag and some demands that are served; what is left of P falls
into smaller pieces, the cut's *parts*.

Acyclic interests have few pieces with small boundaries, though they have very many sets with small
boundaries: a set of k pieces with a common log has a small boundary, too, for each k.

A log is in a bag only if its readers lie in two pieces at least: otherwise it is inner to a child,
or the collector has nothing to do with it. Two pieces that need a log are separated by a minimal
separator which contains it. So each bag is a union of minimal separators of the graph in which two
logs are neighbours if a demand needs both (and each demand has a log of its own).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from topology.planner.boundaries import Budget, Restricted
from topology.planner.cost import bits


class ConnectedPiece(NamedTuple):
    """A connected set of demands, its boundary with its rate, and a hop of all its readers."""

    demands: int
    boundary: int
    rate: int
    hop: int


class Cut(NamedTuple):
    """A way to order a piece: a collector's bag, and what is left for its children.

    `load` is the rate of the bag with the own logs of the demands that are served, `wanted` the
    shared logs that these want. `cost` is the price of the collector, with the hops of the piece's
    boundary one collector further up, less `drop` for each log of the boundary; without what its
    parts pay for the bag. If the load were greater by one, those served would discard `discard`
    more.
    """

    piece: int
    bag: int
    load: int
    cost: int
    served: int
    wanted: int
    discard: int
    parts: tuple[int, ...]


class Pieces:
    """The pieces around all bags of shared logs of a rate of at most `level`, and their cuts.

    Logs are classes here: bit sets of distinct readers, with a rate. `number` gives the number of a
    piece by its demands. Raises `Exhausted`.
    """

    def __init__(
        self,
        part: Restricted,
        level: int,
        budget: Budget,
        lower: Pieces | None = None,
        larger: Sequence[bool] = (),
    ) -> None:
        """List them. With those of a `lower` level, its pieces keep their numbers.

        `cuts` are then only the others, and `larger` says which pieces may have some.
        """
        self.part, self.level, self.budget = part, level, budget
        rates: dict[int, int] = {}
        for mask in part.readers:
            if mask & (mask - 1):
                rates[mask] = rates.get(mask, 0) + 1
        self.readers, self.rates = list(rates), list(rates.values())
        self._rates: dict[int, int] = {}
        self.count = len(part.weight)
        self.needs = [0] * self.count
        for number, mask in enumerate(self.readers):
            for demand in bits(mask):
                self.needs[demand] |= 1 << number
        self.loads = [self.rate(logs) + own for logs, own in zip(self.needs, part.own, strict=True)]
        self.fallen: dict[int, list[tuple[int, int]]] = {} if lower is None else lower.fallen
        self._old: list[int] = [] if lower is None else [0, *lower.around]
        self.pieces: list[ConnectedPiece] = [] if lower is None else list(lower.pieces)
        self.number: dict[int, int] = {} if lower is None else dict(lower.number)
        # Pieces with bags by which their cuts are listed.
        self.listed: set[tuple[int, int]] = set() if lower is None else set(lower.listed)
        self._known = len(self.pieces)
        self.around: dict[int, list[int]] = {}
        for bag in self._bags():
            self.around[bag] = [self._add(*found) for found in self._fallen(bag)]
        for demand in range(self.count):
            self._add(1 << demand, self.needs[demand])
        self.everyone = self._add(part.everyone, 0)
        self.cuts = list(self._cuts(larger))

    def raise_level(self) -> None:
        """Take the greatest level with the same pieces and cuts, which proves more."""
        self.level = self._next - 1

    def rate(self, logs: int) -> int:
        """Sum the rates of a set of classes."""
        known = self._rates.get(logs)
        if known is None:
            known = self._rates[logs] = sum(self.rates[number] for number in bits(logs))
        return known

    def touched(self, demands: int) -> int:
        """Give the classes that at least one demand of the set needs."""
        logs = 0
        for demand in bits(demands):
            logs |= self.needs[demand]
        return logs

    def passing(self, demands: int, logs: int) -> int:
        """Price one hop of some logs for all their readers in a set of demands."""
        weight = self.part.weight
        total = sum(
            self.rates[n] * sum(weight[d] for d in bits(self.readers[n] & demands))
            for n in bits(logs)
        )
        return total * self.part.hop

    def leaf(self, demand: int, load: int) -> int:
        """Price what a demand costs at a collector of this load that serves it, but for drops."""
        part = self.part
        hops = part.hop * self.rate(self.needs[demand])
        return part.weight[demand] * (hops + part.discard * (load - self.loads[demand]))

    def _add(self, demands: int, boundary: int) -> int:
        if demands not in self.number:
            self.number[demands] = len(self.pieces)
            hop = self.passing(demands, boundary)
            self.pieces.append(ConnectedPiece(demands, boundary, self.rate(boundary), hop))
        return self.number[demands]

    # -- bags -----------------------------------------------------------------------------------

    def _fallen(self, bag: int) -> list[tuple[int, int]]:
        """Take away the logs of a bag; list the pieces, each with its boundary."""
        known = self.fallen.get(bag)
        if known is not None:
            return known
        self.budget.take(self.count)
        left, found = self.part.everyone, []
        while left:
            piece = front = left & -left
            seen = 0
            while front:
                logs = self.touched(front)
                new, seen = logs & ~bag & ~seen, seen | logs
                joined = piece
                for number in bits(new):
                    joined |= self.readers[number]
                front, piece = joined & ~piece, joined
            found.append((piece, seen & bag))
            left &= ~piece
        self.fallen[bag] = found
        return found

    def _separators(self) -> set[int]:
        """List the minimal separators.

        From the boundaries of the pieces around a demand, all others follow by taking away the
        neighbours of a log of a known one (Berry, Bordat and Cogis, 2000).
        """
        known: set[int] = set()
        pending: list[int] = []

        def note(bag: int) -> None:
            for _, boundary in self._fallen(bag):
                if boundary and boundary not in known:
                    known.add(boundary)
                    pending.append(boundary)

        for logs in set(self.needs):
            note(logs)
        while pending:
            separator = pending.pop()
            for number in bits(separator):
                note(separator | self.touched(self.readers[number]))
        return known

    def _bags(self) -> list[int]:
        """List the unions of minimal separators, up to the level; and note the rate of the next."""
        bags, above = {0}, {self.part.shared + 1}
        for separator in self._separators():
            if self.rate(separator) > self.level:
                above.add(self.rate(separator))
                continue
            if sum(boundary == separator for _, boundary in self._fallen(separator)) < 2:
                continue  # it separates nothing
            self.budget.take(len(bags))
            joined = {bag | separator for bag in bags}
            within = {bag for bag in joined if self.rate(bag) <= self.level}
            above |= {self.rate(bag) for bag in joined - within}
            bags |= within
        self._next = min(above)
        return sorted(bags - {0}, key=lambda bag: (self.rate(bag), bag))

    # -- cuts -----------------------------------------------------------------------------------

    def _cuts(self, larger: Sequence[bool]) -> Iterator[Cut]:
        bounded: dict[int, list[int]] = {}
        for number, piece in enumerate(self.pieces):
            bounded.setdefault(piece.boundary, []).append(number)
        bags = dict.fromkeys([0, *self.around, *self.needs])
        for bag in self._old:  # each piece within it is listed with it
            if bag not in self.needs:
                del bags[bag]
        for bag in bags:
            boundary = bag
            while True:  # all subsets of the bag
                self.budget.take()
                for number in bounded.get(boundary, ()):
                    known = number < self._known and not larger[number]
                    if known or (number, bag) in self.listed:
                        continue
                    self.listed.add((number, bag))
                    piece = self.pieces[number]
                    inside = bag & ~boundary
                    if any(self.readers[n] & ~piece.demands for n in bits(inside)):
                        continue
                    yield from self._served(number, piece, bag)
                if not boundary:
                    break
                boundary = (boundary - 1) & bag

    def _served(self, number: int, piece: ConnectedPiece, bag: int) -> Iterator[Cut]:
        """List the cuts of one piece by one bag: which of its demands the collector may serve."""
        within = [found for found in self._fallen(bag) if not found[0] & ~piece.demands]
        single = [demands.bit_length() - 1 for demands, _ in within if not demands & (demands - 1)]
        pending: list[tuple[tuple[int, ...], int]] = [((), 0)]
        while pending:
            chosen, place = pending.pop()
            self.budget.take(1 + len(within))
            served = sum(1 << d for d in chosen)
            if chosen or len(within) > 1:
                yield self._cut(number, piece, bag, served, within)
            for later in range(place, len(single)):
                more = (*chosen, single[later])
                if self._worth(more, bag):
                    pending.append((more, later + 1))

    def _worth(self, chosen: Sequence[int], bag: int) -> bool:
        """Whether no demand of several served ones is cheaper in a collector of its own below.

        With one of its own it costs a hop of its logs, and `drop` for each that no other one wants;
        but nobody gets its own logs, nor it those of others.
        """
        part = self.part
        load = self.rate(bag) + sum(part.own[d] for d in chosen)
        for demand in chosen:
            others = [d for d in chosen if d != demand]
            weight = part.weight[demand] * part.discard
            more = part.own[demand] * sum(part.weight[d] * part.discard for d in others)
            more += (weight - part.drop) * (load - self.loads[demand])
            alone = self.needs[demand]
            for other in others:
                alone &= ~self.needs[other]
            logs = self.needs[demand]
            less = part.drop * self.rate(alone)
            less += part.hop * part.weight[demand] * self.rate(logs)
            if more > less:
                return False
        return True

    def _cut(
        self,
        number: int,
        piece: ConnectedPiece,
        bag: int,
        served: int,
        within: Sequence[tuple[int, int]],
    ) -> Cut:
        part = self.part
        wanted = self.touched(served)
        load = self.rate(bag) + sum(part.own[d] for d in bits(served))
        passed_on = self.rate(bag & ~wanted)
        cost = part.drop * (passed_on - piece.rate) + piece.hop
        cost += sum(self.leaf(d, load) for d in bits(served))
        parts = tuple(self._add(*found) for found in within if not found[0] & served)
        discard = part.discard * sum(part.weight[d] for d in bits(served))
        return Cut(number, bag, load, cost, served, wanted, discard, parts)
