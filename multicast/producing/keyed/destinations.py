"""Which log of a plan stores a message: that of its set, of a declared superset, or a named one."""

from __future__ import annotations

from multicast.errors import UndeclaredDestination, UsageError
from multicast.messages import refuse_no_name
from topology.tree import Log, Plan, log_name


def find_log(plan: Plan, to: frozenset[str], within: frozenset[str] | None) -> Log | None:
    """Find the log; None if this plan has none, or no such partition.

    With `within` it is the log of exactly that set. Raises `UsageError` if `to` is empty, or has a
    partition that is not in `within`, or what is no name.
    """
    for name in (*to, *(within or ())):
        refuse_no_name(name, "a partition")
    if not to:
        raise UsageError("a destination set names at least one partition")
    if within is not None:
        if not to <= within:
            raise UsageError(
                f"the destination set {log_name(to)} is not part of {log_name(within)}, which "
                f"'within', 'through' or the condition names"
            )
        name = log_name(within)
        return plan.log(name) if plan.has_log(name) else None
    return plan.cover(to) if to <= set(plan.partitions) else None


def required_log(plan: Plan, to: frozenset[str], within: frozenset[str] | None) -> Log:
    """Give the log, or raise `UndeclaredDestination` or `UsageError`, which say why there is none.

    The text of the former says what to declare.
    """
    log = find_log(plan, to, within)
    if log is not None:
        return log
    wanted = within or to
    unknown = sorted(wanted - set(plan.partitions))
    if unknown:
        raise UsageError(
            f"partition {unknown[0]} does not exist; topic {plan.topic} has "
            f"{', '.join(plan.partitions)}"
        )
    names = ", ".join(f'"{name}"' for name in sorted(wanted))
    lacks = "covers" if within is None else "is exactly"
    raise UndeclaredDestination(
        f"no declared destination set {lacks} {log_name(wanted)}; add [{names}] to 'destinations' "
        f"in the interest file, then run 'amcast topology plan --from-cluster' and "
        f"'amcast topology apply'"
    )
