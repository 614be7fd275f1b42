"""Reads the control topics through a driver.

A topic whose end Kafka has lost goes on with other statements, which a reader would never meet
below its position. So it asks how far a topic reaches, and under another leader reads it again:
plans, markers and ends are a chain, and compaction removes none of them.
"""

from __future__ import annotations

from collections.abc import Mapping

from multicast.control.state import ControlState
from multicast.control.topic_identity import refuse_recreated_logs
from multicast.control.topics import collectors_partition, control_partition, refuse_topic
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.drivers.reading import MAY_BE_THROTTLED, end_from, read_upto
from multicast.errors import ClusterUnreachable, TopicMissing, Trimmed, Truncated

# The time-out of a request to the cluster. It outlives the election of a new leader after a broker
# has failed: Kafka notices that after 9 s by default (broker.session.timeout.ms).
REFRESH_S = 10.0
# Brokers leave the question for the next record open for so long, so an idle client asks once in
# that time, and gets a record at once. Half of `REFRESH_S`, after which a broker counts as silent.
_WAIT_S = 5.0
_ANY = 2**31  # above each leader's epoch


def plans_alone(driver: Driver, topic: str) -> ControlState:
    """Read the plans if collectors have no topic; to open a topic that is missing takes seconds.

    Raises `UnknownVersion` if this program does not read the version of the newest plan.
    """
    state, operators = ControlState(topic), control_partition(topic)
    counts = driver.partition_counts([operators.topic, collectors_partition(topic).topic])
    if list(counts) == [operators.topic]:
        begin = driver.log_start_offsets([operators])[operators]
        end = driver.last_stable_offsets([operators])[operators]
        for fetched in read_upto(driver, operators, begin, end):
            for record in fetched.records:
                state.read_from(operators, record)
    if state.epoch:
        state.plan()
    return state


class ControlReader:
    """Reads both control topics into `state`, from their starts.

    Raises `UncoveredInterest` if no plan was ever applied, `UnknownVersion` if the topic of the
    collectors' statements is missing because the plan has another version, and `UsageError` for
    what is no name of a topic. Once a topic has lost what was read, `refresh` and `follow` raise
    `Truncated`, or `TopicChanged` if the topics were recreated. Used from one thread at a time.
    """

    def __init__(self, driver: Driver, topic: str) -> None:
        refuse_topic(topic)
        self.state = ControlState(topic)
        self._operators, self._collectors = control_partition(topic), collectors_partition(topic)
        self._driver = driver
        self._leaders: dict[TopicPartition, int] = {}  # the epochs of their leaders, where known
        alone = plans_alone(driver, topic)
        partitions = (self._operators, self._collectors)
        try:
            starts = driver.log_start_offsets(partitions)
        except TopicMissing:
            alone.plan()
            raise
        self._positions = {partition: starts[partition] for partition in partitions}
        self._reader = driver.reader(self._positions, wait_s=_WAIT_S)
        # Until the first `refresh` has read the plans: their checkpoints are not early then.
        self._reader.pause([self._collectors])

    @property
    def position(self) -> int:
        """The next offset to read of what operators state; a group's commit stores it."""
        return self._positions[self._operators]

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """The next offsets to read; a copy."""
        return dict(self._positions)

    @property
    def leaders(self) -> Mapping[TopicPartition, int]:
        """The newest epochs of the topics' leaders that were met; a copy."""
        return dict(self._leaders)

    def refresh(self, timeout_s: float | None = None) -> ControlState:
        """Read up to the present ends of the control topics; block until that is done.

        Afterwards `state` contains every statement that was committed before the call. Raises
        `ClusterUnreachable` if no record of one of the topics comes for `timeout_s` seconds, or no
        answer; by default for `REFRESH_S`, and the driver's own time-out.
        """
        ends = self._present_ends(timeout_s)
        timeout_s = REFRESH_S if timeout_s is None else timeout_s
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
                        f"within {timeout_s:g} s; {MAY_BE_THROTTLED}"
                    )
        return self.state

    def follow(self, timeout_s: float) -> ControlState:
        """Read the records that have come; wait for the first one at most `timeout_s` seconds.

        Before a `refresh` it reads plans only.
        """
        try:
            answers = self._reader.poll(timeout_s)
        except Trimmed:
            self._present_ends()
            raise
        try:
            for partition, records, position in answers:
                if records and records[-1].leader_epoch > self._leaders.get(partition, _ANY):
                    self._meet_leader(partition, records[-1].leader_epoch)
                for record in records:
                    self.state.read_from(partition, record)
                self._positions[partition] = position
        except BaseException:  # what was not taken comes again
            again = {partition: self._positions[partition] for partition, _, _ in answers}
            self._reader.remove(list(again))
            self._reader.add(again)
            raise
        return self.state

    def _present_ends(self, timeout_s: float | None = None) -> dict[TopicPartition, int]:
        """Ask where the topics end; raises `Truncated` if that is below what was read."""
        answers = self._driver.leader_ends(list(self._positions), timeout_s=timeout_s)
        for partition, position in self._positions.items():
            if partition not in answers:
                raise ClusterUnreachable(f"the leader of {partition.topic} did not answer")
            end, leader_epoch = answers[partition]
            if end < position:
                end = end_from(self._driver, clock_of(self._driver), partition, position)
            if end < position:
                raise self._lost(partition, f"it was read to offset {position}, and ends at {end}")
            self._meet_leader(partition, leader_epoch)
        return {partition: answer.end for partition, answer in answers.items()}

    def _meet_leader(self, partition: TopicPartition, leader_epoch: int) -> None:
        """Read a topic again, as far as it was read, if it has another leader now."""
        if leader_epoch == self._leaders.setdefault(partition, leader_epoch):
            return
        again = ControlState(self.state.topic) if partition == self._operators else self.state
        begin = self._driver.log_start_offsets([partition])[partition]
        end = self._positions[partition]
        for fetched in read_upto(self._driver, partition, begin, end):
            for record in fetched.records:
                if record.offset < end:
                    again.read_from(partition, record)
        if again.previous != self.state.previous:
            raise self._lost(partition, "other plans, markers or ends are where it was read")
        self._leaders[partition] = leader_epoch

    def _lost(self, partition: TopicPartition, why: str) -> Truncated:
        """Make the error of a topic that has lost its end; raises `TopicChanged` if all have."""
        if self.state.plans:
            refuse_recreated_logs(self._driver, self.state.plans[-1])
        return Truncated(
            f"the control topic {partition.topic} has lost its end: {why}. Restore it, or see with "
            f"'amcast topology history' what is stated there now, and open this client anew"
        ).about(partition)

    def wake(self) -> None:
        """Make a `follow` in another thread, or the next one, return early."""
        self._reader.wake()

    def close(self) -> None:
        """Release the reader."""
        self._reader.close()
