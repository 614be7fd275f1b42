"""A producer refuses a topic that is not the one that the plan was applied to."""

from dataclasses import replace

import pytest

from multicast import Producer, topic_identity
from multicast.control import follower
from multicast.drivers.kafka_python import Admin, TopicSpec
from multicast.drivers.memory.driver import MemoryDriver
from multicast.errors import NotAuthorized, TopicChanged
from tests.helpers.plans import chain, poster
from tests.helpers.small import Small, until
from tests.helpers.system import System


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


@pytest.fixture
def often(monkeypatch):
    """Producers look all the time, not every few seconds."""
    monkeypatch.setattr(follower, "_EVERY_S", 0.01)
    monkeypatch.setattr(topic_identity, "_LOOK_EVERY_S", 0.01)


def refuses(call):
    def raised():
        try:
            call()
        except TopicChanged:
            return True
        return False

    return raised


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("tickets", [True, False])
def test_an_open_producer_refuses_a_recreated_topic_until_a_plan_is_applied_to_it(system, tickets):
    with system.producer(tickets=tickets) as producer:
        receipt = producer.multicast(b"", to={"P1"})
        receipt.accepted()
        system.log.recreate("A")
        until(refuses(lambda: producer.multicast(b"", to={"P1"})))
        for call in (
            lambda: producer.multicast_all([b""], to={"P2"}),
            lambda: producer.declares({"P2"}),
            receipt.ordered,
        ):
            assert refuses(call)()
        assert producer.counts().logs
        ids = system.driver.topic_ids(["A", *system.plan.topic_ids])
        system.propose(replace(chain(epoch=2), topic_ids=ids))
        until(lambda: not refuses(lambda: producer.multicast(b"", to={"P1"}))())


@pytest.mark.kafka
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("tickets", [True, False])
@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
def test_an_open_producer_refuses_a_topic_that_was_recreated_on_a_broker(
    kafka_cluster, tmp_path, driver, tickets
):
    bootstrap = kafka_cluster.bootstrap
    with (
        System(bootstrap, poster(), tmp_path, driver=driver) as running,
        Admin(bootstrap) as admin,
        Producer(bootstrap, topic=running.topic, driver=driver, tickets=tickets) as producer,
    ):
        name = running.topic
        receipt = producer.multicast(b"", to={"P1"})
        receipt.accepted()
        count = admin.partitions([name])[name]
        admin.delete_topics([name])
        admin.create_topics({name: TopicSpec(count)})
        until(refuses(lambda: producer.multicast(b"", to={"P1"})))
        with pytest.raises(TopicChanged, match="it was deleted and recreated"):
            receipt.ordered()


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
