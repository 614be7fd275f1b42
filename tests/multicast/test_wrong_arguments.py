"""A wrong argument of a producer is a `UsageError`, and nothing else."""

import math
from functools import partial

import numpy as np
import pytest

from collectors.membership import group_of
from multicast import Consumer, Producer
from multicast.errors import UsageError
from tests.helpers.plans import chain
from tests.helpers.small import Small


@pytest.fixture
def system():
    with Small(chain()) as running:
        yield running


@pytest.mark.parametrize(
    "options",
    [
        {"client": {"linger.ms": 5}},
        {"linger_ms": -1},
        {"delivery_timeout_s": 0},
        {"delivery_timeout_s": math.nan},
        {"request_timeout_s": math.inf},
        {"block_s": math.nan},
    ],
)
def test_settings_that_make_no_sense_are_refused_at_the_opening(system, options):
    with pytest.raises(UsageError, match=r"put the value in quotes|give a number of"):
        system.producer(**options)


def test_calls_with_wrong_arguments_are_refused_before_anything_is_sent(system):
    with system.producer(partitioner=lambda _key, _count: None) as producer:
        for call in (
            lambda: producer.multicast_all((b"" for _ in range(2)), to={"P1"}),
            lambda: producer.multicast_all({b"a"}, to={"P1"}),
            lambda: producer.multicast_all([b"a", b"b"], to={"P1"}, headers=[None, {}]),
            lambda: producer.multicast(b"", to={"P1"}, expect="x"),
            lambda: producer.multicast(b"", key=b"k"),
        ):
            with pytest.raises(UsageError):
                call()
        assert not producer.counts().logs


HALF = "\udc80"  # of a surrogate pair, as os.fsdecode gives it for a byte that is no UTF-8
NO_SETS = [5, [["P1"]], [5], [HALF], "P1"]


def refused(call, text):
    """The call raises a `UsageError` with this text, which can be printed."""
    with pytest.raises(UsageError, match=text) as caught:
        call()
    str(caught.value).encode()


@pytest.mark.parametrize("topic", [HALF, 5, None, b"A", "", "a b"])
@pytest.mark.parametrize("client", [Producer, partial(Consumer, name="C1")])
def test_what_is_no_name_of_a_topic_is_refused(system, client, topic):
    refused(lambda: client(topic=topic, driver=system.driver), "is not a valid name")


@pytest.mark.parametrize("bootstrap", [HALF, "", " ", "127.0.0.1:9092,,", None, "kafka://a:9092"])
@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
def test_what_is_no_address_of_a_broker_is_refused(bootstrap, driver):
    refused(lambda: Producer(bootstrap, topic="A", driver=driver), "the bootstrap addresses are")


@pytest.mark.parametrize("names", NO_SETS)
def test_what_is_no_set_of_names_is_refused(system, names):
    with system.producer() as producer, system.consumer("C1") as consumer:
        for call in (
            lambda: system.consumer(None, interest=names),
            lambda: consumer.seen(names),
            lambda: producer.declares(names),
            lambda: producer.multicast(b"", to=names),
            lambda: producer.multicast_all([b""], to=names),
            lambda: producer.multicast(b"", to={"P1"}, within=names),
            lambda: producer.multicast(b"", to={"P1"}, tags=names),
        ):
            refused(call, "set of|is no name of|is not a tag")
        assert not producer.counts().logs


@pytest.mark.parametrize(
    "options", [{"client": 5}, {"client": {5: "a"}}, {"linger_ms": "1"}, {"block_s": "1"}]
)
def test_settings_of_another_type_are_refused(system, options):
    refused(lambda: system.producer(**options), "by their names|give a number of")


@pytest.mark.parametrize("timeout", [math.inf, 1e10])
def test_a_time_out_may_be_as_long_as_one_likes(system, timeout):
    system.run_all()
    with system.producer() as producer:
        receipt = producer.multicast(b"", to={"P1"})
        assert receipt.ordered(timeout) == receipt.accepted(timeout)


@pytest.mark.parametrize("timeout", ["1", None])
def test_what_is_no_number_of_seconds_is_refused(system, timeout):
    system.run_all()
    with system.producer() as producer, system.consumer("C1") as consumer:
        receipt = producer.multicast(b"", to={"P1"})
        receipts = producer.multicast_all([b""], to={"P1"})
        for call in (
            partial(receipt.accepted, timeout),
            partial(receipt.ordered, timeout),
            partial(receipt.decided, timeout),
            partial(receipts.accepted, timeout),
            partial(receipts.ordered, timeout),
            partial(producer.flush, timeout),
            partial(consumer.poll, timeout),
            lambda: next(consumer.until_end(timeout=timeout)),
        ):
            refused(call, "give a number of seconds")


def test_a_time_that_is_over_is_no_wrong_argument(system):
    with system.producer(tickets=False) as producer, system.consumer("C1") as consumer:
        receipt = producer.multicast(b"", to={"P1"})
        assert receipt.accepted() == receipt.accepted(-1) == receipt.accepted(np.float32(0))
        assert consumer.poll(-1) == []


def test_a_number_of_messages_may_be_one_of_numpy(system):
    system.run_all()
    with system.producer() as producer, system.consumer("C1") as consumer:
        producer.multicast_all([b"a", b"b"], to={"P1"}).ordered()
        (batch,) = consumer.poll(messages_max=np.int64(1))
        assert len(batch.records) == 1


@pytest.mark.parametrize("client", [Producer, partial(Consumer, name="C1")])
def test_no_driver_is_refused(client):
    refused(lambda: client("127.0.0.1:1", topic="A", driver=None), "Unknown driver None")


def test_a_share_of_traces_that_is_no_number_is_refused(system):
    refused(lambda: system.producer(tracing="on"), "a share of the messages")


@pytest.mark.parametrize("options", [{"name": ""}, {"interest": {""}}, {"interest": {"P1", ""}}])
def test_a_name_that_is_empty_is_refused(system, options):
    refused(lambda: system.consumer(**{"name": None, **options}), "'' is no name of")


@pytest.mark.parametrize("group", ["", 5, HALF])
def test_what_is_no_name_of_a_group_is_refused(system, group):
    refused(lambda: system.consumer("C1", group=group), "is no name of a group")


def test_a_consumer_does_not_take_the_group_of_the_collectors(system):
    group = group_of("A").rpartition(".")[2]
    refused(lambda: system.consumer("C1", group=group), f"{group_of('A')} is that of the coll")


def test_a_batch_is_no_place_and_its_payloads_stay_out_of_the_error(system):
    system.run_all()
    with system.producer() as producer, system.consumer("C1") as consumer:
        producer.multicast(b"secret", to={"P1"}).ordered()
        (batch,) = consumer.poll()
        for call in (consumer.commit, consumer.seek):
            with pytest.raises(UsageError, match="Batch") as caught:
                call(batch)
            assert "secret" not in str(caught.value)
