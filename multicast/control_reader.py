"""What asks a cluster about a topic's control topic: its reader, and whether topics are the same.

In goes an open driver; out comes a `ControlState` that is read to the topic's end. The rules of
what counts stand in `control.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from multicast.control import ControlState, control_partition
from multicast.errors import ClusterUnreachable, TopicChanged, TopicMissing
from multicast.log import Driver
from topology.tree import Plan


def refuse_changed_topics(driver: Driver, plan: Plan, topics: Collection[str]) -> None:
    """Raise `TopicChanged` where one of these is not the topic that the plan was made for.

    What was deleted and made again has other messages under the same IDs. A plan that records no
    ids (a test's) is not held to any.
    """
    recorded = [topic for topic in topics if topic in plan.topic_ids]
    refuse_other_topics(driver.topic_ids(sorted(recorded)), plan, topics)


def refuse_other_topics(ids: Mapping[str, str], plan: Plan, topics: Collection[str]) -> None:
    """Raise `TopicChanged` where the cluster's ids of these topics are not those of the plan."""
    for topic, recorded in sorted(plan.topic_ids.items()):
        if topic in topics and ids.get(topic) != recorded:
            raise TopicChanged(
                f"topic {topic} is not the one that epoch {plan.epoch} was applied to "
                f"(it was deleted{' and made again' if topic in ids else ''})"
            )


class ControlReader:
    """Reads a control topic through a driver; `state` is what it says so far.

    `position` is where it reads on.
    """

    def __init__(self, driver: Driver, topic: str) -> None:
        self.state = ControlState(topic)
        self._at = control_partition(topic)
        self._driver = driver
        try:
            self.position = driver.begins([self._at])[self._at]
        except TopicMissing:
            self.state.plan()  # raises: no plan was ever applied
            raise
        self._reader = driver.reader({self._at: self.position})

    def refresh(self, timeout_s: float = 10.0) -> ControlState:
        """Read to where the control topic ends now; blocks for as long as that takes.

        Raises `ClusterUnreachable` where nothing more comes for `timeout_s` seconds.
        """
        end = self._driver.ends([self._at])[self._at]
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
