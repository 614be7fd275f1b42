"""Reads a control topic through a driver."""

from __future__ import annotations

from multicast.control.state import ControlState
from multicast.control.topics import control_partition, refuse_topic
from multicast.drivers.protocol import Driver
from multicast.errors import ClusterUnreachable, TopicMissing

# The time-out of a request to the cluster. It outlives the election of a new leader after a broker
# has failed: Kafka notices that after 9 s by default (broker.session.timeout.ms).
REFRESH_S = 10.0
# Brokers leave the question for the next record open for so long, so an idle client asks once in
# that time, and gets a record at once. Half of `REFRESH_S`, after which a broker counts as silent.
_WAIT_S = 5.0


class ControlReader:
    """Reads a control topic into `state`; `position` is the next offset to read.

    Raises `UncoveredInterest` if the control topic does not exist: no plan was ever applied, and
    `UsageError` for what is no name of a topic. Used from one thread at a time.
    """

    def __init__(self, driver: Driver, topic: str) -> None:
        refuse_topic(topic)
        self.state = ControlState(topic)
        self._partition = control_partition(topic)
        self._driver = driver
        try:
            self.position = driver.log_start_offsets([self._partition])[self._partition]
        except TopicMissing:
            self.state.plan()  # raises `UncoveredInterest`, which says what to do
            raise
        self._reader = driver.reader({self._partition: self.position}, wait_s=_WAIT_S)

    def refresh(self, timeout_s: float = REFRESH_S) -> ControlState:
        """Read up to the present end of the control topic; block until that is done.

        Afterwards `state` contains every statement that was committed before the call. Raises
        `ClusterUnreachable` if no record comes for `timeout_s` seconds.
        """
        end = self._driver.last_stable_offsets([self._partition])[self._partition]
        while self.position < end:
            before = self.position
            self.follow(timeout_s)
            if self.position == before:
                raise ClusterUnreachable(
                    f"the control topic {self._partition.topic} could not be read to its end "
                    f"within {timeout_s:g} s"
                )
        return self.state

    def follow(self, timeout_s: float) -> ControlState:
        """Read the records that have come; wait for the first one at most `timeout_s` seconds."""
        for fetched in self._reader.poll(timeout_s):
            for record in fetched.records:
                self.state.read(record)
            self.position = fetched.position
        return self.state

    def wake(self) -> None:
        """Make a `follow` in another thread, or the next one, return early."""
        self._reader.wake()

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
