"""Outages longer than every time-out: nothing is stored twice, nothing piles up, order is kept."""

import itertools
import threading
from functools import partial
from pathlib import Path

import pytest

from multicast.drivers.kafka_python import Admin
from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AppendUnknown
from multicast.local.cluster import LocalCluster
from tests.helpers.doubled import Ours
from tests.helpers.driver_worlds import PATIENCE_S
from tests.helpers.system import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
DELIVERY_S = 3.0
SOON_S = 1.0
# librdkafka's threads: one for the client, one without a broker, one for each broker and address.
THREADS_OF_A_PRODUCER = 5


@pytest.fixture(scope="module")
def lone_cluster():
    with LocalCluster(brokers=1) as cluster:
        yield cluster


@pytest.fixture
def frozen(lone_cluster):
    """An appender with a short time-out, and its only broker, which the test freezes."""
    world = Ours(lone_cluster, lone_cluster.bootstrap, "librdkafka", delivery_timeout_s=SOON_S)
    yield world
    lone_cluster.resume(1)
    world.close()


def replacements(caplog):
    return caplog.text.count("A producer is replaced")


def threads():
    return len(list(Path("/proc/self/task").iterdir()))


def test_in_a_long_outage_one_producer_follows_another_and_none_piles_up(frozen, caplog):
    # Init
    partition = frozen.topic()
    frozen.append_surely(partition, b"before")
    before = most = threads()
    frozen.cluster.pause(1)

    # Test: there is always one append without an outcome.
    for number in itertools.count():
        frozen.append(partition, b"%d" % number)
        until(frozen.settled, "the outcome of an append")
        most = max(most, threads())
        if replacements(caplog) >= 4:
            break
    frozen.cluster.resume(1)
    frozen.append_surely(partition, b"after")

    # Check
    copies = frozen.copies(partition)
    assert max(copies.values()) == 1
    assert frozen.accepted() <= set(copies)
    unknown = [outcome for outcome in frozen.outcomes.values() if isinstance(outcome, AppendFailed)]
    assert len(unknown) >= 4
    assert all(isinstance(outcome.error, AppendUnknown) for outcome in unknown)
    assert most <= before + 3 * (THREADS_OF_A_PRODUCER + 1)


def test_appends_from_many_threads_keep_their_order_while_producers_are_replaced(frozen, caplog):
    # Init: four threads append, one by one or ten in a call, and wait for nothing.
    partition = frozen.topic()
    frozen.append_surely(partition, b"before")
    outcomes = {name: {} for name in "abcd"}
    enough = threading.Event()

    def taken(name, number, outcome):
        assert number not in outcomes[name]
        outcomes[name][number] = outcome

    def taken_of_many(name, before, first, count, outcome):
        assert count == 1, "this driver reports each"
        taken(name, before + first, outcome)

    def append(name):
        number = 0
        while not enough.wait(0.01):
            if name < "c":
                values = [b"%s %d" % (name.encode(), number + index) for index in range(10)]
                first = number
                number += frozen.appender.append_all(
                    partition,
                    values,
                    done=partial(taken_of_many, name, first),
                )
            else:
                value = b"%s %d" % (name.encode(), number)
                frozen.appender.append(
                    partition,
                    value,
                    done=lambda outcome, number=number: taken(name, number, outcome),
                )
                number += 1
        outcomes[name]["count"] = number

    threads = [threading.Thread(target=append, args=(name,)) for name in outcomes]
    for thread in threads:
        thread.start()

    # Test: the broker is down until a producer is replaced, then up until an append is accepted;
    # twice.
    def accepted():
        return sum(
            isinstance(outcome, Appended)
            for some in outcomes.values()
            for outcome in [*some.values()]
        )

    try:
        for _ in range(2):
            seen = replacements(caplog)
            frozen.cluster.pause(1)
            until(lambda seen=seen: replacements(caplog) > seen, "another producer")
            frozen.cluster.resume(1)
            known = accepted()
            until(lambda known=known: accepted() > known, "an acknowledgement")
    finally:
        enough.set()
        for thread in threads:
            thread.join()
    assert frozen.appender.flush(PATIENCE_S)

    # Check: each append has an outcome, none is stored twice, and accepted ones are in order.
    assert max(frozen.copies(partition).values()) == 1
    for some in outcomes.values():
        count = some.pop("count")
        assert sorted(some) == list(range(count))
        offsets = [some[n].offset for n in range(count) if isinstance(some[n], Appended)]
        assert offsets == sorted(offsets)


def test_an_appender_that_is_closed_in_an_outage_settles_all_that_it_holds(frozen):
    partition = frozen.topic()
    frozen.append_surely(partition, b"before")
    before = frozen.accepted()
    frozen.cluster.pause(1)
    for number in range(20):
        frozen.append(partition, b"%d" % number)
    frozen.appender.close(0.1)
    assert frozen.settled()
    assert frozen.accepted() == before


@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
def test_what_frozen_followers_do_not_acknowledge_in_time_is_stored_once(
    kafka_cluster_of_three, driver
):
    # Init
    cluster = kafka_cluster_of_three
    cluster.start()
    world = Ours(cluster, cluster.bootstrap, driver, delivery_timeout_s=DELIVERY_S)
    partition = world.topic()
    world.append_surely(partition, b"before")
    with Admin(cluster.bootstrap) as admin:
        ((_, leader, _, _),) = admin.holders([partition.topic])[partition.topic]
    followers = [number for number in (1, 2, 3) if number != leader]

    # Test: the leader stores everything and acknowledges nothing, until an append is given up that
    # started after another was given up: so each was tried for the full time-out.
    for follower in followers:
        cluster.pause(follower)
    try:
        pace = threading.Event()
        last = None
        for number in itertools.count():
            value = b"%d" % number
            world.append(partition, value)
            pace.wait(0.02)
            if last is None and world.failed():
                last = value
            if last is not None and world.outcomes[last] is not None:
                break
    finally:
        for follower in followers:
            cluster.resume(follower)
    until(world.settled, "the outcome of each")
    world.append_surely(partition, b"after")
    copies = world.copies(partition)
    world.close()

    # Check
    assert max(copies.values()) == 1
    assert world.accepted() <= set(copies)
