"""Whether topics are still those that a plan was made for: another id is another topic.

In go the ids that a plan records and those that the cluster tells; out comes nothing, or an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from multicast.drivers.protocol import Driver
from multicast.errors import TopicChanged
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
