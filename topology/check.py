"""The checker of plans. It shares no code with the planner and does not trust a plan's own figures.

`check` accepts a plan from any source, or raises `PlanRejected` with the reason. `figures` computes
hops, foreign work and loads again, from the tree alone. No solver, no search and no reduction: the
code examines each log and each consumer as the plan states it. That names are known and unique, the
parents form a forest, and each log enters the order once, `Plan` itself refuses to break.

Rules, in the order in which they are checked:
    logs        each partition has its log; names are canonical; no two logs share a Kafka partition
    coverage    a consumer's collector holds every log that meets its interest
    bags        a collector's checkpoint fits into a record of the order and of the control topic
    limits      rates, levels and counts stay within the plan's own limits
    promise     hops, foreign work, excess and cost of the plan equal those of the tree
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from topology.tree import CollectorSpec, Log, Plan, Subscription

# Relative (and absolute near 0): a plan writes its figures as decimal fractions, so other programs
# may round them. A wrong figure that matters differs by far more.
TOLERANCE = 1e-6


# A checkpoint of docs/protocol.md: its own fields, those of an own and of an inherited log. Of each
# log it may say four ends that were seen (20 bytes each) and a loss (12).
_SIGHT_BYTES = 4 * 20 + 12
CHECKPOINT_BYTES = 52
OWN_LOG_BYTES, INHERITED_LOG_BYTES = 25 + _SIGHT_BYTES, 12 + _SIGHT_BYTES
# Of a record, by default (message.max.bytes). Nobody needs a bag that takes a larger one.
RECORD_BYTES_MAX = 1_048_588
# The control topic names a checkpoint in hexadecimal digits, beside a key, an offset and a time.
CHECKPOINT_BYTES_MAX = (RECORD_BYTES_MAX - 1024) // 2


class PlanRejected(ValueError):
    """The plan breaks a rule; the sentence names the rule, the entry and the reason."""


@dataclass(frozen=True, slots=True)
class Share:
    """The cost of one consumer's order, not weighted.

    `hops` is the cost of its own logs' way through the tree. `own` and `foreign` are the rates of
    the entries that it wants and that it drops in its collector's stream; `levels` counts the
    collectors from the root down to its own.
    """

    consumer: str
    hops: float
    foreign: float
    own: float
    levels: int

    @property
    def genuineness(self) -> float:
        """The part of the entries that the consumer reads which it wants, 0 to 1."""
        return 1.0 if not self.foreign else self.own / (self.own + self.foreign)


@dataclass(frozen=True, slots=True)
class CollectorShare:
    """The rates of the entries that one collector handles.

    `load` of the entries that it appends; of these `passed_on` are wanted by none of the consumers
    that read it. `dropped` of the entries of its parent's stream that it does not take over.
    """

    collector: str
    load: float
    passed_on: float
    dropped: float


@dataclass(frozen=True, slots=True)
class TreeFigures:
    """The figures of a tree, computed from the tree.

    Hops, foreign work and cost are weighted as in the objective. `genuineness` counts entries:
    those handled for a consumer that they address, by the collectors that serve it and by itself,
    over all that are handled.
    """

    shares: tuple[Share, ...]
    collectors: tuple[CollectorShare, ...]
    hops: float
    foreign: float
    excess: float
    cost: float
    genuineness: float

    @property
    def loads(self) -> tuple[tuple[str, float], ...]:
        """Each collector's name and the rate of the entries that it appends."""
        return tuple((share.collector, share.load) for share in self.collectors)


def check(plan: Plan) -> None:
    """Return if the plan is sound; raise `PlanRejected` with the first rule that it breaks."""
    _check_logs(plan)
    for entry in plan.consumers:
        _check_coverage(plan, entry)
    _check_hosts(plan)
    _check_bags(plan)
    computed = figures(plan)
    _check_limits(plan, computed)
    _check_promise(plan, computed)


