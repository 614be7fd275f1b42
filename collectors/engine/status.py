"""What an instance of a node says about itself, for `/status`: JSON values, and no more."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectors.engine.instance import CollectorInstance

_log = logging.getLogger("amcast.collectors")


def troubles(node: CollectorInstance) -> tuple[str, ...]:
    """Say what wrong order records have done to an instance's stream, and what mends it."""
    found = [
        f"log {node.plan.logs[log].name} is ordered {beyond} offsets beyond its end, which is too "
        f"far to fill"
        for log, beyond in sorted(node.core.too_far.items())
    ]
    if node.core.strayed:
        found.append("its stream does not say what its parent's says, so it relays nothing more")
    return tuple(f"collector {node.name}: {one}; run 'amcast topology recover'" for one in found)


def warn(node: CollectorInstance) -> None:
    """Log the troubles of an instance where there are more than were logged."""
    found = troubles(node)
    if len(found) > len(node.said):
        for one in found:
            _log.warning("%s", one)
    node.said = found


def describe(node: CollectorInstance, *, reads_back: bool) -> dict[str, Any]:
    """Describe an instance while its loop runs."""
    told: dict[str, Any] = {
        "node": node.name,
        "epoch": node.plan.epoch,
        "begun": node.begun,
        "role": "primary" if node.role.primary else "standby",
    }
    if not node.begun:
        return told
    core = node.core
    positions = dict(core.own.state.positions)
    return {
        **told,
        "parent": node.plan.collector(node.name).parent,
        "acting": node.role.acting,
        "takeovers": node.role.takeovers,
        "frozen": core.frozen,
        "records": core.own.state.count,
        "appended_here": node.records_appended,
        "pending": core.pending,
        "reads_back": reads_back,
        "lag": core.lag,
        "early": core.early,
        "announcements": node.announcements,
        "skips": node.skips_appended,
        "held": [node.plan.logs[log].name for log in sorted(core.held)],
        "troubles": list(troubles(node)),
        "void": {reason.name.lower(): count for reason, count in sorted(core.void.items())},
        "ordered": {
            node.plan.logs[number].name: position - node.starts[number]
            for number, position in sorted(positions.items())
        },
    }
