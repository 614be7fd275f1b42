"""The metrics of clients: where `prometheus_client` is missing, and on a real broker."""

import subprocess
import sys

import pytest

from multicast import Consumer, Producer
from multicast.metrics import ClientMetrics
from multicast.metrics.exposition import MetricsPage
from tests.helpers.plans import poster
from tests.helpers.scraped import samples
from tests.helpers.system import PATIENCE_S, System, until


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


def test_clients_of_a_real_broker_show_what_they_send_deliver_and_lack(kafka_cluster, tmp_path):
    def value(client, name, *labels):
        page = samples(MetricsPage(ClientMetrics(client)).text())
        return page.get((f"amcast_{name}", labels))

    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        where = {"topic": system.topic, "driver": system.driver}
        with Producer(**where) as producer, Consumer(name="C2", **where) as consumer:
            for payload in (b"one", b"three"):
                producer.multicast(payload, to={"P3"}).ordered(PATIENCE_S)
            assert value(producer, "producer_accepted_total", "P3") == 2
            assert value(producer, "producer_in_flight_messages", "P3") == 0
            assert value(producer, "producer_append_seconds_count") >= 1
            assert value(producer, "producer_append_seconds_sum") > 0
            assert value(producer, "producer_refused_total", "P3") == 0

            assert sum(len(batch.records) for batch in consumer.until_end()) == 2
            assert value(consumer, "consumer_delivered_total", "C2", "P3") == 2
            assert value(consumer, "consumer_epoch", "C2") == 1
            assert value(consumer, "consumer_payload_bytes_total", "C2") == len("onethree")
            assert value(consumer, "consumer_entries_read_total", "C2", "P3") >= 2
            lag = ("consumer_lag_messages", "C2", "P3")
            until(lambda: value(consumer, *lag) == 0, "a lag of 0")  # left out where Kafka is slow
