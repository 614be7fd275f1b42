"""Rollback: the next plan, with the layout of an earlier plan.

Logs that were added since the earlier plan stay, because they may hold messages. If none was added,
the next plan has the earlier tree; else it is a new tree for the earlier interests.
"""

from __future__ import annotations

from dataclasses import replace

from topology.changes import interests_of, with_kept_names, with_lives, with_running_logs
from topology.planner.solver import plan as solve
from topology.tree import Plan


def back(earlier: Plan, running: Plan) -> Plan:
    """Make the plan of the epoch after `running` for the interests of `earlier`.

    May run the planner, and blocks meanwhile. Raises `Infeasible` if no tree with the added logs
    keeps the earlier limits.
    """
    if {log.name for log in running.logs} == {log.name for log in earlier.logs}:
        logs = with_lives(running, earlier.logs)
        return replace(earlier, epoch=running.epoch + 1, base_epoch=running.epoch, logs=logs)
    interests = with_running_logs(interests_of(earlier), running)
    made = solve(
        interests, cluster_id=running.cluster_id, base_epoch=running.epoch, phi=earlier.phi
    )
    return replace(with_kept_names(running, made), tickets=earlier.tickets)
