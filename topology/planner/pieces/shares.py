"""Divides what groups of pieces cost among their members, so that the bound is the greatest.

`PieceBound` proves a bound with any division. Evenly, each of n pieces around a bag pays 1 / n, but
perhaps only three of them are below one collector in a cheap tree. The passes of `PieceBound` are
a dynamic program, so the best division is the dual of a linear program: a unit flows from the root
through a cut to each of its parts, by a way to its collector and so to a cut of this part. A member
of a group can take its way only as far as the group is open. A hub or a joint is opened at its
price, and a host by what flows through its own cuts.

Rows for all groups would be too many. So the program begins with even shares, and divides those
costs that its optimum uses, until there are no others. What the solver finds is not trusted: it
gives shares, with which `PieceBound` proves the bound in whole numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from topology.planner.cost import bits
from topology.planner.integer_program import LinearProgram, Relaxed
from topology.planner.pieces.cuts import Cut
from topology.planner.pieces.groups import JOINT, Expense, Group, Option
from topology.planner.pieces.proof import NEVER, PieceBound, SharedCut, Shares

UNUSED = 1e-6  # of a column; the solver's values are floating point
Node = tuple[str, int, Any]  # a place between two columns of the flow; the kind says what
ROOT: Node = ("root", 0, 0)


DEAREST = (NEVER, None)  # a way that costs more than any other


class Division(NamedTuple):
    """Who pays what of each divided expense, and the prices of demands below heavy collectors."""

    shares: Mapping[Expense, Shares]
    prices: Sequence[int] | None


UNDIVIDED = Division({}, None)


class Flow:
    """The linear program of a bound, with some expenses divided, for some of its cuts."""

    def __init__(
        self, bound: PieceBound, expenses: set[tuple[int, int]], cuts: Iterable[Cut]
    ) -> None:
        """Write it; the bound must be evaluated. `expenses` are bags with loads (`Expense`)."""
        self.bound, self.expenses, self.program = bound, expenses, LinearProgram()
        self.balances: dict[Node, list[tuple[int, int]]] = {ROOT: []}
        self.even: dict[int, Expense] = {}  # columns that pay an even share
        # Of divided ones: the columns of members, and of their hosts, which open them.
        self.members: dict[tuple[Expense, int], list[int]] = {}
        self.hosts: dict[Expense, dict[int, list[int]]] = {}
        # Of divided joints, by the logs that they want.
        self.wanted: dict[tuple[Expense, int], list[int]] = {}
        self.costs: dict[Expense, int] = {}  # of divided ones
        self.paid: dict[Expense, int] = {}  # of divided joints: logs of which no part is divided
        self.cuts: list[tuple[Cut, list[int]]] = []  # with its columns
        self.shared: dict[int, list[Node]] = {}  # by piece
        self._of: dict[int, list[Cut]] = {}
        for cut in cuts:
            self._of.setdefault(cut.piece, []).append(cut)
        self._pending: list[tuple[int, int]] = []
        heavy = [number for number, heavy in enumerate(bound.heavy) if heavy]
        self._states(heavy)
        for some in self._of.values():
            for cut in some:
                self._cut(cut)
        if heavy:
            self._heavy(heavy)
        self.rows, self.log_rows = self._close()

    # -- columns ----------------------------------------------------------------------------------

    def _flow(self, cost: int, out: Sequence[Node], into: Sequence[Node]) -> int:
        column = self.program.column(cost)
        for node in out:
            self.balances.setdefault(node, []).append((column, -1))
        for node in into:
            if node not in self.balances:
                self._begin(node)
            self.balances.setdefault(node, []).append((column, 1))
        return column

    def _begin(self, node: Node) -> None:
        """Note what follows from a new node."""
        kind, number, *_ = node
        if kind == "at":
            self._pending.append(node[1:3])
        elif kind == "shared":
            self.shared.setdefault(number, []).append(node)
            for cut in self._of.get(number, ()):
                if self.bound.fits(cut, node[2]):
                    self._need(cut, node[2].more)

    def _need(self, cut: Cut, more: int) -> None:
        load = min(cut.load + more, self.bound.cap)
        for part in cut.parts:
            node = ("at", part, load)
            if node not in self.balances:
                self.balances[node] = []
                self._pending.append((part, load))

    def _states(self, heavy: Sequence[int]) -> None:
        """Add the ways from all homes."""
        bound = self.bound
        for some in self._of.values():
            for cut in some:
                self._need(cut, 0)
        if heavy:
            for number, ways in enumerate(bound.ways):
                node = ("at", number, bound.cap)
                if ways and node not in self.balances:
                    self.balances[node] = []
                    self._pending.append((number, bound.cap))
        while self._pending:
            self._ways(*self._pending.pop())

    def _ways(self, number: int, load: int) -> None:
        """Add the ways of a piece from a home of some load (`PieceBound`)."""
        bound, piece, home = self.bound, self.bound.pieces[number], ("at", number, load)
        drop, rate = bound.part.drop, bound.all.rate
        kinds = bound.kinds(number)
        self._flow(drop * load, [home], [("alone", number, 0)])
        # By where the way leads: the least even share, with a hop.
        cheapest: dict[Node, tuple[int, Expense | None]] = {
            ("shared", number, SharedCut(bound.far(piece), kind, JOINT)): (drop * rate(kind), None)
            for kind in kinds
        }
        for group in bound.of[number]:
            joint = group.joints[load]
            more = joint.to_load - piece.rate
            offers: list[tuple[Option, int, Node]] = [
                (joint, 0, ("shared", number, SharedCut(more, kind, JOINT))) for kind in kinds
            ]
            offers += [(s, piece.hop, ("at", number, s.to_load)) for s in group.steps[load]]
            for option, hop, node in offers:
                wanted = node[2].wanted if node[0] == "shared" else 0
                if (group.bag, option.expense[2]) in self.expenses:
                    self.costs[option.expense] = option.cost
                    self.paid[option.expense] = group.paid
                    self._share(option.expense, wanted, self._flow(hop, [home], [node]), number)
                elif hop + option.share + drop * rate(wanted) < cheapest.get(node, DEAREST)[0]:
                    cheapest[node] = hop + option.share + drop * rate(wanted), option.expense
            self._hosts(number, load, group)
        for node, (cost, even) in cheapest.items():
            column = self._flow(cost, [home], [node])
            if even is not None:
                self.even[column] = even

    def _hosts(self, number: int, load: int, group: Group) -> None:
        """Add the ways to be a host of a group, if this is divided."""
        drop, home = self.bound.part.drop, ("at", number, load)
        for key in self.bound.host_keys(number, group):
            if key.load < load and (group.bag, key.load) in self.expenses:
                expense = group.bag, load, key.load
                column = self._flow(drop * load, [home], [("shared", number, key)])
                self.hosts.setdefault(expense, {}).setdefault(number, []).append(column)
                self.costs.setdefault(expense, drop * (load - key.load))

    def _share(self, expense: Expense, wanted: int, column: int, number: int) -> None:
        """Note a way of which the cost is divided."""
        paid = self.paid[expense]
        self.program.costs[column] += self.bound.part.drop * self.bound.all.rate(wanted & paid)
        self.members.setdefault((expense, number), []).append(column)
        for log in bits(wanted & ~paid):
            self.wanted.setdefault((expense, log), []).append(column)

    def _cut(self, cut: Cut) -> None:
        cap = self.bound.cap
        parts = [("at", part, min(cut.load, cap)) for part in cut.parts]
        root = cut.piece == self.bound.all.everyone
        columns = [self._flow(cut.cost, [ROOT if root else ("alone", cut.piece, 0)], parts)]
        for node in self.shared.get(cut.piece, ()):
            key = node[2]
            if self.bound.fits(cut, key):
                parts = [("at", part, min(cut.load + key.more, cap)) for part in cut.parts]
                columns.append(self._flow(cut.cost + key.more * cut.discard, [node], parts))
        self.cuts.append((cut, columns))

    def _heavy(self, heavy: Sequence[int]) -> None:
        """Add the heavy pieces, and what is below them, by the prices of demands."""
        bound = self.bound
        for number in heavy:
            piece = bound.pieces[number]
            dear = ("heavy", number, 0)
            self._flow(piece.hop, [dear], [("price", d, 0) for d in bits(piece.demands)])
            if number == bound.all.everyone:
                self._flow(0, [ROOT], [dear])
            for load in range(bound.cap + 1):
                if ("at", number, load) in self.balances:
                    self._flow(0, [("at", number, load)], [dear])
        for number, piece in enumerate(bound.pieces):
            home = ("at", number, bound.cap)
            if home in self.balances:
                self._flow(0, [("price", d, 0) for d in bits(piece.demands)], [home])
        for demand in range(bound.all.count):
            served = bound.all.leaf(demand, max(bound.cap, bound.all.loads[demand]))
            self._flow(served, [("price", demand, 0)], [])

    def _close(self) -> tuple[list[int], list[int]]:
        """Write the rows; give those of `members` and of `wanted`."""
        self.balanced = {node: number for number, node in enumerate(self.balances)}
        for node, pairs in self.balances.items():
            self.program.equal(pairs, -1 if node == ROOT else 0)
        opened = {
            expense: self.program.column(cost)
            for expense, cost in self.costs.items()
            if expense[2] < 0
        }
        moved = self._moved(self.members)
        self._grown(moved)
        rows = []
        for (expense, member), columns in self.members.items():
            rows.append(len(self.program.rows))
            pairs = [(column, 1) for column in columns] + moved[expense, member]
            if expense in opened:
                pairs.append((opened[expense], -1))
            for host, hosting in self.hosts.get(expense, {}).items():
                if host != member:
                    pairs += [(column, -1) for column in hosting]
            self.program.at_most(pairs, 0)
        moved = self._moved(self.wanted)
        log_rows = []
        for (expense, log), columns in self.wanted.items():
            log_rows.append(len(self.program.rows))
            again = self.program.column(self.bound.part.drop * self.bound.all.rates[log])
            pairs = [(column, 1) for column in columns] + moved[expense, log]
            self.program.at_most([*pairs, (opened[expense], -1), (again, -1)], 0)
        return rows, log_rows

    def _moved(
        self, keys: Iterable[tuple[Expense, int]]
    ) -> dict[tuple[Expense, int], list[tuple[int, int]]]:
        """Let what passes at a load pass at the next greater one: shares do not fall with it."""
        moved: dict[tuple[Expense, int], list[tuple[int, int]]] = {key: [] for key in keys}
        loads: dict[tuple[int, int, int], list[int]] = {}
        for (bag, load, at), other in moved:
            loads.setdefault((bag, at, other), []).append(load)
        for (bag, at, other), some in loads.items():
            some.sort()
            for lower, upper in itertools.pairwise(some):
                column = self.program.column(0)
                moved[(bag, lower, at), other].append((column, -1))
                moved[(bag, upper, at), other].append((column, 1))
        return moved

    def _grown(self, moved: dict[tuple[Expense, int], list[tuple[int, int]]]) -> None:
        """Let all members pass a host for `drop` per unit of load that it need not read."""
        loads: dict[tuple[int, int], dict[int, list[int]]] = {}
        for (bag, load, at), member in self.members:
            if at >= 0:
                loads.setdefault((bag, at), {}).setdefault(load, []).append(member)
        for (bag, at), by_load in loads.items():
            lower = at
            for load in sorted(by_load):
                column = self.program.column(self.bound.part.drop * (load - lower))
                for member in by_load[load]:
                    moved[(bag, load, at), member].append((column, -1))
                for member in by_load.get(lower, ()):
                    moved[(bag, lower, at), member].append((column, 1))
                lower = load

    # -- the answer -------------------------------------------------------------------------------

    def used(self, answer: Relaxed) -> set[tuple[int, int]]:
        """List the expenses of a bag of which an even share is paid, by bag and load."""
        used = {e[0] for column, e in self.even.items() if answer.values[column] > UNUSED}
        return {(bag, at) for bag in used for at in self.bound.kinds_of[bag]} - self.expenses

    def division(self, answer: Relaxed) -> Division:
        """Give the answer as shares and prices."""
        return Division(self._shares(answer), self._prices(answer))

    def doubtful(self, answer: Relaxed) -> list[Cut]:
        """List the cuts that the optimum takes in part, those first which it takes by one half."""
        some = []
        for cut, columns in self.cuts:
            distance = abs(0.5 - sum(answer.values[column] for column in columns))
            if distance < 0.5 - UNUSED:
                some.append((distance, cut))
        return [cut for _, cut in sorted(some)]

    def cost(self, answer: Relaxed) -> int:
        """Give the cost of the optimum."""
        pairs = zip(self.program.costs, answer.values, strict=True)
        return int(sum(cost * value for cost, value in pairs))

    def _prices(self, answer: Relaxed) -> list[int]:
        """Give the prices of demands."""
        rows = [self.balanced.get(("price", d, 0)) for d in range(self.bound.all.count)]
        return [0 if row is None else int(-answer.duals[row]) for row in rows]

    def _shares(self, answer: Relaxed) -> dict[Expense, Shares]:
        """Give what each member pays: what it would be worth if it could pass without the group."""
        members: dict[Expense, dict[int, int]] = {expense: {} for expense in self.costs}
        logs: dict[Expense, dict[int, int]] = {expense: {} for expense in self.costs}
        for (expense, member), row in zip(self.members, self.rows, strict=True):
            members[expense][member] = max(0, int(-answer.duals[row]))
        for (expense, log), row in zip(self.wanted, self.log_rows, strict=True):
            most = self.bound.part.drop * self.bound.all.rates[log]
            logs[expense][log] = min(most, max(0, int(-answer.duals[row])))
        shares: dict[Expense, Shares] = {}
        for bag, at in {(bag, at) for bag, _, at in self.costs}:
            loads = sorted(load for b, load, a in self.costs if (b, a) == (bag, at))
            if at >= 0:
                shares |= self._of_hosts(bag, at, {load: members[bag, load, at] for load in loads})
                continue
            shares |= self._of_others(bag, at, loads, members, logs)
        return shares

    def _of_others(
        self,
        bag: int,
        to_load: int,
        loads: Sequence[int],
        members: Mapping[Expense, Mapping[int, int]],
        logs: Mapping[Expense, Mapping[int, int]],
    ) -> dict[Expense, Shares]:
        """Lower the shares of a hub or joint to what they may be, for all loads."""
        shares: dict[Expense, Shares] = {}
        above = None
        drop, rates = self.bound.part.drop, self.bound.all.rates
        for load in reversed(loads):
            expense = bag, load, to_load
            paid, wanted, cost = members[expense], logs[expense], self.costs[expense]
            if above is not None:
                paid = {n: min(p, above.members.get(n, 0)) for n, p in paid.items()}
                wanted = {n: min(p, above.logs.get(n, 0)) for n, p in wanted.items()}
            total = sum(paid.values()) + sum(wanted.values())
            above = Shares(_scaled(paid, cost, total), _scaled(wanted, cost, total))
            full = {log: drop * rates[log] for log in bits(self.paid[expense])}
            shares[expense] = above._replace(logs={**above.logs, **full})
        known = Shares({}, {})  # where the program has none, what is right for a smaller load
        for load in range(self.bound.cap + 1):
            known = shares.setdefault((bag, load, to_load), known)
        return shares

    def _of_hosts(
        self, bag: int, to_load: int, members: Mapping[int, Mapping[int, int]]
    ) -> dict[Expense, Shares]:
        """Lower the shares of what a host costs to what they may be, for all loads."""
        drop, shares = self.bound.part.drop, dict[Expense, Shares]()
        known: dict[int, int] = {}
        loads = sorted(members)
        for load in range(to_load + 1, self.bound.cap + 1):
            upper = next((other for other in loads if other >= load), None)
            if upper is not None:
                grown = {
                    n: (p - known.get(n, 0)) // (upper - load + 1)
                    for n, p in members[upper].items()
                    if p > known.get(n, 0)
                }
                total = sum(grown.values())
                for n, more in _scaled(grown, drop, total).items():
                    known = {**known, n: known.get(n, 0) + more}
            shares[bag, load, to_load] = Shares(known, {})
        return shares


def _scaled(parts: Mapping[int, int], cost: int, total: int) -> dict[int, int]:
    """Lower some parts so that the total is not more than a cost."""
    return {key: part if total <= cost else part * cost // total for key, part in parts.items()}
