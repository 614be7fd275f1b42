"""Reads a control topic through a driver."""

from __future__ import annotations

from multicast.control.state import ControlState
from multicast.control.topics import control_partition
from multicast.drivers.protocol import Driver
from multicast.errors import ClusterUnreachable, TopicMissing


class ControlReader:
    """Reads a control topic through a driver; `state` is what it says so far.

    `position` is where it reads on.
    """

    def __init__(self, driver: Driver, topic: str) -> None:
        self.state = ControlState(topic)
        self._at = control_partition(topic)
        self._driver = driver
        try:
            self.position = driver.log_start_offsets([self._at])[self._at]
        except TopicMissing:
            self.state.plan()  # raises: no plan was ever applied
            raise
        self._reader = driver.reader({self._at: self.position})

    def refresh(self, timeout_s: float = 10.0) -> ControlState:
        """Read to where the control topic ends now; blocks for as long as that takes.

        Raises `ClusterUnreachable` where nothing more comes for `timeout_s` seconds.
        """
        end = self._driver.last_stable_offsets([self._at])[self._at]
        while self.position < end:
            before = self.position
            self.follow(timeout_s)
            if self.position == before:
                raise ClusterUnreachable(
                    f"the control topic {self._at.topic} could not be read to its end "
                    f"within {timeout_s:g} s"
                )
        return self.state

    def follow(self, timeout_s: float) -> ControlState:
        """Read what has come; wait for the first of it, at most so long."""
        for fetched in self._reader.poll(timeout_s):
            for record in fetched.records:
                self.state.read(record)
            self.position = fetched.position
        return self.state

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
