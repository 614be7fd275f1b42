"""Clients refuse topics that are not those that the plan was applied to; collectors begin anew."""

from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import pytest

from collectors.reconfiguration.apply import apply, unapplied
from collectors.reconfiguration.topics import topics_of
from multicast import Consumer, Producer
from multicast.control import control_topics, follower, topic_identity
from multicast.drivers.kafka import Admin
from multicast.drivers.memory.driver import MemoryDriver
from multicast.errors import AmcastError, ClusterUnreachable, NotAuthorized, TopicChanged
from tests.helpers.plans import chain, poster
from tests.helpers.small import Small, until, values
from tests.helpers.system import PATIENCE_S, System


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
    monkeypatch.setattr(follower, "_WAIT_S", 0.01)
    monkeypatch.setattr(topic_identity, "_LOOK_EVERY_S", 0.01)


def test_what_a_look_found_of_an_earlier_plan_says_nothing_of_the_next_one():
    plan = replace(chain(), topic_ids={"A": "an ID"})

    class Seeking:
        """The consumer begins at another place while the cluster answers."""

        def topic_ids(self, topics, *, timeout_s=None):
            assert timeout_s, "who closes the consumer waits for the look"
            watch.begin(plan, topics)
            return {}

    watch = topic_identity.TopicWatch(Seeking())
    watch.begin(plan, ["A"])
    watch.look()


def refuses(call):
    """Whether a call raises `TopicChanged`: with its reader's errors before that, it does not."""

    def raised():
        try:
            call()
        except TopicChanged:
            return True
        except AmcastError:
            return False
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

        def refuse(self, topics, **options):
            del topics, options
            raise NotAuthorized("no right")

    system.producer(driver=Hidden(system.log)).close()


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("name", ["C1", "C4"])  # C4 reads one log, which is its own order
def test_an_open_consumer_refuses_a_recreated_topic_though_it_is_read_from_its_start(system, name):
    with system.consumer(name, start="earliest") as consumer:
        assert consumer.poll(0.1) == []
        system.log.recreate("A")
        until(refuses(lambda: consumer.poll(0.01)))
        assert refuses(lambda: next(iter(consumer)))()
        ids = system.driver.topic_ids(["A", *system.plan.topic_ids])
        system.propose(replace(chain(epoch=2), topic_ids=ids))
        assert refuses(lambda: consumer.poll(0.01))()  # its position is of the old topic


@pytest.mark.usefixtures("often")
def test_a_consumer_goes_on_where_the_cluster_cannot_say_whether_a_topic_was_recreated(system):
    def fail(topics, **options):
        del topics, options
        raise ClusterUnreachable("no broker answered")

    driver = MemoryDriver(system.log)
    with Consumer(topic="A", name="C4", driver=driver) as consumer:
        driver.topic_ids = fail
        with system.producer() as producer:
            for payload in (b"1", b"2"):
                producer.multicast(payload, to={"P4"}).accepted()
                assert until(lambda: consumer.poll(0.1))[0].records[0].value == payload


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("often")
def test_a_process_of_collectors_begins_anew_where_all_topics_were_recreated(
    kafka_cluster, tmp_path
):
    bootstrap = kafka_cluster.bootstrap
    with System(bootstrap, poster(), tmp_path) as running, Admin(bootstrap) as admin:
        name = running.topic
        running.order()
        options = {"topic": name, "interest": {"P1", "P2", "P3"}}
        with ExitStack() as opened:
            consumers = [
                opened.enter_context(Consumer(bootstrap, **options, driver=driver))
                for driver in ("librdkafka", "kafka-python")
            ]
            with Producer(bootstrap, topic=name) as producer:
                producer.multicast(b"old", to={"P1"}).ordered(PATIENCE_S)
            for consumer in consumers:
                assert values(until(partial(consumer.poll, 0.1))) == [b"old"]

            admin.delete_topics([*topics_of(running.plan), *control_topics(name)])
            apply(running.driver, admin, unapplied(running.plan))
            with Producer(bootstrap, topic=name) as producer:
                producer.multicast(b"new", to={"P1"}).ordered(PATIENCE_S)
            with Consumer(bootstrap, **options) as anew:
                assert values(anew.until_end(timeout=PATIENCE_S)) == [b"new"]
            for consumer in consumers:
                until(refuses(lambda: consumer.poll(0.1)))  # noqa: B023 - called in this turn
