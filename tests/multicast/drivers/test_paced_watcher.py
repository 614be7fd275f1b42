"""A watcher that asks seldom: a broker answers it at once, not at the moment of a message."""

import pytest

from multicast.drivers.kafka_python.watch_connection import WatchConnection
from tests.helpers.driver_worlds import append_all, watch
from tests.helpers.system import until
from tests.helpers.watched_logs import World


@pytest.fixture
def world(kafka_cluster):
    made = World(kafka_cluster.bootstrap)
    yield made
    made.close()


@pytest.mark.kafka
def test_with_a_wide_spacing_a_question_waits_for_no_message_until_all_is_at_rest(
    world, monkeypatch
):
    waits, request = [], WatchConnection.request

    def noted(self, now, *, wait_s, timeout_s):
        waits.append(wait_s)
        request(self, now, wait_s=wait_s, timeout_s=timeout_s)

    monkeypatch.setattr(WatchConnection, "request", noted)
    watcher, log = world.watcher(), world.logs[0]
    until(lambda: watcher.poll(0.1) == {} and waits and waits[-1] > 0.1, "a long poll at rest")
    for number, spacing_s in enumerate((0.02, 0.05), start=1):
        watcher.spacing_s = spacing_s
        waits.clear()
        append_all(world.appender, log, [b"x"])
        watch(watcher, {log: number})
        until(lambda: watcher.poll(0.1) == {} and len(waits) > 1, "the next question")
        assert (0.0 in waits) is (spacing_s == 0.05)
        until(lambda: watcher.poll(0.1) == {} and waits[-1] > 0.1, "a long poll at rest")