def figures(plan: Plan) -> TreeFigures:
    """Compute hops, foreign work and loads from the tree.

    The plan must obey the rules up to coverage.
    """
    collectors = tuple(_collector_share(plan, node) for node in plan.collectors)
    wanted = plan.limits.get("collector_rate_wanted", math.inf)
    excess = math.fsum(max(0.0, share.load - wanted) for share in collectors)
    shares = tuple(_share(plan, entry) for entry in plan.consumers)
    weight = [entry.weight for entry in plan.consumers]
    hops = math.fsum(w * share.hops for w, share in zip(weight, shares, strict=True))
    foreign = math.fsum(
        (
            *(share.passed_on + share.dropped for share in collectors),
            *(w * share.foreign for w, share in zip(weight, shares, strict=True)),
        )
    )
    own = math.fsum((*(s.load - s.passed_on for s in collectors), *(s.own for s in shares)))
    handled = math.fsum(
        (*(s.load + s.dropped for s in collectors), *(s.own + s.foreign for s in shares))
    )
    return TreeFigures(
        shares=shares,
        collectors=collectors,
        hops=hops,
        foreign=foreign,
        excess=excess,
        cost=hops + plan.phi * (foreign + excess),
        genuineness=1.0 if not handled else own / handled,
    )


def _collector_share(plan: Plan, node: CollectorSpec) -> CollectorShare:
    readers = [entry for entry in plan.consumers if entry.collector == node.name]
    wanted = {log.name for entry in readers for log in _met(plan, entry)}
    above = () if node.parent is None else plan.collector(node.parent).bag
    return CollectorShare(
        collector=node.name,
        load=math.fsum(_rate(plan, log) for log in node.bag),
        passed_on=math.fsum(_rate(plan, log) for log in node.bag if log not in wanted),
        dropped=math.fsum(_rate(plan, log) for log in set(above) - set(node.bag)),
    )


def _share(plan: Plan, entry: Subscription) -> Share:
    mine = {log.name for log in _met(plan, entry)}
    path = plan.path(entry.collector)
    hops = [
        _rate(plan, log) * _link(plan, log, node, above)
        for node, above in zip(path, [*path[1:], None], strict=False)  # no path, no links
        for log in node.bag
        if log in mine
    ]
    stream = path[0].bag if path else ()
    return Share(
        entry.name,
        hops=math.fsum(hops),
        foreign=math.fsum(_rate(plan, log) for log in stream if log not in mine),
        own=math.fsum(_rate(plan, log) for log in stream if log in mine),
        levels=len(path),
    )


def _link(plan: Plan, log: str, node: CollectorSpec, above: CollectorSpec | None) -> float:
    """Give the price of a log's hop into a collector: from its parent or from the log's leader."""
    if not plan.hosts:
        return 1.0
    names, latency = plan.hosts["names"], plan.hosts["latency"]
    here = names.index(node.host)
    if above is not None and log in above.bag:
        return float(latency[names.index(above.host)][here])
    leader = plan.hosts.get("leaders", {}).get(log)
    if leader is not None:
        return float(latency[names.index(leader)][here])
    return math.fsum(row[here] for row in latency) / len(names)


def _rate(plan: Plan, log: str) -> float:
    return plan.rates.get(log, 1.0)


def _met(plan: Plan, entry: Subscription) -> list[Log]:
    wanted = set(entry.interest)
    return [log for log in plan.logs if any(name in wanted for name in log.name.split("+"))]


# -- rules ----------------------------------------------------------------------------------


def _check_logs(plan: Plan) -> None:
    for partition in plan.partitions:
        if not plan.has_log(partition):
            raise PlanRejected(f"partition {partition} has no log of its own")
    if plan.epoch <= plan.base_epoch:
        raise PlanRejected(
            f"epoch {plan.epoch} is not greater than its base epoch {plan.base_epoch}"
        )


