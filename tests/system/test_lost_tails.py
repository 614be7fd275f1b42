"""A broker that is killed and loses the end of a partition: consumers stop by one named error."""

import random
import struct

import pytest

from multicast import Consumer, Producer
from multicast.control import log_partition, stream_partition
from multicast.errors import Truncated
from multicast.local.cluster import LocalCluster
from tests.helpers.plans import chain, priced
from tests.helpers.system import PATIENCE_S, System, until

pytestmark = [pytest.mark.campaign, pytest.mark.slow, pytest.mark.timeout(900)]
_BATCH = struct.Struct(">QI")  # the first offset, and how many bytes follow
# Whose partition is cut, and which one; C4 reads a log alone.
CUTS = [("C1", "P1"), ("C1", "order"), ("C4", "P4")]


def cut(data, topic, partition, rng):
    """Drop the newest batches of a partition, at least one; give the first offset that is lost.

    The broker must not run. It makes the indexes anew when it starts.
    """
    segment = max((data / f"{topic}-{partition}").glob("*.log"))
    raw, place, borders = segment.read_bytes(), 0, []
    while place + _BATCH.size <= len(raw):
        first, length = _BATCH.unpack_from(raw, place)
        if not length:  # space that was kept for later batches
            break
        borders.append((place, first))
        place += _BATCH.size + length
    place, first = rng.choice(borders[len(borders) // 2 :])
    with segment.open("r+b") as file:
        file.truncate(place)
    for index in segment.parent.glob(f"{segment.stem}.*index"):
        index.unlink()
    return first


@pytest.fixture(scope="module")
def cluster():
    with LocalCluster(brokers=1) as made:
        yield made


def write(system, count):
    """Send messages whose tickets order them; each is a batch of its own."""
    with Producer(topic=system.topic, driver=system.driver) as producer:
        for number in range(count):
            for to in ({"P1"}, {"P2"}, {"P4"}):
                producer.multicast(b"%d" % number, to=to).accepted(PATIENCE_S)


def stops(consumer):
    try:
        consumer.poll(0.5)
    except Truncated:
        return True
    return False


@pytest.mark.parametrize("driver", ["librdkafka", "kafka-python"])
@pytest.mark.parametrize(("name", "what"), CUTS)
def test_no_reader_goes_on_in_another_tail(cluster, tmp_path, name, what, driver):
    rng = random.Random(f"{name} {what} {driver}")
    (broker,) = cluster._need().brokers
    with System(cluster.bootstrap, priced(chain()), tmp_path, driver=driver) as system:
        subscribed = {"topic": system.topic, "name": name, "driver": system.driver}
        write(system, 30)
        with Consumer(**subscribed) as there:
            there.commit(list(there.until_end())[-1].cursor())
            plan = system.plan
            is_order = what == "order"
            at = stream_partition(plan, "K1") if is_order else log_partition(plan.log(what))
            cluster.kill(1)
            lost = cut(broker.data, *at, rng)
            cluster.restart(1)
            write(system, 60)
            assert system.driver.last_stable_offsets([at])[at] > lost + 30
            until(lambda: stops(there), "the error of the reader that was there")
        with pytest.raises(Truncated):
            deliver(subscribed)


def deliver(subscribed):
    """Go on from the commit, to the end."""
    with Consumer(**subscribed) as consumer:
        list(consumer.until_end(timeout=PATIENCE_S))
