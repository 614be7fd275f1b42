"""What the engine and its chores know of a collector's instance; it breaks their import circle.

`Hosted` is the instance itself (`instance.py`), from `Engine.add` until it is over. `Working` is
the part of it that runs the core (`core_runner.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from collectors.engine.assignment import Assignment
from multicast.control import ControlState


class Hosted(Protocol):
    """One instance, as whoever opens and ends it sees it. `open` and `begin` may raise anything."""

    @property
    def assignment(self) -> Assignment:
        """The collector that it runs."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""

    def open(self, topic_ids: Mapping[str, str]) -> None:
        """Stand ready; these are the cluster's ids of the topics of its logs."""

    def begin(self, state: ControlState, own_end: int) -> None:
        """Start to work: its epoch has begun, and its own stream ends at this offset."""

    def control_changed(self, state: ControlState) -> None:
        """Take the control topic's new state."""

    def stop(self) -> None:
        """End without an error."""

    def fail(self, error: Exception) -> None:
        """End with an error."""


class Working(Protocol):
    """One instance at work, as whoever fills holes for it sees it."""

    skips_appended: int

    @property
    def assignment(self) -> Assignment:
        """The collector that it runs."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""

    def filled(self, log: int, end: int | None) -> None:
        """Take the end of a log after a fill; None where it is unknown."""

    def fail(self, error: Exception) -> None:
        """End with an error."""
