"""Wrong input of `amcast bench pipeline`: one sentence, code 2; trimmed events are not judged."""

import contextlib
import itertools
import json
import uuid

import pytest

from bench.comparison.arms import Arm, MeasuredCluster
from bench.comparison.events import PARTITIONS, events_topic
from bench.comparison.workload import from_document
from bench.pipeline.cli import pipeline
from bench.pipeline.inputs import check_events, claim
from bench.pipeline.session import spark
from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.errors import UsageError
from tests.helpers.system import PATIENCE_S

# pyspark leaves the sockets of its answers to the garbage collector.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
    "ignore:unclosed <socket:ResourceWarning",
)


class TopicCounts:
    """A cluster's topics, with the number of their Kafka partitions."""

    def __init__(self, **counts):
        self.counts = {events_topic(run): count for run, count in counts.items()}

    def partitions(self, topics):
        return {topic: self.counts[topic] for topic in topics if topic in self.counts}


def test_a_run_without_events_or_with_trimmed_events_is_refused():
    topics = TopicCounts(r1=2, r2=2)
    log = MemoryLog(topics.counts)
    driver = MemoryDriver(log)
    for topic, number in itertools.product(topics.counts, range(2)):
        log.write(TopicPartition(topic, number), b"an event")
    check_events(topics, driver, ["r1", "r2"])
    with pytest.raises(UsageError, match=r"no topic nosuch\.events, so run nosuch has no events"):
        check_events(topics, driver, ["r1", "nosuch"])
    log.trim(TopicPartition("r2.events", 1), 1)
    check_events(topics, driver, ["r1"])
    with pytest.raises(UsageError, match="partition 1 begins at offset 1") as refused:
        check_events(topics, driver, ["r1", "r2"])
    assert str(refused.value).startswith("topic r2.events has lost its oldest events")


def test_a_folder_that_holds_anything_is_refused(tmp_path):
    claim(str(tmp_path / "new" / "out"))
    claim(str(tmp_path / "new" / "out"))  # Spark did not start
    with pytest.raises(UsageError, match="is not empty; name another folder"):
        claim(str(tmp_path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="cannot be used for --out"):
        claim(str(tmp_path / "file"))


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("interrupted", [True, False])
def test_a_run_that_was_interrupted_is_not_complete(kafka_cluster, tmp_path, interrupted):
    """What it lacks is not lost, and that nothing is lost says nothing."""
    asked = {"kind": "plain", "size": 2, "message_bytes": 100, "load": 100, "messages": 10}
    run = f"i{uuid.uuid4().hex}"
    with contextlib.closing(open_driver("librdkafka", kafka_cluster.bootstrap)) as driver:
        cluster = MeasuredCluster(kafka_cluster.bootstrap, driver, (), tmp_path, run=run)
        workload = from_document(asked, name="w")
        with contextlib.suppress(KeyboardInterrupt), Arm(workload, "plain", cluster):
            if interrupted:
                raise KeyboardInterrupt
        described = TopicPartition(events_topic(run), 0)
        (end,) = driver.last_stable_offsets([described]).values()
        with contextlib.closing(driver.reader({described: 0})) as reader:
            records = [record for found in reader.poll(PATIENCE_S) for record in found.records]
    kinds = [json.loads(record.value)["kind"] for record in records]
    assert kinds == (["arm"] if interrupted else ["arm", "end"])
    assert len(kinds) == end


@pytest.fixture(scope="module")
def session():
    with spark(settings={"spark.sql.shuffle.partitions": "2"}, progress=str) as opened:
        yield opened


@pytest.mark.kafka
@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_trimmed_events_are_refused_by_spark_too(kafka_cluster, session):
    """With --kafka only Spark can reach the brokers."""
    assert session is not None
    run = f"t{uuid.uuid4().hex}"
    topic = events_topic(run)
    described = {"kind": "arm", "run": run, "arm": "plain", "topic": run, "planned": False}
    described |= {"clock_offset_ns": 0, "consumers": []}
    with (
        Admin(kafka_cluster.bootstrap) as admin,
        contextlib.closing(open_driver("librdkafka", kafka_cluster.bootstrap)) as driver,
    ):
        admin.create_topics({topic: TopicSpec(PARTITIONS)})
        appender, outcomes = driver.appender(), []
        for number in range(PARTITIONS):
            for _ in range(2):
                event = json.dumps(described).encode()
                appender.append(TopicPartition(topic, number), event, done=outcomes.append)
        assert appender.flush(PATIENCE_S)
        appender.close()
        admin.delete_records({TopicPartition(topic, 1): 2, TopicPartition(topic, 2): 1})
    for options in ({"kafka": ["client.id=x"]}, {}):
        with pytest.raises(UsageError, match="has lost its oldest events"):
            pipeline([run], bootstrap=kafka_cluster.bootstrap, **options)
