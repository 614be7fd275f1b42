"""Refuses topics that are not the ones a plan was made for, by Kafka's topic IDs.

A topic that was deleted and recreated has the same name, but another ID and other messages.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress

from multicast.drivers.protocol import Driver
from multicast.errors import NotAuthorized, TopicChanged
from topology.tree import Plan


def refuse_changed_topics(driver: Driver, plan: Plan, topics: Collection[str]) -> None:
    """Raise `TopicChanged` if one of these topics has another ID in the cluster than in the plan.

    Blocks until the cluster has answered. A plan without topic IDs (a test's) passes.
    """
    recorded = [topic for topic in topics if topic in plan.topic_ids]
    refuse_other_topics(driver.topic_ids(sorted(recorded)), plan, topics)


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
