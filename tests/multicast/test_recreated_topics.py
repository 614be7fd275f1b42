"""A producer refuses a topic that is not the one that the plan was applied to."""

from dataclasses import replace

import pytest

from multicast.drivers.memory.driver import MemoryDriver
from multicast.errors import NotAuthorized, TopicChanged
from tests.helpers.plans import chain
from tests.helpers.small import Small


@pytest.fixture
def system():
    plan = chain()
    with Small(plan) as empty:
        ids = empty.driver.topic_ids(sorted({log.topic for log in plan.logs}))
    with Small(replace(plan, topic_ids=ids)) as running:
        yield running


def test_a_producer_is_not_opened_for_a_recreated_topic(system):
    system.producer().close()
    system.log.recreate("A")
    with pytest.raises(TopicChanged, match="topic A is not the one that epoch 1"):
        system.producer()


def test_the_order_is_not_followed_for_a_recreated_topic(system):
    with system.producer() as producer:
        receipt = producer.multicast(b"", to={"P1"})
        receipt.accepted()
        system.log.recreate("A")
        with pytest.raises(TopicChanged):
            receipt.ordered()


def test_a_topic_that_a_producer_may_not_see_does_not_hinder_it(system):
    class Hidden(MemoryDriver):
        def __init__(self, log):
            super().__init__(log)
            self.topic_ids = self.refuse

        def refuse(self, topics):
            del topics
            raise NotAuthorized("no right")

    system.producer(driver=Hidden(system.log)).close()
