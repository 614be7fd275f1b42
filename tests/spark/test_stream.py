"""A stream of ordered messages: contiguous batches, and exactly on after kill -9 at any moment."""

import os
import random
import signal
import subprocess
import threading

import confluent_kafka
import pytest

from multicast.control import log_partition
from multicast.drivers.kafka_python import Admin
from tests.helpers.spark import INTERESTS, send, send_oddities, small_spark
from tests.helpers.streamed import StreamedQuery
from tests.helpers.system import until

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
        "ignore:unclosed <socket:ResourceWarning",
    ),
]
WIDER = [{"name": "C1", "interest": ["P1", "P2", "P3", "P4"]}, *INTERESTS["consumer"][1:]]


def delivered(topic, name="C1"):
    """What a plain consumer delivers, as message IDs."""
    messages = topic.drain(topic.consumer(name, committed=False))
    return [str(message.message_id) for message in messages]


def test_a_killed_query_goes_on_exactly_where_its_checkpoint_says(amcast_topic, tmp_path):
    # Init: 300 messages.
    topic = amcast_topic(INTERESTS)
    send(topic, 300)
    send_oddities(topic)
    query = StreamedQuery(topic, tmp_path, "sqlite", consumer="C1", maxOffsetsPerTrigger="20")

    # Test: kill the query between two of its small batches; the epoch changes while it is away.
    with query.running() as process:
        query.wait_for_batches(process, 2)
    topic.replan({**INTERESTS, "topic": topic.topic, "consumer": WIDER})
    send(topic, 300, seed=2)
    del query.document["options"]["maxOffsetsPerTrigger"]
    assert query.finish() == 0, query.log()
    assert query.finish() == 0, query.log()

    # Check: every message once, stored in the order in which a plain consumer delivers.
    assert query.messages() == delivered(topic)


class Sending:
    """Sends without end, in a thread, until the block ends."""

    def __init__(self, topic):
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def _run(self):
        number = 10
        while not self._stop.wait(0.2):
            send(self._topic, 20, seed=number)
            number += 1


@pytest.mark.campaign
@pytest.mark.parametrize("sink", ["sqlite", "files"])
def test_kills_at_random_moments_neither_lose_nor_double_a_row(amcast_topic, tmp_path, sink):
    rng = random.Random(7)
    topic = amcast_topic(INTERESTS)
    query = StreamedQuery(topic, tmp_path, sink, consumer="C1", maxOffsetsPerTrigger="50")
    pause = threading.Event()

    # Test: kill the driver six times, half of them while it starts; one change of the epoch.
    with Sending(topic):
        for turn in range(6):
            with query.running() as process:
                if turn % 2 == 0:
                    query.wait_for_batches(process, query.count() + 1)
                    pause.wait(rng.uniform(0, 2))
                else:
                    pause.wait(rng.uniform(2, 10))
            if turn == 2:
                topic.replan({**INTERESTS, "topic": topic.topic, "consumer": WIDER})
    del query.document["options"]["maxOffsetsPerTrigger"]
    assert query.finish() == 0, query.log()
    assert query.finish() == 0, query.log()

    # Check.
    if sink == "files":
        with small_spark() as session:
            rows = session.read.json(query.document["path"]).orderBy("epoch", "position")
            stored = [row.message_id for row in rows.select("message_id").collect()]
    else:
        stored = query.messages()
    assert stored == delivered(topic)
    assert len(stored) > 100


@pytest.mark.campaign
def test_killed_executors_neither_lose_nor_double_a_row(amcast_topic, tmp_path):
    """Executors are processes of their own here; Spark starts others in their place."""
    topic = amcast_topic(INTERESTS)
    query = StreamedQuery(topic, tmp_path, "sqlite", consumer="C1", maxRecordsPerPartition="20")
    cluster = {"spark.master": "local-cluster[2,1,512]", "spark.executor.memory": "512m"}
    with Sending(topic), query.running(**cluster) as process:
        for _ in range(2):
            query.wait_for_batches(process, query.count() + 2)
            executors = until_executors(process.pid)
            os.kill(executors[0], signal.SIGKILL)
        query.wait_for_batches(process, query.count() + 2)
    assert query.finish() == 0, query.log()
    assert query.finish() == 0, query.log()
    assert query.messages() == delivered(topic)


def until_executors(session):
    """The process IDs of a query's executors, once there is one."""
    pids = []

    def running():
        listed = subprocess.run(
            ["ps", "-ww", "-s", str(session), "-o", "pid=", "-o", "args="],
            capture_output=True,
            text=True,
            check=True,
        )
        lines = [line for line in listed.stdout.splitlines() if "CoarseGrainedExecutor" in line]
        pids[:] = [int(line.split()[0]) for line in lines]
        return pids

    until(running, "an executor", pause=0.1)
    return pids


@pytest.mark.campaign
def test_a_query_that_lags_behind_retention_ends_with_the_named_error(amcast_topic, tmp_path):
    topic = amcast_topic(INTERESTS)
    send(topic, 100)
    whole = delivered(topic)  # so all is ordered
    query = StreamedQuery(topic, tmp_path, "sqlite", consumer="C1", maxOffsetsPerTrigger="10")
    assert query.finish() == 0, query.log()

    # Test: P1 loses all its messages: more than 10, so some of them were not read, wherever in the
    # order they stand.
    with Admin(topic.bootstrap) as admin:
        ends = topic.driver.last_stable_offsets([log_partition(topic.plan.log("P1"))])
        admin.delete_records(ends)
    assert min(ends.values()) > 10
    del query.document["options"]["maxOffsetsPerTrigger"]
    assert query.finish() == 1, query.log()

    # Check.
    assert "Trimmed: log P1 begins at offset" in query.log()
    assert query.messages() == whole[:10]
    topic.close()  # its own check at the end would read what is gone


@pytest.mark.campaign
def test_a_large_message_of_a_log_that_lags_is_stored_in_its_place(amcast_topic, tmp_path):
    topic = amcast_topic(INTERESTS)
    send(topic, 100)
    log = topic.plan.log("P1")
    writer = confluent_kafka.Producer(
        {
            "bootstrap.servers": topic.bootstrap,
            "transactional.id": topic.topic,
            "transaction.timeout.ms": 900_000,  # the most that brokers allow
            "log_level": 0,
        }
    )
    writer.init_transactions(60)
    writer.begin_transaction()
    writer.produce(log.topic, bytes(900_000), partition=log.partition)
    assert writer.flush(60) == 0
    send(topic, 100, seed=2)
    query = StreamedQuery(topic, tmp_path, "sqlite", consumer="C1")

    # Test: run the query before and after the transaction that holds P1 back is committed.
    assert query.finish() == 0, query.log()
    before = query.messages()
    writer.commit_transaction(60)
    whole = delivered(topic)
    assert query.finish() == 0, query.log()

    # Check.
    assert before == whole[: len(before)]
    assert len(before) < len(whole)
    assert query.messages() == whole
