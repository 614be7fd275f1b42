"""Whether enough replicas of a log are in sync for it to take records: asked, never tried.

Goes in: Kafka partitions. Comes out: a sentence for each that takes no records now, because fewer
replicas are in sync than its topic's `min.insync.replicas`.

Brokers know that from the controllers. Where most of these are away, a broker that is left goes on
telling what it heard last: then nobody knows, and that is said instead.
"""

from __future__ import annotations

from collections.abc import Collection

from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable


class Replicas(Admin):
    """The part of Kafka's administration that a health check needs."""

    def short(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Say which of these lack replicas in sync; raises `ClusterUnreachable`."""
        topics = sorted({one.topic for one in partitions})
        settings = self.topic_settings(topics)
        found = {}
        for name, topic in self._topics(topics).items():
            needed = int(settings[name]["min.insync.replicas"])
            for partition in topic["partitions"]:
                place = TopicPartition(name, int(partition["partition_index"]))
                in_sync = len(partition["isr_nodes"])
                if place in partitions and in_sync < needed:
                    ids = " ".join(str(one) for one in sorted(partition["replica_nodes"]))
                    found[place] = (
                        f"[replica ids: [{ids}]]: {in_sync} are in sync, {needed} are needed"
                    )
        return found

    def unknown(self) -> str | None:
        """Say why nobody knows which replicas are in sync; None: a controller leads.

        None, too, where this client may not ask.
        """
        try:
            self.controller_time_ms()
        except ClusterUnreachable as error:
            return f"no controller leads, so nobody knows which replicas are in sync: {error}"
        except AmcastError:
            return None
        return None
