"""`pytest --amcast-check`: a user's test whose consumers disagree fails with the witness."""

import subprocess
import sys

import pytest

# The log in memory behind an ordinary driver object: as far as the plugin knows, a user's own one.
SUITE = '''
from dataclasses import replace

import pytest

from multicast import Consumer
from multicast.testing import system

INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P1", "P2", "P3"}}}


class Unwatched:
    def __init__(self, driver):
        self._driver = driver

    def __getattr__(self, name):
        if name == "observe":
            raise AttributeError(name)
        return getattr(self._driver, name)


@pytest.fixture
def double():
    with system(INTERESTS, seed=5) as made:
        producer = made.producer()
        for _ in range(5):
            for to in ({"P1"}, {"P2"}):
                producer.multicast(b"x", to=to)
            made.run(0.05)
        made.settle()
        yield made


@pytest.fixture
def consumers(double):
    opened = [
        Consumer(topic=double.topic, name=name, driver=Unwatched(double.driver))
        for name in ("C1", "C2")
    ]
    yield opened
    for consumer in opened:
        consumer.close()


def read(consumer):
    return [record for batch in consumer.until_end() for record in batch.records]


def test_right(consumers):
    assert [len(read(consumer)) for consumer in consumers] == [10, 10]


def turned_round(consumer):
    """A defect planted into a consumer: it hands out its first batches in the other order."""
    poll, held = consumer._deliver, []

    def deliver(messages_max):
        return poll(messages_max)[::-1]

    consumer._deliver = deliver


def test_wrong(consumers):
    turned_round(consumers[1])
    for consumer in consumers:
        read(consumer)


def test_wrong_and_failing(consumers):
    turned_round(consumers[1])
    for consumer in consumers:
        read(consumer)
    assert False, "its own failure"


@pytest.fixture
def read_late(consumers):
    yield
    turned_round(consumers[1])
    for consumer in consumers:
        read(consumer)


def test_wrong_in_a_fixture(read_late):
    pass


def test_right_after_the_wrong_ones(consumers):
    assert [len(read(consumer)) for consumer in consumers] == [10, 10]
'''


@pytest.fixture
def suite(tmp_path):
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")

    def run(*options):
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_a_test_fails_with_the_witness_and_the_next_one_is_judged_by_itself(suite):
    printed = suite("--amcast-check").stdout
    for line in (
        "PASSED test_suite.py::test_right\n",
        "PASSED test_suite.py::test_right_after_the_wrong_ones",
        "FAILED test_suite.py::test_wrong - ",
        "FAILED test_suite.py::test_wrong_and_failing - AssertionError: its own failure",
        "ERROR test_suite.py::test_wrong_in_a_fixture - ",
        "amcast-check: ",
    ):
        assert line in printed, printed
    assert "OrderViolation" in printed
    assert "C2" in printed