def _check_coverage(plan: Plan, entry: Subscription) -> None:
    for partition in entry.interest:
        if partition not in plan.partitions:
            raise PlanRejected(
                f"consumer {entry.name} subscribes to {partition}, which is not a partition"
            )
    wanted = {log.name for log in _met(plan, entry)}
    if entry.collector is None:
        if len(wanted) > 1:
            raise PlanRejected(
                f"coverage: consumer {entry.name} reads no collector, "
                f"but {len(wanted)} logs meet its interest"
            )
        return
    missing = sorted(wanted - set(plan.collector(entry.collector).bag))
    if missing:
        raise PlanRejected(
            f"coverage: consumer {entry.name} reads {entry.collector}, "
            f"which does not order {', '.join(missing)}"
        )


def _check_hosts(plan: Plan) -> None:
    for node in plan.collectors:
        if plan.hosts and node.host not in plan.hosts["names"]:
            raise PlanRejected(
                f"collector {node.name} is on {node.host}, which is not a host of the plan"
            )


def checkpoint_bytes(own: int, inherited: int) -> int:
    """Give the most bytes of the checkpoint of a collector with so many own and inherited logs."""
    return CHECKPOINT_BYTES + OWN_LOG_BYTES * own + INHERITED_LOG_BYTES * inherited


def _check_bags(plan: Plan) -> None:
    for node in plan.collectors:
        own = len(plan.own_logs(node.name))
        size = checkpoint_bytes(own, len(node.bag) - own)
        if size > CHECKPOINT_BYTES_MAX:
            raise PlanRejected(
                f"collector {node.name} has {len(node.bag)} logs, so its checkpoint has {size} "
                f"bytes; more than {CHECKPOINT_BYTES_MAX} cannot be stored, that is "
                f"{(CHECKPOINT_BYTES_MAX - CHECKPOINT_BYTES) // OWN_LOG_BYTES} logs of its own: "
                f"let consumers read fewer partitions together, or use fewer destination sets"
            )


def _check_limits(plan: Plan, figures: TreeFigures) -> None:
    limits = plan.limits
    rate_max = limits.get("collector_rate_max", math.inf)
    for name, load in figures.loads:
        if load > rate_max * (1 + TOLERANCE):
            raise PlanRejected(
                f"capacity: collector {name} handles {load:g} messages/s, and collector_rate_max "
                f"is {rate_max:g}"
            )
    for node in plan.collectors:
        levels = len(plan.path(node.name))
        if levels > limits.get("levels_max", math.inf):
            raise PlanRejected(
                f"collector {node.name} is at level {levels}, and levels_max is "
                f"{limits['levels_max']:g}"
            )
    if len(plan.collectors) > limits.get("collectors_max", math.inf):
        raise PlanRejected(
            f"the plan has {len(plan.collectors)} collectors, "
            f"and collectors_max is {limits['collectors_max']:g}"
        )
    for host in plan.hosts.get("names", []):
        count = sum(1 for node in plan.collectors if node.host == host)
        if count > limits.get("collectors_per_host_max", math.inf):
            raise PlanRejected(
                f"{count} collectors are on {host}, "
                f"and collectors_per_host_max is {limits['collectors_per_host_max']:g}"
            )


def _check_promise(plan: Plan, figures: TreeFigures) -> None:
    promised = plan.objective
    for what, stated, true in [
        ("hops", promised.hops, figures.hops),
        ("excess", promised.excess, figures.excess),
        ("foreign work", promised.foreign, figures.foreign),
        ("cost", promised.cost, figures.cost),
    ]:
        if not math.isclose(stated, true, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            raise PlanRejected(
                f"promise: the plan states {what} {stated:g}, and its tree has {true:g}"
            )
    if promised.gap is not None and not 0 <= promised.gap <= 1:
        raise PlanRejected(f"promise: the gap {promised.gap:g} is not between 0 and 1")
