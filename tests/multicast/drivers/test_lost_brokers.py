"""librdkafka drops all its brokers when one names none; its reader continues."""

import contextlib
import uuid

import pytest

from multicast.drivers.kafka import Admin, KafkaPythonDriver, TopicSpec
from multicast.drivers.librdkafka_reader import LibrdkafkaDriver
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable
from tests.helpers.driver_worlds import append_all
from tests.helpers.system import until
from tests.multicast.drivers.doors import Door

pytestmark = pytest.mark.timeout(600)
TIMEOUT_S = 1.0


@pytest.fixture
def topic(kafka_cluster):
    name = f"lost-{uuid.uuid4().hex[:8]}"
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({name: TopicSpec(2)})
    return name


@pytest.fixture
def behind(kafka_cluster):
    """A broker that can name none, and a driver whose clients know no other one."""
    places = {}
    with (
        contextlib.closing(Door(kafka_cluster.bootstrap, places)) as broker,
        LibrdkafkaDriver(
            broker.address,
            delegate=KafkaPythonDriver(kafka_cluster.bootstrap),
            request_timeout_s=TIMEOUT_S,
        ) as driver,
    ):
        places[1] = broker.place
        yield broker, driver


def append(driver, partition, values):
    with contextlib.closing(driver.appender()) as appender:
        outcomes = append_all(appender, partition, values)
    assert all(isinstance(outcome, Appended) for outcome in outcomes)


def poll(reader, records):
    with contextlib.suppress(AmcastError):  # the brokers are unreachable for a while
        for fetched in reader.poll(0.1):
            records.setdefault(fetched.partition.partition, []).extend(
                (record.offset, record.value) for record in fetched.records
            )


def test_a_reader_whose_broker_named_none_continues_at_its_positions(kafka_cluster, behind, topic):
    # Init: a reader of two logs; one is paused, and has records that are kept for it.
    broker, driver = behind
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    values = [b"%d" % number for number in range(20)]
    records = {}
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(KafkaPythonDriver(kafka_cluster.bootstrap))
        append(other, first, values[:10])
        append(other, second, values[:10])
        reader = stack.enter_context(contextlib.closing(driver.reader({first: 3, second: 0})))
        reader.pause([second])
        until(lambda: poll(reader, records) or len(records.get(0, [])) >= 7, "ten")

        # Test: the broker names no broker once, and then itself again; both logs have grown.
        broker.fenced = True
        until(lambda: poll(reader, records) or broker.named_none.is_set(), "none")
        broker.fenced = False
        append(other, first, values[10:])
        append(other, second, values[10:])
        until(lambda: poll(reader, records) or len(records[0]) >= 17, "the rest")
        before = set(records)
        reader.resume([second])
        until(lambda: poll(reader, records) or len(records.get(1, [])) >= 20, "both")
        replaced = reader.replaced

    # Check: each record once, in order, and none of the paused log.
    assert before == {0}
    assert records[0] == list(enumerate(values))[3:]
    assert records[1] == list(enumerate(values))
    # Again, where the next client asked before the broker named itself.
    assert replaced >= 1, "librdkafka keeps its brokers now: say so in docs/hazards.md"


def test_a_reader_whose_broker_is_away_keeps_its_client(behind, topic):
    broker, driver = behind
    with contextlib.closing(driver.reader({TopicPartition(topic, 0): 0})) as reader:
        broker.close()
        unreachable = []

        def raised():
            try:
                reader.poll(0.1)
            except ClusterUnreachable as error:
                unreachable.append(error)
            return len(unreachable) > 1

        until(raised, "two errors")
        assert reader.replaced == 0
