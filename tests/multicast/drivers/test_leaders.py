"""A reader of the kafka-python driver asks for leaders that it does not know at once."""

from contextlib import ExitStack, closing

import pytest

from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.kafka_python.connection import Connection
from multicast.drivers.kafka_python.driver import KafkaPythonDriver
from multicast.drivers.protocol import TopicPartition
from tests.helpers.driver_worlds import append_all, read
from tests.helpers.system import PATIENCE_S

LONG_MS = 3_600_000  # longer than any time-out of this test


@pytest.mark.kafka
def test_new_partitions_wait_for_no_back_off_of_the_package(kafka_cluster, monkeypatch):
    names = ["leaders-1", "leaders-2"]
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({name: TopicSpec(1) for name in names})
    made = Connection.__init__

    def slow(self, *arguments, **more):
        made(self, *arguments, **more)
        self.cluster.config["retry_backoff_ms"] = LONG_MS

    with ExitStack() as opened:
        driver = opened.enter_context(closing(KafkaPythonDriver(kafka_cluster.bootstrap)))
        appender = driver.appender()
        opened.callback(appender.close, PATIENCE_S)
        logs = [TopicPartition(name, 0) for name in names]
        for log in logs:
            append_all(appender, log, [b"x"])
        monkeypatch.setattr(Connection, "__init__", slow)
        reader = opened.enter_context(closing(driver.reader({logs[0]: 0})))
        assert read(reader, {logs[0]: 1})[1] == {logs[0]: 1}
        reader.add({logs[1]: 0})
        assert read(reader, {logs[1]: 1})[1] == {logs[1]: 1}
