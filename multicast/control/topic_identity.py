"""Refuses topics that are not the ones a plan was made for, by Kafka's topic IDs.

A topic that was deleted and recreated has the same name, but another ID and other messages.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from contextlib import suppress

from multicast.control.state import ControlState
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, NotAuthorized, TopicChanged
from topology.tree import Plan

# How often an open client looks whether its topics were recreated. What a producer appends until
# then is lost, so less is better; but each look is a request, of a producer one for each topic.
_LOOK_EVERY_S = 5.0
# A consumer that is closed, or commits, waits for a look that is under way.
_CONSUMERS_LOOK_S = 1.0


class RecreatedLogs:
    """Notices, for an open producer, that a topic of the plan's logs was recreated.

    Brokers store in the new topic whatever comes for the old one, from offset 0 on, and no consumer
    delivers it. `learn` is for a `ControlFollower`; the plan passed when the producer was opened.
    If the control topic was recreated, too, the follower learns nothing more.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._clock = clock_of(driver)
        self._look_at = self._clock.monotonic() + _LOOK_EVERY_S
        self._changed: str | None = None  # what the last look found

    def learn(self, state: ControlState) -> None:
        """Look if it is time; with a plan that was applied to the new topic all is well again."""
        now = self._clock.monotonic()
        if self._changed is None and now < self._look_at:
            return
        self._look_at = now + _LOOK_EVERY_S
        try:
            refuse_recreated_logs(self._driver, state.plan())
        except TopicChanged as changed:
            self._changed = str(changed)
        else:
            self._changed = None

    def refuse(self) -> None:
        """Raise `TopicChanged` if the last look found a recreated topic; does not block."""
        changed = self._changed  # the follower's thread may look meanwhile
        if changed is not None:
            raise TopicChanged(f"{changed}; apply a plan to it, and open the producer anew")


class TopicWatch:
    """Notices, for an open consumer, that a topic that it reads was deleted, or recreated.

    A reader may notice nothing of it, as when the brokers were away meanwhile: it goes on at its
    position in the new topic. So it is silent, and skips what lies below the position.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._clock = clock_of(driver)
        self._watched: tuple[Plan, Collection[str]] | None = None
        # What the last look found, and of what; in one value, as a look's thread writes it.
        self._report: tuple[tuple[Plan, Collection[str]], str] | None = None
        self._looking: threading.Thread | None = None
        self._look_at = 0.0

    def begin(self, plan: Plan, topics: Collection[str]) -> None:
        """Watch these topics of a plan from now on, and no others."""
        self._watched = plan, topics
        self._look_at = self._clock.monotonic() + _LOOK_EVERY_S

    def refuse(self) -> None:
        """Raise `TopicChanged` if the last look found a change. Starts the next look if it is time.

        A look waits for the cluster, so it has a thread, where the driver's clients have threads.
        """
        now = self._clock.monotonic()
        is_looking = self._looking is not None and self._looking.is_alive()
        if now >= self._look_at and self._watched is not None and not is_looking:
            self._look_at = now + _LOOK_EVERY_S
            if self._clock.threads:
                self._looking = threading.Thread(
                    target=self._look, args=(self._watched,), name="amcast-topics", daemon=True
                )
                self._looking.start()
            else:
                self._look(self._watched)
        self._refuse()

    def look(self) -> None:
        """Look now, and raise `TopicChanged`. Blocks for a request; of its failure says nothing."""
        if self._watched is not None:
            self._look(self._watched)
        self._refuse()

    def _refuse(self) -> None:
        report = self._report
        if report is not None and report[0] is self._watched:
            raise TopicChanged(f"{report[1]}; open the consumer anew")

    def _look(self, watched: tuple[Plan, Collection[str]]) -> None:
        report = None
        try:
            refuse_changed_topics(self._driver, *watched, timeout_s=_CONSUMERS_LOOK_S)
        except TopicChanged as error:
            report = watched, str(error)
        except AmcastError:  # who reads learns of an outage, or of a missing right
            return
        self._report = report


def refuse_changed_topics(
    driver: Driver, plan: Plan, topics: Collection[str], *, timeout_s: float | None = None
) -> None:
    """Raise `TopicChanged` if one of these topics has another ID in the cluster than in the plan.

    Blocks until the cluster has answered, for `timeout_s` or else the driver's time-out at the
    most. A plan without topic IDs (a test's) passes.
    """
    recorded = [topic for topic in topics if topic in plan.topic_ids]
    refuse_other_topics(driver.topic_ids(sorted(recorded), timeout_s=timeout_s), plan, topics)


def refuse_recreated_logs(driver: Driver, plan: Plan) -> None:
    """Raise `TopicChanged` if a topic of the plan's logs was recreated. For who appends to some.

    Passes a topic that does not exist, of which an append says so, and one that the user may not
    see. Blocks until the cluster has answered.
    """
    for topic in sorted({log.topic for log in plan.logs} & plan.topic_ids.keys()):
        with suppress(NotAuthorized):
            ids = driver.topic_ids([topic])
            refuse_other_topics(ids, plan, ids)


def refuse_other_topics(ids: Mapping[str, str], plan: Plan, topics: Collection[str]) -> None:
    """Raise `TopicChanged` if one of these topics has another ID in `ids` than in the plan."""
    for topic, recorded in sorted(plan.topic_ids.items()):
        if topic in topics and ids.get(topic) != recorded:
            raise TopicChanged(
                f"topic {topic} is not the one that epoch {plan.epoch} was applied to "
                f"(it was deleted{' and recreated' if topic in ids else ''})"
            )
