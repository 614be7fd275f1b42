"""Clients whose brokers are all down keep connecting, but not too often; others say why."""

import contextlib
import socket
import threading
import time

import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin
from multicast.drivers.librdkafka_reader import LibrdkafkaDriver
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable
from multicast.local.broker import free_ports
from tests.helpers.driver_worlds import cluster_with_listener

AT = TopicPartition("t", 0)
WATCHED_S = 3.0
# Of one client: its backoff starts at 20 ms and doubles up to half a second.
CONNECTIONS_A_SECOND_MAX = 10


class Away:
    """An address that accepts each connection and closes it at once; counts them."""

    def __init__(self):
        self.connections = 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                connection.close()
                self.connections += 1

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()


@pytest.fixture
def away():
    with contextlib.closing(Away()) as away:
        yield away


def spend(opened):
    """Use a reader as a caller would that retries after errors; for how many s."""
    began = time.monotonic()
    while time.monotonic() < began + WATCHED_S:
        with contextlib.suppress(AmcastError):
            opened.poll(0.1)
    return time.monotonic() - began


def test_librdkafka_connects_with_a_growing_backoff(away):
    log = MemoryLog()
    log.create(AT.topic, 1)
    with LibrdkafkaDriver(away.address, delegate=MemoryDriver(log)) as driver:
        opened = driver.reader({AT: 0})
        before = away.connections
        spent_s = spend(opened)
        connections = away.connections - before
        opened.close()
    assert 0 < connections <= CONNECTIONS_A_SECOND_MAX * spent_s


@pytest.mark.campaign
@pytest.mark.kafka
def test_brokers_that_are_not_where_they_say_are_told_from_brokers_that_do_not_answer():
    plain, closed = free_ports(2)
    advertised = f"PLAINTEXT://127.0.0.1:{plain},OTHER://127.0.0.1:{closed}"
    settings = {"advertised.listeners": advertised}
    with cluster_with_listener("OTHER", "PLAINTEXT", settings, plain=plain) as address:
        says = rf"{address} answer and say that they are at 127.0.0.1:{closed}, .*advertised.listen"
        with (
            open_driver("kafka-python", address, request_timeout_s=10.0) as driver,
            pytest.raises(ClusterUnreachable, match=says),
        ):
            driver.last_stable_offsets([AT])
        with (
            Admin(address, request_timeout_s=10.0) as admin,
            pytest.raises(ClusterUnreachable, match=says),
        ):
            admin.broker_ids()
