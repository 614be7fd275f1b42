"""Offsets of groups that a user may not store or see: the error names what is lacking, no more."""

import pytest

from multicast.drivers.kafka import Admin, KafkaPythonDriver, TopicSpec
from multicast.drivers.protocol import TopicPartition
from multicast.errors import NotAuthorized
from tests.helpers.authorized import authorized_broker

pytestmark = pytest.mark.kafka
MINE, OTHERS = TopicPartition("mine", 0), TopicPartition("others", 0)


def test_a_commit_names_the_topics_that_the_user_may_not_read_and_no_others():
    with authorized_broker() as broker:
        with Admin(broker.operator) as admin:
            admin.create_topics({MINE.topic: TopicSpec(1), OTHERS.topic: TopicSpec(1)})
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
