"""A wrong argument of a producer is a `UsageError`, and nothing else."""

import math

import pytest

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


@pytest.mark.parametrize("timeout", [math.inf, 1e10])
def test_a_time_out_may_be_as_long_as_one_likes(system, timeout):
    system.run_all()
    with system.producer() as producer:
        receipt = producer.multicast(b"", to={"P1"})
        assert receipt.ordered(timeout) == receipt.accepted(timeout)
