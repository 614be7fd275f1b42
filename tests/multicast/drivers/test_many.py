"""Drivers whose Kafka partitions become others later, and many closed readers."""

import pytest

from multicast.drivers.kafka.connection import Connection
from tests.helpers.driver_worlds import append_all, read, watch

BACK_OFF_MS = 3_600_000  # longer than any time-out
# A process has 1,024 keys for thread-specific data (PTHREAD_KEYS_MAX), and a client holds one.
MORE_THAN_A_PROCESS_HOLDS = 1100


def test_a_watcher_follows_what_is_added_and_leaves_what_is_removed(world, opened):
    a, b, c = world.topic(3)
    appender = opened(world.driver.appender())
    append_all(appender, a, [b"0", b"1"])
    watcher = opened(world.driver.watcher({}))
    assert not watcher.poll(0.05)
    watcher.add([a])
    assert watch(watcher, {a: 2}) == {a: 2}
    append_all(appender, b, [b"0"])
    watcher.add([b, c])
    assert watch(watcher, {b: 1, c: 0}) == {b: 1, c: 0}
    watcher.remove([a])
    append_all(appender, a, [b"2"])
    append_all(appender, c, [b"0"])
    assert watch(watcher, {c: 1}) == {c: 1}
    watcher.add([a, c])  # removed, and still followed: both are reported again
    assert watch(watcher, {a: 3, c: 1}) == {a: 3, c: 1}
    append_all(appender, a, [b"3"])
    assert watch(watcher, {a: 4}) == {a: 4}
    watcher.remove([a, b, c])
    append_all(appender, b, [b"1"])
    assert not watcher.poll(0.2)


@pytest.mark.kafka
def test_a_reader_waits_for_no_back_off_of_the_package(world_named, opened, monkeypatch):
    world = world_named("kafka-python")
    (first,), (second,) = world.topic(1), world.topic(1)
    appender = opened(world.driver.appender())
    append_all(appender, first, [b"x"])
    append_all(appender, second, [b"x"])
    made = Connection.__init__

    def hesitant(self, *arguments, **more):
        made(self, *arguments, **more)
        self.cluster.config["retry_backoff_ms"] = BACK_OFF_MS

    monkeypatch.setattr(Connection, "__init__", hesitant)
    reader = opened(world.driver.reader({first: 0}))
    assert read(reader, {first: 1})[1] == {first: 1}
    reader.add({second: 0})
    assert read(reader, {second: 1})[1] == {second: 1}


@pytest.mark.campaign
@pytest.mark.kafka
def test_more_closed_readers_than_a_process_could_hold_are_kept(world_named):
    driver, kept = world_named("librdkafka").driver, []
    for _ in range(MORE_THAN_A_PROCESS_HOLDS):
        kept.append(driver.reader({}))
        kept[-1].close()
