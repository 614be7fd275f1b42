"""A stream of ordered messages: contiguous batches, and exactly on after kill -9 at any moment."""

from contextlib import ExitStack
from random import Random

import confluent_kafka
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from multicast.errors import TopicChanged, UsageError
from multicast.spark import AmcastSource
from multicast.tables.arrow import schema
from tests.helpers.system import PATIENCE_S
from tests.spark.kills import PORTIONS, BackgroundSender, finish, kill, stored
from tests.spark.rows import INTERESTS, ON_SPARK, SETS, send
from tests.spark.streamed import StreamedQuery

pytestmark = [pytest.mark.timeout(1800), *ON_SPARK]  # the first one counts
WIDER = [{"name": "C1", "interest": ["P1", "P2", "P3", "P4"]}, *INTERESTS["consumer"][1:]]


def delivered(topic, name="C1"):
    """What a plain consumer delivers, as message IDs."""
    messages = topic.drain(topic.consumer(name, committed=False))
    return [str(message.message_id) for message in messages]


def query_of(topic, folder, sink="sqlite", **options):
    return StreamedQuery(topic.bootstrap, topic.topic, folder, sink, consumer="C1", **options)


def reader_of(topic, **options):
    """Open a stream's reader as Spark does."""
    known = {"kafka.bootstrap.servers": topic.bootstrap, "topic": topic.topic, **options}
    fields = StructType([StructField(name, StringType()) for name in schema().names])
    return AmcastSource(known).streamReader(fields)


def test_a_first_batch_begins_no_later_than_it_ends(amcast_topic):
    """With the trigger `availableNow` Spark asks for the end of the first batch, then its start."""
    topic = amcast_topic(INTERESTS)
    send(topic, 50)
    delivered(topic)  # so all is ordered
    reader = reader_of(topic, consumer="C1")
    try:
        # Test: more messages come and are ordered between the two calls.
        end = reader.latestOffset()
        send(topic, 50, seed=2)
        more = len(delivered(topic))
        start = reader.initialOffset()

        # Check: a stream begins at the latest offset, so its first batch is empty.
        assert more > 0
        assert start == end
        assert reader.partitions(start, end) == []
        later = reader.latestOffset()
        assert later != end
        assert reader.partitions(end, later) != []
    finally:
        reader.stop()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_first_batch_that_a_kill_has_interrupted_is_planned_again(amcast_topic, start):
    """After a restart Spark tells the end of that batch first, then asks for its start."""
    topic = amcast_topic(INTERESTS)
    send(topic, 50)
    delivered(topic)  # so all is ordered
    killed, restarted = (reader_of(topic, consumer="C1", startingOffsets=start) for _ in range(2))
    try:
        # Init: the first batch is planned.
        first = killed.initialOffset()
        send(topic, 50, seed=2)
        delivered(topic)
        end = killed.latestOffset()
        assert killed.partitions(first, end) != []

        # Test.
        assert restarted.partitions(end, end) == []
        again = restarted.initialOffset()

        # Check: "latest" was another place then; nothing begins behind the batch's end.
        assert again == (first if start == "earliest" else end)
        assert (restarted.partitions(again, end) == []) == (start == "latest")
        assert restarted.latestOffset() == end
    finally:
        killed.stop()
        restarted.stop()


def test_a_checkpoint_of_another_interest_or_of_a_topic_that_is_gone_is_refused(amcast_topic):
    # Init: a checkpoint of a reader of P1 and P3; there were messages to P2 meanwhile.
    topic, recreated = amcast_topic(INTERESTS), amcast_topic(INTERESTS)
    for each in (topic, recreated):
        send(each, 50)
        delivered(each)

    def opened(where, interest):
        return reader_of(where, interest=interest, startingOffsets="earliest")

    with ExitStack() as closed:
        closed.callback((narrow := opened(topic, "P1,P3")).stop)
        checkpoint = narrow.latestOffset()
        for where, interest, message in (
            (topic, "P1,P2,P3", "of another interest"),
            (recreated, "P1,P3", "is not the one that was read before"),
        ):
            # Test: the same offset is given to both methods that take one.
            closed.callback((reader := opened(where, interest)).stop)
            for call in (
                lambda: reader.partitions(checkpoint, checkpoint),
                lambda: reader.latestOffset(checkpoint, None),
            ):
                with pytest.raises((UsageError, TopicChanged), match=message) as raised:
                    call()
                assert "with a new checkpointLocation it begins" in str(raised.value)

        # Check: who wrote it may go on.
        closed.callback((again := opened(topic, "P3,P1")).stop)
        assert again.latestOffset(checkpoint, None) == checkpoint


@pytest.mark.parametrize("sink", ["sqlite", "files"])
def test_kills_at_random_moments_neither_lose_nor_double_a_row(amcast_topic, tmp_path, sink):
    """Of the driver and of executors."""
    topic = amcast_topic(INTERESTS)
    query = query_of(topic, tmp_path, sink, **PORTIONS)

    # Test: four turns, in the last of which executors are killed, too; then in another epoch.
    with BackgroundSender(topic, SETS, Random("7")):
        executors = kill(query, 7, Random(sink))
        topic.replan({**INTERESTS, "topic": topic.topic, "consumer": WIDER})
        executors += kill(query, 1, Random(sink))
    finish(query)

    # Check.
    assert executors == 3
    held = stored(query)
    assert held == delivered(topic)
    assert len(held) > 100


def test_a_message_above_the_fetch_limit_in_a_lagging_log_is_in_its_place(amcast_topic, tmp_path):
    topic = amcast_topic(INTERESTS)
    send(topic, 100)
    log = topic.plan.log("P1")
    writer = confluent_kafka.Producer(
        {
            "bootstrap.servers": topic.bootstrap,
            "transactional.id": topic.topic,
            "transaction.timeout.ms": 900_000,  # the most that brokers allow
            "message.max.bytes": 16_000_000,
            "log_level": 0,
        }
    )
    writer.init_transactions(60)
    writer.begin_transaction()
    # Far above what a client fetches of a partition at once, 1 MiB.
    writer.produce(log.topic, bytes(15_000_000), partition=log.partition)
    assert writer.flush(60) == 0
    send(topic, 100, seed=2)
    query = query_of(topic, tmp_path)

    # Test: run the query before and after the transaction that holds P1 back is committed.
    assert query.finish(PATIENCE_S) == 0, query.log()
    before = query.messages()
    writer.commit_transaction(60)
    whole = delivered(topic)
    assert query.finish(PATIENCE_S) == 0, query.log()

    # Check.
    assert before == whole[: len(before)]
    assert len(before) < len(whole)
    assert query.messages() == whole
