"""A cluster that is away for a moment costs a consumer time, and nothing else."""

import pytest

from multicast.errors import ClusterUnreachable
from tests.helpers.plans import chain
from tests.helpers.small import Small, until
from tests.multicast.test_poison import end_epoch, next_plan, write

REQUESTS = ("last_stable_offsets", "leader_ends", "topic_ids")


class Failing:
    """A driver of which one request to the cluster fails."""

    def __init__(self, driver):
        self._driver = driver
        self.calls = 0
        self.fails_at = None

    def __getattr__(self, name):
        call = getattr(self._driver, name)
        if name not in REQUESTS:
            return call

        def request(*arguments, **options):
            self.calls += 1
            if self.calls == self.fails_at:
                raise ClusterUnreachable("no broker answered")
            return call(*arguments, **options)

        return request


def two_epochs(system):
    """P4, a single-log subscription, has a message in each of two epochs; K2 orders the second."""
    write(system, b"one", 2, b"two")
    next_plan(system)
    end_epoch(system, 2)


def read(consumer):
    """Poll until both are delivered; give them, and how often the cluster was unreachable."""
    delivered, away = [], []

    def poll():
        try:
            delivered.extend((b.epoch, r.value) for b in consumer.poll(0.01) for r in b.records)
        except ClusterUnreachable as error:
            away.append(error)
        return len(delivered) >= 2

    until(poll)
    return delivered, len(away)


@pytest.mark.parametrize("fails_at", range(1, 5))
def test_a_call_that_fails_while_an_epoch_turns_is_made_again(fails_at):
    with Small(chain()) as system:
        two_epochs(system)
        driver = Failing(system.driver)
        system.driver = driver
        with system.consumer("C4") as consumer:
            driver.calls, driver.fails_at = 0, fails_at
            delivered, away = read(consumer)
        assert delivered == [(1, b"one"), (2, b"two")]
        assert away == (driver.calls >= fails_at)
        assert driver.calls > 1
