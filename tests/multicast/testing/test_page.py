"""The example of docs/testing-your-code.md runs as it stands; the fixtures do what it says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from multicast.drivers.kafka import Admin
from multicast.testing import OrderViolation
from tests.multicast.testing.test_double import Forgetful

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "testing-your-code.md").read_text(encoding="utf-8")
INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}}
PATIENCE_S = 120


def pytest_on(folder, text):
    """Run pytest on a file of a user's, outside of this repository.

    `-rN`: no short summary, which would repeat an error's text in full where `CI` is set.
    """
    file = folder / "test_theirs.py"
    file.write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rN", "-p", "no:cacheprovider", str(file)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.slow
def test_the_example_runs_as_it_stands(tmp_path):
    marker = r"<!-- tests/multicast/testing/test_page.py runs this block.*?-->\n```python\n(.*?)```"
    (block,) = re.findall(marker, PAGE, re.DOTALL)
    done = pytest_on(tmp_path, block)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout


@pytest.mark.slow
def test_a_violation_fails_a_test_that_used_the_fixture_and_another_error_stays_alone(tmp_path):
    done = pytest_on(
        tmp_path,
        """
from dataclasses import replace
from multicast import Consumer

class Forgetful(Consumer):
    def _deliver(self, messages_max):
        batches = super()._deliver(messages_max)
        return batches[1:]

def deliver(s):
    for name in (b"a", b"b"):
        s.producer().multicast(name, to={"P1"}).ordered()
    with Forgetful(topic=s.topic, name="C1", driver=s.driver) as consumer:
        s.drain(consumer)

def test_violates(amcast_system):
    deliver(amcast_system({"consumers": {"C1": ["P1", "P2"]}}))

def test_fails_otherwise(amcast_system):
    deliver(amcast_system({"consumers": {"C1": ["P1", "P2"]}}))
    assert 1 == 2

def test_holds(amcast_system):
    s = amcast_system({"consumers": {"C1": ["P1", "P2"]}}, seed=4)
    s.producer().multicast(b"a", to={"P1"})
""",
    )
    assert done.returncode == 1
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert done.stdout.count("OrderViolation: validity is violated: P1:0") == 1
    assert "assert 1 == 2" in done.stdout


def test_a_topic_on_a_broker_is_ordered_replanned_checked_and_gone(kafka_cluster, amcast_topic):
    topic = amcast_topic(INTERESTS)
    receipt = topic.producer().multicast(b"x", to={"P1"})
    receipt.ordered(PATIENCE_S)  # a skip may take offset 0: tickets may go before messages
    assert [m.payload for m in topic.drain(topic.consumer("C1"))] == [b"x"]
    wider = {"consumers": {**INTERESTS["consumers"], "C4": {"P3", "P4"}}}
    assert topic.replan(wider).epoch == 2
    topic.producer().multicast(b"y", to={"P4"}).ordered(PATIENCE_S)
    assert [m.payload for m in topic.drain(topic.consumer("C4"))] == [b"y"]
    assert not topic.check().violations
    with Forgetful(topic=topic.topic, name="C2", driver=topic.driver) as forgetful:
        topic.producer().multicast(b"3", to={"P2"}).ordered(PATIENCE_S)
        topic.drain(forgetful)
        with pytest.raises(OrderViolation, match="C2 did not deliver it"):
            topic.check()
    topic.close()
    with Admin(kafka_cluster.bootstrap) as admin:
        assert admin.partitions([topic.topic]) == {}
