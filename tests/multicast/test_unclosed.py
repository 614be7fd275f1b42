"""A producer that nobody closed says so, as an unclosed file does; one that is closed does not."""

import gc
import os
import warnings
from contextlib import ExitStack

import pytest

from multicast import Producer
from multicast.errors import UncoveredInterest
from tests.helpers.plans import chain
from tests.helpers.small import Small, until
from tests.helpers.system import EACH_DRIVER


def warned(use, *, wait=False):
    """The ResourceWarnings of producers that this call leaves open; wait for one."""

    def texts():
        gc.collect()
        return [str(each.message) for each in caught if "producer" in str(each.message)]

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
        return until(texts) if wait else texts()


@pytest.fixture
def small():
    with Small(chain()) as made:
        yield made


def test_a_producer_that_is_lost_without_close_warns(small):
    def use():
        small.producer().multicast(b"", to={"P1"}).accepted()

    assert warned(use) == ["unclosed producer of topic A"]


def test_a_closed_producer_does_not_warn(small):
    def use():
        with small.producer() as producer:
            producer.multicast(b"", to={"P1"})

    assert warned(use) == []


def test_a_producer_that_was_not_opened_does_not_warn(small):
    def use():
        with pytest.raises(UncoveredInterest):
            Producer(topic="B", driver=small.driver)

    assert warned(use) == []


def test_a_forked_process_does_not_warn_of_its_parents_producer(small):
    held = [small.producer()]
    child = os.fork()
    if not child:
        os._exit(len(warned(held.clear)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    held.pop().close()


@pytest.mark.parametrize("driver", EACH_DRIVER)
def test_a_real_producer_that_is_lost_without_close_warns(amcast_topic, driver):
    topic = amcast_topic({"consumers": {"C1": {"P1", "P2"}, "C2": {"P2"}}})

    def use():
        producer = Producer(topic.bootstrap, topic=topic.topic, driver=driver)
        producer.multicast(b"", to={"P1"}).accepted()
        left.callback(producer._opened.close)
        left.callback(producer._appender.close)
        left.callback(producer._learning.close)

    with ExitStack() as left:  # its parts, which would warn in other tests
        assert warned(use, wait=True) == [f"unclosed producer of topic {topic.topic}"]
