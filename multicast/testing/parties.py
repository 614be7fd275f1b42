"""What the testing package needs of the room of collectors, and how it gets it.

`multicast` may not import `collectors`. So an entry point of the group `amcast.testing` names what
runs collectors; `collectors.testing` fills it in.
"""

from __future__ import annotations

from abc import abstractmethod
from importlib.metadata import entry_points
from typing import Any

from multicast.errors import UsageError
from multicast.testing.clients import TopicClients
from multicast.testing.interests import Interests
from topology.tree import Plan

GROUP = "amcast.testing"


class TopicOnBroker(TopicClients):
    """A topic of its own on a real cluster: `collectors.testing.running.RunningTopic`."""

    bootstrap: str
    plan: Plan

    @abstractmethod
    def replan(self, interests: Interests, *, uncovered: bool = False) -> Plan:
        """Make a new plan the next epoch; return it once it has begun."""


def load(name: str) -> Any:
    """Give what the entry point names; raises `UsageError` where it is not installed."""
    entries = entry_points(group=GROUP, name=name)
    if not entries:
        raise UsageError(
            f"this installation does not register the entry point {name!r} of group {GROUP!r}; "
            f"install the package amcast again"
        )
    (entry,) = entries
    return entry.load()
