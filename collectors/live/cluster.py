"""What the live page shows of brokers, replicas and consumers. Reads; joins no group."""

from __future__ import annotations

from typing import Any

from collectors.consumer_watch import ConsumerWatch
from multicast.control import control_topics, order_topic
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError
from multicast.settings import Settings
from topology.tree import Plan


class ClusterWatch:
    """Looks at a topic's cluster, from one thread; connects at the first look."""

    def __init__(self, settings: Settings, driver: Driver) -> None:
        self._settings = settings
        self._driver = driver
        self._opened: tuple[Admin, ConsumerWatch] | None = None

    def look(self, plan: Plan) -> dict[str, Any]:
        """Count brokers and replicas of the plan's topics, and describe consumers.

        "error" says what cannot be seen; the rest is missing then. Blocks for requests.
        """
        try:
            if self._opened is None:
                admin = Admin(self._settings.bootstrap, self._settings.client)
                self._opened = admin, ConsumerWatch(self._driver, plan.topic, admin.groups)
            admin, watch = self._opened
            alive, known = admin.members()[1], admin.broker_ids()
            topics = {log.topic for log in plan.logs}
            topics |= {order_topic(plan.topic), *control_topics(plan.topic)}
            held = [each for of in admin.holders(sorted(topics)).values() for each in of]
        except AmcastError as error:
            return {"error": str(error), "consumers": []}
        watch.look()
        return {
            "brokers": len(known),
            "away": [broker for broker in known if broker not in alive],
            "short": sum(len(in_sync) < len(replicas) for _, _, replicas, in_sync in held),
            "leaderless": sum(leader < 0 for _, leader, _, _ in held),
            "consumers": watch.status(),
            "error": watch.error,
        }

    def close(self) -> None:
        """Close what was opened; the driver stays open."""
        for opened in reversed(self._opened or ()):
            opened.close()
