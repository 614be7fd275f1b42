"""A lower bound of the cost of all trees, from pieces and their cuts (`cuts.py`), with its proof.

In a tree each piece that a collector orders by itself has one cut there. It is the whole input, or
a part of another piece's cut, which is its *home*. The cost of the tree is divided among its
pieces, so that the least cost of a piece follows from those of its parts: one pass over the cuts
bounds all trees.

**What a collector costs.** Let v be a collector that is not the root, with the bag X and the load
L; its parent has the load b; q is the boundary of what v orders. This falls into pieces of q. Those
with a cut at v are its *own*; the others go on to a child, and are its *guests*. The own cuts' bags
have no log in common outside q. So v costs exactly the sum of

1. `Cut.cost` of each own cut, and its `discard` for each unit by which L exceeds its `load`;
2. `drop` * b;
3. for each log of q, `drop` * (n - 1), if n > 1 own cuts want it: each was credited for it;
4. a hop of the boundary of each guest.

(A least tree with the fewest collectors has no root that serves nobody and has one child, and no
collector of this kind below it.)

**What a piece pays**: its own cut, and the way from its home to its collector.

    alone   it is the only own piece: it pays item 2
    step    it is a guest: it pays item 4, and a share of what v costs. Then v is a *hub*, with no
            own piece; or a *host*, with one; or a joint
    joint   it is one of several own pieces, and pays a share, too. The collector reads all of q,
            and at least `inner` more than that and this piece's cut
    host    it is the only own piece, with guests. It has their shares, and reads their boundaries

Pieces around one bag which may be below one collector are a *group*; its *expenses* are what its
hub, host or joint costs below a load. **The rules of shares** (`Shares`); S(b) is the sum of what
all members pay of an expense below the load b:

* No share falls with b.
* Hub: S(b) <= `drop` * b.
* Joint: S(b) and all of `logs` are not more than `drop` * b, for each b that can be (the parent
  reads q), and none of `logs` is more than `drop` * the log's rate. (Of n cuts that want a log, one
  pays from item 2, the others from item 3.)
* Host with the load L: it gets what all other members could pay, though in a tree they may not all
  be its guests. S(b) grows with b by at most `drop` per unit, from 0 at b = L.
* An undivided expense: each member pays 1 / n of it, where at most n of them are below one
  collector; but a joint's cuts pay in full for the logs that they want, so each member pays 1 / n
  of `drop` * (b - the rate of q). A host gets nothing, and counts
  its cut as if it were alone. So there is item 1 for its guests; and as it pays no more than if it
  were a guest of itself, there is also `drop` * (b - L) less its hop, if that is positive.

**Base loads.** The load of a piece's home that is known when the piece is counted is its *base*: a
cut in a joint is counted at the least load there, and a host that is counted as if it were alone
reads more than its cut does. So no base is above the true load; and members of one group may have
different bases. A member whose base is not above the load of the next collector keeps its base, and
pays nothing for the step. Why the rules suffice, for bases a(m) <= b:

* Hub and joint: shares do not fall, so their sum at the bases is at most S(b).
* Host h: it pays `drop` * a(h) and has S(a(h)) without its own share; the others pay at most S(b)
  without its own. These differ by at most `drop` * (b - a(h)), which h pays too little. If a(h) is
  not above L, it is counted as if it were alone, and S(b) <= `drop` * (b - L).
* Undivided host h: it counts at most `drop` * a(h); and if a(h) > L, not more than its hop, its
  own share and `drop` * L. With all other shares this is at most item 2 and item 1 for the guests.

All loads above the level are taken for the least of them, which is a base, too.

*Heavy* pieces may have a cut with a bag above the level; these are not listed. Each demand gets a
price, so that no piece below a heavy collector, and no demand that is served there, costs less than
its demands' prices. Then a heavy cut costs at least the prices of its demands, with a hop of its
boundary and less `drop` for each log of it; and its way costs that `drop` at least, as the parent
reads the boundary. In a joint this must be left by the others: there, S(b) and those of `logs` that
are in no heavy member's boundary are not more than `drop` * (b - the rate of all these boundaries).
A linear program finds the prices; whole numbers prove them.

If the cost of a tree is known, cuts that no cheaper tree has are left out, and a new proof begins:
fewer pieces are left, and so the shares are larger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from topology.planner.cost import bits
from topology.planner.pieces.cuts import ConnectedPiece, Cut, Pieces
from topology.planner.pieces.groups import HUB, JOINT, Expense, Group, groups

NEVER = 1 << 200  # more than any cost
ROUNDS = 6  # of the linear program, each with the rows that the last prices violated
ROUNDING = 1e-3  # in units of `drop`: prices that violate a row by so much are lowered
Solver = Callable[
    [int, dict[int, float], Sequence[tuple[dict[int, float], float]]], Sequence[float] | None
]


class Shares(NamedTuple):
    """What each member of a group pays of an expense, and what a cut in a joint pays for a log."""

    members: Mapping[int, int]
    logs: Mapping[int, int]


class SharedCut(NamedTuple):
    """A kind of cut in a joint, or of a host (with its `load`), which reads `more` than its cut.

    In a joint, `wanted` are the logs of the boundary that the cut wants.
    """

    more: int
    wanted: int
    load: int


class Way(NamedTuple):
    """What the way from a home to its collector costs a piece, alone or with others."""

    alone: int
    shared: dict[SharedCut, int]


class PieceBound:
    """Bounds the cost of all trees that have some cuts only, and perhaps bags above the level."""

    def __init__(
        self,
        pieces: Pieces,
        cuts: Iterable[Cut],
        heavy: Sequence[bool],
        shares: Mapping[Expense, Shares] | None = None,
    ) -> None:
        """Take the cuts that a tree may have, and which pieces may have a bag above the level.

        Without `shares` each expense is divided evenly.
        """
        self.all, self.part, self.pieces, self.heavy = pieces, pieces.part, pieces.pieces, heavy
        self.cap = pieces.level + 1  # all greater loads are taken for this one
        self.cuts: list[list[Cut]] = [[] for _ in self.pieces]
        for cut in cuts:
            self.cuts[cut.piece].append(cut)
        sizes = [piece.demands.bit_count() for piece in self.pieces]
        self.order = sorted(range(len(sizes)), key=sizes.__getitem__)
        self.inner = min([*pieces.rates, *self.part.own])
        self.shares = shares or {}
        self._totals: dict[Expense, int] = {}
        self.of: list[list[Group]] = [[] for _ in self.pieces]
        self.kinds_of: dict[int, list[int]] = {}  # of expenses, by bag
        for group in groups(pieces, self.cuts, heavy):
            self.kinds_of[group.bag] = [JOINT, HUB, *group.loads]
            for member in group.members:
                self.of[member].append(group)
        self.prices: list[int] | None = None  # of demands below heavy collectors

    def bound(self, solver: Solver, prices: Sequence[int] | None = None) -> int | None:
        """Bound the cost of all these trees, without the hops of own logs; blocks for the solver.

        `prices` are tried before others. It is None if no prices were found.
        """
        self.prices = None if prices is None else list(prices)
        self._evaluate()
        self.violating = self._violating() if any(self.heavy) and prices is not None else []
        if not any(self.heavy):
            return self.value
        rows = self._rows()
        for _ in range(ROUNDS):
            over = 0 if self.prices is None else self._over(rows)
            if self.prices is None or over > self.part.drop * ROUNDING:
                self.prices = self._solved(solver, rows)
            else:
                self.prices = [price - over for price in self.prices]
            if self.prices is None:
                return None
            self._evaluate()
            new = self._rows()
            if self._over(new) <= 0:
                return self.value
            rows = {d: min(most, rows.get(d, NEVER)) for d, most in new.items()}
        return None

    # -- ways -----------------------------------------------------------------------------------

    def far(self, piece: ConnectedPiece) -> int:
        """Say how much more a piece reads in a joint around a bag above the level, at the least."""
        return self.cap - piece.rate + self.inner

    def kinds(self, number: int) -> list[int]:
        """List what the cuts of a piece want of its boundary."""
        boundary = self.pieces[number].boundary
        return sorted({cut.wanted & boundary for cut in self.cuts[number]})

    def _received(self, group: Group, expense: Expense, host: int) -> int:
        """Give what the other members could pay a host; nothing if the expense is undivided."""
        shares = self.shares.get(expense)
        if shares is None:
            return 0
        if expense not in self._totals:
            paid = (shares.members.get(member, 0) for member in group.members)
            self._totals[expense] = sum(paid)
        return self._totals[expense] - shares.members.get(host, 0)

    def host_keys(self, number: int, group: Group) -> list[SharedCut]:
        """List how a piece can be the host of a group."""
        more = group.rate - self.pieces[number].rate
        loads = {cut.load + more for cut in self.cuts[number]}
        return [SharedCut(more, 0, load) for load in group.loads if load in loads]

    def _ways(self, number: int) -> list[Way]:
        """Give what the way costs a piece below homes of each load."""
        drop, hop, ways = self.part.drop, self.pieces[number].hop, list[Way]()
        hosts = [self.host_keys(number, group) for group in self.of[number]]
        kinds = self.kinds(number)
        for load in range(self.cap + 1):
            alone, shared = drop * load, self._joints(number, load, kinds)
            steps: dict[int, int] = {}
            for group, keys in zip(self.of[number], hosts, strict=True):
                for option in group.steps[load]:
                    shares = self.shares.get(option.expense)
                    cost = option.share if shares is None else shares.members.get(number, 0)
                    steps[option.to_load] = min(cost, steps.get(option.to_load, NEVER))
                for key in keys:
                    received = self._received(group, (group.bag, load, key.load), number)
                    if key.load < load and received:
                        shared[key] = min(drop * load - received, shared.get(key, NEVER))
            for at, cost in steps.items():
                alone = min(alone, hop + cost + ways[at].alone)
                for key, paid in ways[at].shared.items():
                    shared[key] = min(hop + cost + paid, shared.get(key, NEVER))
            ways.append(Way(alone, shared))
        return ways

    def _joints(self, number: int, load: int, kinds: Sequence[int]) -> dict[SharedCut, int]:
        """Give what the way costs a piece to all joints below a home."""
        piece, drop = self.pieces[number], self.part.drop
        even, joints = {self.far(piece): 0}, dict[SharedCut, int]()
        for group in self.of[number]:
            option = group.joints[load]
            more, shares = option.to_load - piece.rate, self.shares.get(option.expense)
            if shares is None:
                even[more] = min(option.share, even.get(more, NEVER))
                continue
            paid = shares.members.get(number, 0)
            for kind in kinds:
                cost = paid + sum(shares.logs.get(log, 0) for log in bits(kind))
                key = SharedCut(more, kind, JOINT)
                joints[key] = min(cost, joints.get(key, NEVER))
        for more, share in even.items():
            for kind in kinds:
                key = SharedCut(more, kind, JOINT)
                joints[key] = min(share + drop * self.all.rate(kind), joints.get(key, NEVER))
        return joints

    # -- values -----------------------------------------------------------------------------------

    def _evaluate(self) -> None:
        """Compute what each piece costs at the least, small ones first.

        `priced` are its cuts' prices with their parts; `value` is the least for all demands. `pays`
        is what the piece pays with its way from a home, by the home's load; `limit` is the same
        below a heavy home, if it has no heavy cut itself.
        """
        count = len(self.pieces)
        self.priced: list[list[int]] = [[] for _ in range(count)]
        self.limit = [NEVER] * count
        self.pays: list[list[int]] = [[] for _ in range(count)]
        self.ways: list[list[Way]] = [[] for _ in range(count)]
        for number in self.order:
            priced = [self._priced(cut) for cut in self.cuts[number]]
            self.priced[number] = priced
            light, dear = min(priced, default=NEVER), self.dear(number)
            if number == self.all.everyone:
                self.value = min(light, dear)
            if number == self.all.everyone or min(light, dear) >= NEVER:
                continue
            ways = self.ways[number] = self._ways(number)
            least = self._least_shared(number, ways)
            pays = [
                min([light + way.alone, *(least[key] + paid for key, paid in way.shared.items())])
                for way in ways
            ]
            self.limit[number] = pays[-1]
            self.pays[number] = [min(paid, dear) for paid in pays]

    def _priced(self, cut: Cut) -> int:
        """Price a cut with its parts."""
        total, load = cut.cost, min(cut.load, self.cap)
        for part in cut.parts:
            if not self.pays[part]:
                return NEVER
            total += self.pays[part][load]
        return total

    def _least_shared(self, number: int, ways: Iterable[Way]) -> dict[SharedCut, int]:
        """Give the least that a piece costs with others, without its way, by the keys of ways."""
        least = dict.fromkeys((key for way in ways for key in way.shared), NEVER)
        for cut, price in zip(self.cuts[number], self.priced[number], strict=True):
            for key in least:
                if self.fits(cut, key):
                    least[key] = min(least[key], self.with_more(cut, price, key.more))
        return least

    def fits(self, cut: Cut, key: SharedCut) -> bool:
        """Whether a cut is of a kind."""
        if key.load == JOINT:
            return cut.wanted & self.pieces[cut.piece].boundary == key.wanted
        return cut.load + key.more == key.load

    def with_more(self, cut: Cut, price: int, more: int) -> int:
        """Price a cut whose collector reads so much more; `price` is without that."""
        total, load = price + more * cut.discard, min(cut.load + more, self.cap)
        base = min(cut.load, self.cap)
        if price >= NEVER:
            return NEVER
        for part in cut.parts:
            total += self.pays[part][load] - self.pays[part][base]
        return total

    # -- heavy collectors -------------------------------------------------------------------------

    def price(self, demands: int) -> int:
        """Sum the prices of a set of demands."""
        assert self.prices is not None, "no prices yet"
        return sum(self.prices[demand] for demand in bits(demands))

    def dear(self, number: int) -> int:
        """Give what a piece with a bag above the level costs with its way, at the least."""
        if not self.heavy[number] or self.prices is None:
            return NEVER
        piece = self.pieces[number]
        return self.price(piece.demands) + piece.hop

    def _rows(self) -> dict[int, int]:
        """List sets of demands, and what their prices may be together."""
        rows: dict[int, int] = {}
        for number, limit in enumerate(self.limit):
            if limit < NEVER:
                rows[self.pieces[number].demands] = limit
        for demand in range(self.all.count):  # or the heavy collector serves it
            served = self.all.leaf(demand, max(self.cap, self.all.loads[demand]))
            rows[1 << demand] = min(served, rows.get(1 << demand, NEVER))
        return rows

    def _solved(self, solver: Solver, rows: Mapping[int, int]) -> list[int] | None:
        """Find the prices with the greatest sum that violate none of the rows."""
        count, unit = self.all.count, self.part.drop
        answer = solver(
            count,
            dict.fromkeys(range(count), 1.0),
            [(dict.fromkeys(bits(demands), 1.0), most / unit) for demands, most in rows.items()],
        )
        if answer is None:
            return None
        self.prices = [int(price * unit) for price in answer]
        over = max(0, self._over(rows))
        return [price - over for price in self.prices]

    def _over(self, rows: Mapping[int, int]) -> int:
        """Say by how much the prices violate a row."""
        return max(self.price(demands) - most for demands, most in rows.items())

    def _violating(self) -> list[Cut]:
        """List cuts by which a piece below a heavy collector costs less than its prices."""
        violating: set[Cut] = set()
        for number, piece in enumerate(self.pieces):
            if self.limit[number] < self.price(piece.demands) - self.part.drop * ROUNDING:
                self._trace(number, self.cap, violating)
        return list(violating)

    def _trace(self, number: int, load: int, cuts: set[Cut]) -> None:
        """Add the cuts of a cheapest tree below a home of some load."""
        if not self.ways[number]:
            return
        way = self.ways[number][load]
        best, least, base = NEVER, None, 0
        for cut, price in zip(self.cuts[number], self.priced[number], strict=True):
            if price >= NEVER:
                continue
            costs = [(price + way.alone, 0)]
            costs += [
                (self.with_more(cut, price, key.more) + paid, key.more)
                for key, paid in way.shared.items()
                if self.fits(cut, key)
            ]
            cost, more = min(costs)
            if cost < best:
                best, least, base = cost, cut, min(cut.load + more, self.cap)
        if least is not None and least not in cuts:
            cuts.add(least)
            for part in least.parts:
                self._trace(part, base, cuts)
