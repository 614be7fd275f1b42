"""What the verbs that need a cluster share: how they reach it, and how they tell of progress."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

from multicast.control import ControlReader, ControlState
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver
from multicast.settings import Settings


@contextmanager
def cluster_of(chosen: Settings) -> Iterator[tuple[Driver, Admin]]:
    """Give a driver, and what changes topics; close both afterwards."""
    with (
        closing(open_driver(chosen.driver, chosen.bootstrap, chosen.client)) as opened,
        Admin(chosen.bootstrap, chosen.client) as admin,
    ):
        yield opened, admin


@contextmanager
def control_of(chosen: Settings) -> Iterator[tuple[Driver, ControlState]]:
    """Give a driver, and the control topic's state at its end; close both afterwards."""
    with (
        closing(open_driver(chosen.driver, chosen.bootstrap, chosen.client)) as opened,
        closing(ControlReader(opened, chosen.topic)) as control,
    ):
        yield opened, control.refresh()


def say(sentence: str) -> None:
    """Tell of progress on stderr."""
    sys.stderr.write(f"{sentence}\n")
