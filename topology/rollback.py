"""The way back: the plan that lays a topic out as an earlier plan did.

Goes in: the earlier plan and the one in force. Comes out: the next plan. Logs that were added since
stay, because messages may stand in them, so the tree is the earlier one only where none was added;
else it is planned anew for the earlier interests.
"""

from __future__ import annotations

from dataclasses import replace

from topology.changes import interests_of, with_kept_names, with_running_logs
from topology.planner.solver import plan as solve
from topology.tree import Plan


def back(earlier: Plan, running: Plan) -> Plan:
    """Plan the epoch after `running` for the interests of `earlier`.

    Blocks while it plans; raises `Infeasible` where the earlier limits cannot hold any longer.
    """
    if {log.name for log in running.logs} == {log.name for log in earlier.logs}:
        return replace(earlier, epoch=running.epoch + 1, base_epoch=running.epoch)
    interests = with_running_logs(interests_of(earlier), running)
    made = solve(
        interests, cluster_id=running.cluster_id, base_epoch=running.epoch, phi=earlier.phi
    )
    return with_kept_names(running, made)
