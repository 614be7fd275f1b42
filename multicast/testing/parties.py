"""What the testing package needs of the room of collectors, and how it gets it.

`multicast` may not import `collectors`. So an entry point of the group `amcast.testing` names what
runs collectors; `collectors.testing` fills it in.
"""

from __future__ import annotations

from abc import abstractmethod
from importlib.metadata import entry_points
from typing import Any, Protocol

from multicast.errors import UsageError
from multicast.testing.clients import TopicClients
from multicast.testing.interests import Interests
from topology.tree import Plan

GROUP = "amcast.testing"


class OrderingParty(Protocol):
    """All collectors of a test double. They run in turns, in the thread of the test."""

    def turn(self) -> bool:
        """Let every running collector work; return whether anything happened."""

    def crash(self, name: str) -> None:
        """End the instances of a collector; it stays down until `restart`."""

    def restart(self, name: str) -> None:
        """Start an instance of a collector that is down."""

    def fail_over(self, name: str) -> None:
        """Start another instance; the old ones end once a record of another one is accepted."""

    def apply(self, plan: Plan, *, timeout_s: float, uncovered: bool = False) -> None:
        """Make a plan the next epoch; return once it has begun."""


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
