"""Whether a new plan replaces the running tree: only if it is better by a margin.

Measured rates are never the same twice, and each set of rates has a cheapest plan of its own. A
change of the tree interrupts consumers, so a small gain is not worth it. `weighed` compares the
running tree with a new plan, both at the new plan's rates, weights and limits, and chooses one. The
checker's figures are the prices, so a plan whose own figures are of an older version is compared
like any other. No I/O.

    kept tree   the collectors of the running plan, serving the consumers of the new plan: each
                where it reads now, or, if it is new, where the smallest bag holds all its logs

The kept tree is chosen if the checker accepts it and the new plan does not cost less by the margin.
If nothing else changes either, the choice is the running plan itself, so to apply it does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from topology.changes import differences, moved_logs
from topology.check import PlanRejected, TreeFigures, check, figures
from topology.tree import InvalidPlan, Objective, Plan

# Relative. If all rates and weights drift by up to 10 %, the worst drift of the poster's interests
# with a cycle gains 9.8 % (all corners: tests/topology/test_hysteresis.py); with 5 % it turned the
# tree over. Random drifts gain up to 1.6 % (docs/operating.md, "When a new plan is worth it").
MARGIN_DEFAULT = 0.10
ROUNDING = 1e-9  # relative; costs that differ by less are equal, for they are sums of fractions


@dataclass(frozen=True, slots=True)
class Moves:
    """What the new plan would move: names, in the new plan's order (`gone`: in the running one's).

    logs       their order enters at another collector
    consumers  of both plans, they read another collector
    new, gone  collectors
    """

    logs: tuple[str, ...]
    consumers: tuple[str, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Weighed:
    """The choice between the running plan's tree and a new plan, with their figures.

    `before` is the running plan, `tree` its tree for the new interests and rates, and `running` the
    figures of that; both are None if it cannot serve the new interests, and `why_not` says why.
    `chosen` is to be applied; `shown` is the same tree with the new rates and figures. `kept`: the
    running tree stays. `same`: the new plan has the running tree.
    """

    before: Plan
    chosen: Plan
    shown: Plan
    kept: bool
    same: bool
    margin: float
    tree: Plan | None
    running: TreeFigures | None
    why_not: str | None
    new: TreeFigures
    moves: Moves

    @property
    def gain(self) -> float | None:
        """The part of the running tree's cost that the new plan saves; None: it cannot stay."""
        if self.running is None:
            return None
        if self.running.cost <= 0:
            return 0.0
        return 1 - self.new.cost / self.running.cost


def weighed(running: Plan, new: Plan, *, margin: float) -> Weighed:
    """Choose between the running tree and a new plan.

    `new` has its final names (`with_kept_names`), and the rates and weights to compare with.
    `margin` is relative: with 0.1 the new plan must cost at least 10 % less, with 0 less at all.
    """
    tree, why_not = _kept_tree(running, new)
    price, before = figures(new), None if tree is None else figures(tree)
    least = max(margin, ROUNDING)
    kept = before is not None and (
        price.cost >= before.cost or price.cost > (1 - least) * before.cost
    )
    shown = tree if kept and tree is not None else new
    return Weighed(
        before=running,
        chosen=shown if differences(running, shown) else running,
        shown=shown,
        kept=kept,
        same=not differences(running, new),
        margin=margin,
        tree=tree,
        running=before,
        why_not=why_not,
        new=price,
        moves=_moves(running, new),
    )


def _kept_tree(running: Plan, new: Plan) -> tuple[Plan | None, str | None]:
    """Give the running tree for the consumers of the new plan; else None and the reason."""
    consumers = []
    for entry in new.consumers:
        before = running.subscription(entry.name)
        if before is not None and before.interest == entry.interest:
            collector = before.collector
        elif len(new.logs_of(entry.interest)) > 1:
            wanted = {log.name for log in new.logs_of(entry.interest)}
            serving = [node for node in running.collectors if wanted <= set(node.bag)]
            smallest = min(serving, key=lambda node: (len(node.bag), node.name), default=None)
            if smallest is None:
                return None, f"no collector of it orders all logs of consumer {entry.name}"
            collector = smallest.name
        else:
            collector = None
        consumers.append(replace(entry, collector=collector))
    try:
        tree = replace(
            new,
            collectors=tuple(replace(node, stream_first=0) for node in running.collectors),
            consumers=tuple(consumers),
        )
        gap = new.objective.gap
        tree = _priced(tree, bound=None if gap is None else new.objective.cost * (1 - gap))
        check(tree)
    except (InvalidPlan, PlanRejected) as wrong:
        return None, str(wrong)
    return tree, None


def _priced(tree: Plan, *, bound: float | None) -> Plan:
    """Give the plan with the objective that its tree has, and its gap to a bound, if any."""
    price = figures(tree)
    gap = None if bound is None else 0.0
    if bound is not None and price.cost > bound * (1 + ROUNDING):
        gap = 1 - bound / price.cost
    objective = Objective(price.hops, price.foreign, price.cost, gap, price.excess)
    return replace(tree, objective=objective)


def _moves(running: Plan, new: Plan) -> Moves:
    both = [(entry, running.subscription(entry.name)) for entry in new.consumers]
    return Moves(
        logs=tuple(log for log, _, _ in moved_logs(running, new)),
        consumers=tuple(
            entry.name
            for entry, before in both
            if before is not None and before.collector != entry.collector
        ),
        new=tuple(n.name for n in new.collectors if not running.has_collector(n.name)),
        gone=tuple(n.name for n in running.collectors if not new.has_collector(n.name)),
    )


def as_wanted(
    plan: Plan, choice: Weighed | None, *, tickets: bool | None
) -> tuple[Plan, Weighed | None]:
    """Give the plan, and the choice, with tickets or without; None: as they are."""
    if tickets is None or tickets == plan.tickets:
        return plan, choice
    moved = replace(plan if choice is None else choice.shown, tickets=tickets)
    return moved, choice and replace(choice, chosen=moved, shown=moved)
