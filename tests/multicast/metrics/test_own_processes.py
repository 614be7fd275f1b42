"""The metrics of clients where `prometheus_client` is missing."""

import subprocess
import sys

import pytest


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
