"""An event loop of kafka-python that is closed leaves no socket open, and tells users nothing."""

import socket
import time
from types import SimpleNamespace

from multicast.drivers.kafka import Admin
from multicast.drivers.kafka.connection import Connection, kafka_python_settings
from multicast.drivers.kafka.private import DescribeClusterRequest
from multicast.drivers.kafka.quiet import QuietSelector
from multicast.drivers.kafka.transports import ConnectionManager
from tests.helpers.system import PATIENCE_S

HERE = "127.0.0.1"
TOO_MUCH = bytes(32 << 20)  # more than the kernel's buffers hold


def test_a_socket_whose_request_is_not_sent_is_closed_with_the_loop():
    # Init: a peer that reads nothing.
    settings = kafka_python_settings({})
    with socket.create_server((HERE, 0)) as peer:
        port = peer.getsockname()[1]
        loop = QuietSelector(client_id="a")
        manager = ConnectionManager(loop, bootstrap_servers=f"{HERE}:{port}", **settings)
        broker = SimpleNamespace(host=HERE, port=port, node_id=0)
        opening = loop.call_soon_with_future(
            manager._build_transport, broker, time.monotonic() + PATIENCE_S
        )
        loop.poll(timeout_ms=1000 * PATIENCE_S, future=opening)
        transport = opening.value
        opened = transport._sock
        transport.write(TOO_MUCH)
        loop.poll(timeout_ms=0)

        # Test.
        transport.close()
        assert opened.fileno() >= 0, "kafka-python is mended: remove QuietSelector.transports"
        del transport, opening  # now only the task that wants to send has them
        manager.close()
        loop.close()

        # Check.
        assert opened.fileno() < 0


def test_what_is_closed_before_an_answer_came_logs_no_error(kafka_cluster, caplog):
    connection = Connection(kafka_cluster.bootstrap, {}, timeout_s=PATIENCE_S)
    connection.net.call_soon_with_future(connection.refresh)
    connection.net.poll(timeout_ms=0)
    connection.close()
    for _ in range(20):  # its loop has a thread: some answers come first
        admin = Admin(kafka_cluster.bootstrap)
        admin._manager.send(DescribeClusterRequest())
        admin.close()
    heard = [record.getMessage() for record in caplog.records if record.name[:6] == "kafka."]
    assert heard == []
