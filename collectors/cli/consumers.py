"""What the verbs show of consumers: what waits for each, and since when it stands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from collectors.doctor.consumer_groups import group_prefix, inspect_groups, never_committed
from collectors.doctor.facts import GroupFacts, length
from multicast.control import ControlState
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import AccessDenied
from multicast.settings import Settings

CONSUMER_COLUMNS = ("consumer", "epoch", "waits", "for", "last commit", "stands for")


def consumers_of(
    driver: Driver, state: ControlState, chosen: Settings
) -> tuple[tuple[GroupFacts, ...], tuple[str, ...]]:
    """Look at the consumers of a topic; say what this user may not see."""
    try:
        with Admin(chosen.bootstrap, chosen.client) as admin:
            groups = inspect_groups(driver, state, admin.groups(group_prefix(state.topic)))
    except AccessDenied as error:
        return (), (f"consumers: {error}",)
    return groups + never_committed(state.plan(), groups), ()


def consumer_documents(groups: Iterable[GroupFacts]) -> list[dict[str, Any]]:
    """Describe consumers for programs."""
    return [
        {**asdict(group), "lag": group.lag, "stands_since_ms": group.stands_since_ms}
        for group in groups
    ]


def consumer_row(group: GroupFacts, now_ms: int) -> tuple[str, ...]:
    """Describe a consumer in the `CONSUMER_COLUMNS`; "-" is none, "?" is unknown."""
    if not group.cursor:
        return group.group, "", "?", "?", "never", "?"
    ages = [
        "-" if since is None else length(max(0, now_ms - since))
        for since in (group.oldest_ms, group.committed_ms, group.stands_since_ms)
    ]
    committed = "?" if group.committed_ms is None else f"{ages[1]} ago"
    name = group.group + (" (interest unknown)" if group.guessed else "")
    return name, str(group.epoch or ""), str(group.lag), ages[0], committed, ages[2]
