"""Metrics of commands at a port of their own; and of processes without `prometheus_client`."""

import json
import os
import re
import socket
import subprocess
import sys
import threading

import pytest

from multicast import Producer
from multicast.errors import UsageError
from multicast.metrics.serving import serving
from multicast.testing import system
from tests.helpers.plans import poster
from tests.helpers.scraped import scraped
from tests.helpers.system import PATIENCE_S, System, amcast, until

HERE = "127.0.0.1"
ADDRESS = re.compile(r"metrics: (http://\S+/metrics)\n")


@pytest.mark.slow
def test_metrics_are_served_until_the_end_of_the_block(capsys):
    before = threading.active_count()
    with system({"consumers": {"C1": {"P1", "P2"}}}) as double, serving(0) as metrics:
        url = ADDRESS.fullmatch(capsys.readouterr().err)[1]
        assert url.startswith(f"http://{HERE}:")
        assert not [name for name, _ in scraped(url, 60) if name.startswith("amcast_")]
        producer = double.producer()
        metrics.add(producer)
        producer.multicast(b"x", to={"P1"})
        now = scraped(url, 60)
        assert now["amcast_producer_accepted_total", ("P1",)] == 1
        assert now["process_cpu_seconds_total", ()] > 0
    with pytest.raises(OSError, match="refused"):
        scraped(url, 60)
    until(lambda: threading.active_count() <= before, "the end of the server's threads")


@pytest.mark.slow
def test_a_port_that_is_taken_ends_the_command_with_2_and_a_sentence():
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        for command in (["receive", "-n", "C1"], ["send", "--to", "P1"]):
            done = amcast(*command, "-b", f"{HERE}:1", "--metrics-port", str(port), stdin="")
            assert (done.returncode, done.stdout) == (2, "")
            assert done.stderr == (
                f"amcast: metrics cannot be served at {HERE}:{port} (Address already in use); "
                f"choose another port with --metrics-port, or 0 for any free one\n"
            )


def test_an_address_of_another_machine_is_a_wrong_use(monkeypatch):
    monkeypatch.setenv("AMCAST_WEB_HOST", "192.0.2.1")  # no machine has it (RFC 5737)
    with pytest.raises(UsageError, match="set AMCAST_WEB_HOST"), serving(0):
        pass


# -- without prometheus_client --------------------------------------------------------------------


def without_prometheus(program):
    """Run a program where only a bare installation's packages can be imported."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['prometheus_client'] = None\n{program}"],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_clients_count_without_prometheus_client_and_their_metrics_name_the_extra():
    done = without_prometheus(
        "from multicast.testing import system\n"
        "with system({'consumers': {'C1': {'P1', 'P2'}}}) as double:\n"
        "    producer = double.producer()\n"
        "    producer.multicast(b'x', to={'P1'}).accepted()\n"
        "    assert producer.counts().logs['P1'].accepted == 1\n"
        "from multicast.metrics import ClientMetrics\n"
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "topology.MissingExtra: this needs the package prometheus_client, which is not installed; "
        "run: pip install 'amcast[collectors]'"
    )


# -- on a real broker -----------------------------------------------------------------------------


class Command:
    """A command that serves metrics, from its first line on stderr on; ended at the end."""

    def __init__(self, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "multicast", *arguments, "--metrics-port", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def __enter__(self):
        line = self._process.stderr.readline()
        self._url = ADDRESS.fullmatch(line)[1]
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.communicate()

    def value(self, name, *labels):
        return scraped(self._url, PATIENCE_S).get((f"amcast_{name}", labels))

    def write(self, text):
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def lines(self, count):
        return [json.loads(self._process.stdout.readline()) for _ in range(count)]

    def finish(self):
        """Close its input; give its exit code, and what it wrote to stderr last."""
        _, errors = self._process.communicate(timeout=PATIENCE_S)
        return self._process.returncode, errors


@pytest.fixture
def ordered(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as made:
        made.order()
        yield made


@pytest.mark.kafka
@pytest.mark.slow
def test_receive_and_send_serve_metrics_while_they_run(ordered):
    with Command("receive", "-n", "C2", *ordered.common()) as receive:
        with Producer(topic=ordered.topic, driver=ordered.driver) as producer:
            for payload in (b"one", b"three"):
                producer.multicast(payload, to={"P3"}).ordered(PATIENCE_S)
        receive.lines(2)
        assert receive.value("consumer_delivered_total", "C2", "P3") == 2
        assert receive.value("consumer_epoch", "C2") == 1
        assert receive.value("consumer_payload_bytes_total", "C2") == len("onethree")
        assert receive.value("consumer_entries_read_total", "C2", "P3") >= 2
        lag = ("consumer_lag_messages", "C2", "P3")
        until(lambda: receive.value(*lag) == 0, "a lag of 0")  # it is left out where Kafka is slow

        with Command("send", "--to", "P3", *ordered.common()) as send:
            send.write("a\nb\nc\n")
            until(lambda: send.value("producer_accepted_total", "P3") == 3, "three messages")
            assert send.value("producer_in_flight_messages", "P3") == 0
            assert send.value("producer_append_seconds_count") >= 1
            assert send.value("producer_append_seconds_sum") > 0
            assert send.value("producer_refused_total", "P3") == 0
            code, errors = send.finish()
            assert code == 0, errors
            assert errors == "sent 3: 3 accepted, 0 failed, 0 unknown\n"
        receive.lines(3)
        until(lambda: receive.value("consumer_delivered_total", "C2", "P3") == 5, "three more")
        assert receive.value(*lag) in (0, None)
