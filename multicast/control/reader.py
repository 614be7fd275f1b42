"""Reads the control topics through a driver."""

from __future__ import annotations

from collections.abc import Mapping

from multicast.control.state import ControlState
from multicast.control.topics import collectors_partition, control_partition, refuse_topic
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import ClusterUnreachable, TopicMissing

# The time-out of a request to the cluster. It outlives the election of a new leader after a broker
# has failed: Kafka notices that after 9 s by default (broker.session.timeout.ms).
REFRESH_S = 10.0
# Brokers leave the question for the next record open for so long, so an idle client asks once in
# that time, and gets a record at once. Half of `REFRESH_S`, after which a broker counts as silent.
_WAIT_S = 5.0


class ControlReader:
    """Reads both control topics into `state`, from their starts.

    Raises `UncoveredInterest` if no plan was ever applied, `UnknownVersion` if the topic of the
    collectors' statements is missing because the plan has another version, and `UsageError` for
    what is no name of a topic. Used from one thread at a time.
    """

    def __init__(self, driver: Driver, topic: str) -> None:
        refuse_topic(topic)
        self.state = ControlState(topic)
        self._operators, self._collectors = control_partition(topic), collectors_partition(topic)
        self._driver = driver
        try:
            self._open(self._operators, self._collectors)
        except TopicMissing:
            self._refuse_without_plan()
            raise

    def _open(self, *partitions: TopicPartition) -> None:
        starts = self._driver.log_start_offsets(partitions)
        self._positions = {partition: starts[partition] for partition in partitions}
        self._reader = self._driver.reader(self._positions, wait_s=_WAIT_S)
        # Until the first `refresh` has read the plans: their checkpoints are not early then.
        self._reader.pause([self._collectors])

    def _refuse_without_plan(self) -> None:
        """Raise what says what to do if there is no plan, or one of another version."""
        try:
            self._open(self._operators)
        except TopicMissing:
            self.state.plan()
        try:
            self.refresh().plan()
        finally:
            self.close()

    @property
    def position(self) -> int:
        """The next offset to read of what operators state; a group's commit stores it."""
        return self._positions[self._operators]

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offsets to read; a copy."""
        return dict(self._positions)

    def refresh(self, timeout_s: float = REFRESH_S) -> ControlState:
        """Read up to the present ends of the control topics; block until that is done.

        Afterwards `state` contains every statement that was committed before the call. Raises
        `ClusterUnreachable` if no record of one of the topics comes for `timeout_s` seconds.
        """
        ends = self._driver.last_stable_offsets(list(self._positions))
        monotonic = clock_of(self._driver).monotonic
        for partition in self._positions:
            self._reader.resume([partition])
            until = monotonic() + timeout_s
            while (before := self._positions[partition]) < ends[partition]:
                self.follow(max(0.0, until - monotonic()))
                if self._positions[partition] > before:
                    until = monotonic() + timeout_s
                elif monotonic() >= until:  # the other topic may be written all the time
                    raise ClusterUnreachable(
                        f"the control topic {partition.topic} could not be read to its end "
                        f"within {timeout_s:g} s"
                    )
        return self.state

    def follow(self, timeout_s: float) -> ControlState:
        """Read the records that have come; wait for the first one at most `timeout_s` seconds.

        Before a `refresh` it reads plans only.
        """
        for fetched in self._reader.poll(timeout_s):
            for record in fetched.records:
                self.state.read_from(fetched.partition, record)
            self._positions[fetched.partition] = fetched.position
        return self.state

    def wake(self) -> None:
        """Make a `follow` in another thread, or the next one, return early."""
        self._reader.wake()

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
