"""What brokers do instead of an answer is said as such, and not as "no broker answered"."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import types

import pytest

from collectors.doctor.startup_check import StartCheck
from multicast.drivers import open_driver
from multicast.drivers.kafka.private import KafkaNetSocket
from multicast.errors import AmcastError, ClusterUnreachable
from multicast.settings import Settings

READS_IT = """
from io import BytesIO
import multicast.drivers.kafka.transports
from multicast.drivers.kafka.private import TaggedFields
raw = BytesIO(bytes(2))
TaggedFields.decode_empty(raw)
raise SystemExit(raw.tell() - 1)
"""


@contextlib.contextmanager
def answering(words):
    """Serve one answer, whatever is asked; give the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client:
                        client.recv(1024)
                        client.sendall(words)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_what_is_not_kafkas_protocol_is_said_at_once():
    with (
        answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises(AmcastError, match="cannot be read as Kafka's protocol") as raised,
    ):
        open_driver("kafka-python", address, request_timeout_s=3600.0)
    assert not raised.value.retriable


def test_a_process_without_file_descriptors_says_so(monkeypatch):
    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(KafkaNetSocket, "socket", refuse)
    with pytest.raises(ClusterUnreachable, match=r"no file descriptor left.*ulimit -n"):
        open_driver("kafka-python", "127.0.0.1:9", request_timeout_s=0.2)


def test_a_broker_that_takes_no_more_connections_is_among_the_causes():
    with (
        answering(b"") as address,
        pytest.raises(ClusterUnreachable, match=r"max\.connections of the broker"),
    ):
        open_driver("kafka-python", address, request_timeout_s=0.5)


@pytest.mark.parametrize("level", ["1", "2"])
def test_answers_are_read_without_asserts(level):
    settings = {**os.environ, "PYTHONOPTIMIZE": level}
    assert (
        subprocess.run([sys.executable, "-c", READS_IT], env=settings, check=False).returncode == 0
    )


def test_a_check_that_could_not_run_is_said_until_it_has_run(monkeypatch):
    module = sys.modules[StartCheck.__module__]
    troubles = [ClusterUnreachable("nobody")]

    def opened(*_):
        if troubles:
            raise troubles.pop()
        return types.SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(module, "open_driver", opened)
    check = StartCheck(Settings("127.0.0.1:9", "A"))
    assert check.unchecked is not None
    assert not check.look()
    assert check.unchecked == "the cluster's settings could not be checked: nobody"
    assert check.refused is None
