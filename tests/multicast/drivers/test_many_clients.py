"""Closed readers hold nothing, even if they are kept."""

import contextlib

import pytest

from multicast.drivers import open_driver

# A process has 1,024 keys for thread-specific data (PTHREAD_KEYS_MAX), and a client holds one.
MORE_THAN_A_PROCESS_HOLDS = 1100


@pytest.fixture
def driver(kafka_cluster):
    with contextlib.closing(open_driver("librdkafka", kafka_cluster.bootstrap)) as opened:
        yield opened


@pytest.mark.campaign
def test_more_closed_readers_than_a_process_could_hold_are_kept(driver):
    kept = []
    for _ in range(MORE_THAN_A_PROCESS_HOLDS):
        kept.append(driver.reader({}))
        kept[-1].close()
