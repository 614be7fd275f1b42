"""Asks whether enough replicas of a log are in sync for it to take records; never writes to try.

A log takes no records while fewer replicas are in sync than its topic's `min.insync.replicas`.

Brokers know the replicas in sync from the controllers. While no controller leads, a broker still
answers with what it knew last. Its answer may be out of date then, and `doubt` says so.
"""

from __future__ import annotations

from collections.abc import Collection

from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable


class Replicas(Admin):
    """The part of Kafka's admin API that a health check needs."""

    def out_of_sync(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Give those partitions with too few replicas in sync, each with a reason.

        Raises `ClusterUnreachable` and `AccessDenied`.
        """
        topics = sorted({partition.topic for partition in partitions})
        settings = self.topic_settings(topics)
        reasons = {}
        for name, topic in self._topics(topics).items():
            needed = int(settings[name]["min.insync.replicas"])
            for metadata in topic["partitions"]:
                partition = TopicPartition(name, int(metadata["partition_index"]))
                in_sync = len(metadata["isr_nodes"])
                if partition in partitions and in_sync < needed:
                    ids = " ".join(str(node_id) for node_id in sorted(metadata["replica_nodes"]))
                    reasons[partition] = (
                        f"[replica ids: [{ids}]]: {in_sync} are in sync, {needed} are needed"
                    )
        return reasons

    def doubt(self) -> str | None:
        """Say why nobody knows which replicas are in sync; None: a controller leads.

        None also where this client lacks the right to ask.
        """
        try:
            self.controller_time_ms()
        except ClusterUnreachable as error:
            return f"no controller leads, so nobody knows which replicas are in sync: {error}"
        except AmcastError:
            return None
        return None
