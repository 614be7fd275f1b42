"""What an instance of a node says about itself, for `/status`: JSON values, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collectors.node import Node


def describe(node: Node, *, reads_back: bool) -> dict[str, Any]:
    """Describe an instance while its loop runs."""
    told: dict[str, Any] = {
        "node": node.name,
        "epoch": node.plan.epoch,
        "begun": node.begun,
        "role": "primary" if node.part.primary else "standby",
    }
    if not node.begun:
        return told
    core = node.core
    positions = dict(core.own.state.positions)
    return {
        **told,
        "parent": node.plan.collector(node.name).parent,
        "acting": node.part.acting,
        "takeovers": node.part.takeovers,
        "frozen": core.frozen,
        "records": core.own.state.count,
        "appended_here": node.records_appended,
        "pending": core.pending,
        "reads_back": reads_back,
        "lag": core.lag,
        "early": core.early,
        "announcements": node.announcements,
        "skips": node.skips_appended,
        "void": {reason.name.lower(): count for reason, count in sorted(core.void.items())},
        "ordered": {
            node.plan.logs[number].name: position - node.starts[number]
            for number, position in sorted(positions.items())
        },
    }
