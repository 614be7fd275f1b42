"""What the live page shows of brokers, replicas and consumers. Reads; joins no group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectors.consumer_watch import ConsumerWatch
from multicast.control import control_topics, order_topic
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError
from multicast.settings import Settings
from topology.tree import Plan


class ClusterWatch:
    """Looks at a topic's cluster, from one thread; opens its connections at the first look."""

    def __init__(self, settings: Settings, open_driver: Callable[[], Driver]) -> None:
        self._settings = settings
        self._open_driver = open_driver
        self._driver: Driver | None = None
        self._admin: Admin | None = None
        self._consumers: ConsumerWatch | None = None

    def look(self, plan: Plan) -> dict[str, Any]:
        """Count brokers and replicas of the plan's topics, and describe consumers.

        "error" says what cannot be seen; the rest is missing then. Blocks for requests.
        """
        try:
            if self._admin is None:
                self._admin = Admin(self._settings.bootstrap, self._settings.client)
            if self._driver is None:
                self._driver = self._open_driver()
            if self._consumers is None:
                names = self._admin.groups
                self._consumers = ConsumerWatch(self._driver, plan.topic, names)
            alive, known = self._admin.members()[1], self._admin.broker_ids()
            topics = {log.topic for log in plan.logs}
            topics |= {order_topic(plan.topic), *control_topics(plan.topic)}
            held = [each for of in self._admin.holders(sorted(topics)).values() for each in of]
        except AmcastError as error:
            return {"error": str(error), "consumers": []}
        self._consumers.look()
        return {
            "brokers": len(known),
            "away": [broker for broker in known if broker not in alive],
            "partitions": len(held),
            "short": sum(len(in_sync) < len(replicas) for _, _, replicas, in_sync in held),
            "leaderless": sum(leader < 0 for _, leader, _, _ in held),
            "consumers": self._consumers.status(),
            "error": self._consumers.error,
        }

    def close(self) -> None:
        """Close what was opened."""
        for opened in (self._consumers, self._admin, self._driver):
            if opened is not None:
                opened.close()
