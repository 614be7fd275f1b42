"""A user who signs in by password (SASL), with rights and without: joint appender and offsets."""

import contextlib
import socket

import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, KafkaPythonDriver, TopicSpec
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import AccessDenied, AppendNotAuthorized, NotAuthorized
from tests.helpers.authorized import authorized_broker, client_settings
from tests.helpers.driver_worlds import PATIENCE_S, append_all

pytestmark = pytest.mark.kafka
MINE, OTHERS = TopicPartition("mine", 0), TopicPartition("others", 0)


@pytest.fixture(scope="module")
def broker():
    with authorized_broker() as broker:
        with Admin(broker.operator) as admin:
            admin.create_topics({MINE.topic: TopicSpec(1), OTHERS.topic: TopicSpec(1)})
        yield broker


@contextlib.contextmanager
def appended(broker, client, *partitions):
    with KafkaPythonDriver(broker.users, client) as driver:
        appender = driver.appender()
        outcomes = {partition: [] for partition in partitions}
        for partition in partitions:
            appender.append(partition, b"x", done=outcomes[partition].append)
        assert appender.flush(PATIENCE_S)
        yield appender, outcomes
        appender.close()


def test_a_user_writes_where_he_may_and_learns_where_he_may_not(broker):
    client = broker.user(("Write", "topic", "mine"), ("Describe", "topic", "others"))
    with appended(broker, client, OTHERS, MINE) as (appender, outcomes):
        assert isinstance(outcomes[MINE][0], Appended)
        assert isinstance(outcomes[OTHERS][0].error, AppendNotAuthorized)
        broker.grant(client, ("Write", "topic", "others"))
        appender.append(OTHERS, b"y", done=outcomes[OTHERS].append)
        assert appender.flush(PATIENCE_S)
        assert outcomes[OTHERS][1:] == [Appended(0)]


def test_a_user_who_may_see_no_topic_and_one_who_may_write_to_none_learn_it(broker):
    for rights in ((), (("Describe", "topic", "mine"),)):
        with appended(broker, broker.user(*rights), MINE) as (_, outcomes):
            (outcome,) = outcomes[MINE]
            assert isinstance(outcome.error, AppendNotAuthorized), rights
            assert "right" in str(outcome.error)


def test_a_user_signs_in_by_scram_and_again_after_a_broken_connection(broker):
    client = broker.by_scram(broker.user(("Write", "topic", "mine")))
    with appended(broker, client, MINE) as (appender, outcomes):
        appender._dispatcher.links[1].socket.shutdown(socket.SHUT_RDWR)
        appender.append(MINE, b"again", done=outcomes[MINE].append)
        assert appender.flush(PATIENCE_S)
        first, second = outcomes[MINE]
        assert second == Appended(first.offset + 1)


@pytest.mark.parametrize("driver", ["kafka-python", "librdkafka"])
def test_a_name_may_contain_the_signs_that_separate_the_parts_of_scram(broker, driver):
    client = broker.by_scram(client_settings(f"{driver}==,1"))
    broker.grant(client, ("Write", "topic", "mine"))
    with (
        open_driver(driver, broker.users, client) as opened,
        contextlib.closing(opened.appender()) as appender,
    ):
        (outcome,) = append_all(appender, MINE, [b"x"])
    assert isinstance(outcome, Appended)
    with pytest.raises(AccessDenied, match=f"user {driver}==,1"):
        open_driver(driver, broker.users, {**client, "sasl.password": "wrong"})


def test_a_commit_names_the_topics_that_the_user_may_not_read_and_no_others(broker):
    client = broker.user(("Read", "topic", "mine"), ("Read", "group", "g"))
    with KafkaPythonDriver(broker.users, client) as driver:
        with pytest.raises(NotAuthorized, match="lacks the right Read on topic others at"):
            driver.commit("g", {MINE: (1, ""), OTHERS: (2, "")})
        with pytest.raises(NotAuthorized, match="lacks the right Describe on topic others at"):
            driver.committed("g", [MINE, OTHERS])
        with pytest.raises(NotAuthorized, match="lacks the right Read on group h at"):
            driver.commit("h", {MINE: (1, "")})
        broker.grant(client, ("Read", "topic", "others"))
        driver.commit("g", {MINE: (1, ""), OTHERS: (2, "two")})
        assert driver.committed("g", [OTHERS]) == {OTHERS: (2, "two")}
