"""A topic on a real cluster, whose logs are watched."""

import uuid

from collectors.reconfiguration.apply import append_sentinels
from multicast.control import sentinel_topic
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.protocol import TopicPartition
from tests.helpers.driver_worlds import LARGE, watch


class World:
    """A topic with its sentinel records on a real cluster."""

    def __init__(self, bootstrap, *, logs=3, sentinels=True, client=None, **settings):
        self.topic = f"t-{uuid.uuid4().hex[:8]}"
        self.sentinel_topic = sentinel_topic(self.topic)
        self.bootstrap = bootstrap
        self.admin = Admin(bootstrap, client)
        self.driver = open_driver("kafka-python", bootstrap, client)
        self.appender = self.driver.appender()
        self.admin.create_topics({self.topic: TopicSpec(logs, settings={**LARGE, **settings})})
        self.logs = [TopicPartition(self.topic, number) for number in range(logs)]
        if sentinels:
            assert append_sentinels(self.driver, self.admin, self.topic)
        self._watchers = []

    def watcher(self):
        """Open a watcher that has reported all ends and measured its sentinel records."""
        watcher = self.driver.watcher(
            dict.fromkeys(self.logs, 0), sentinel_topic=self.sentinel_topic
        )
        self._watchers.append(watcher)
        watch(watcher, self.driver.last_stable_offsets(self.logs))
        assert not watcher.poll(0.3)
        return watcher

    def close(self):
        for watcher in self._watchers:
            watcher.close()
        self.appender.close()
        self.driver.close()
        self.admin.close()
