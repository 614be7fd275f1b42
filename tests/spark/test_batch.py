"""A table of ordered messages is what a plain consumer delivers, row by row."""

import pytest
from pyspark.errors import PySparkException

from multicast import LogPosition, nothing_after
from multicast.control import log_partition
from multicast.drivers.kafka import Admin
from multicast.spark import fold, state_after
from tests.spark.query import small_spark
from tests.spark.rows import INTERESTS, ON_SPARK, in_order, rows_of, send, send_oddities, table

pytestmark = ON_SPARK


@pytest.fixture(scope="module")
def session():
    with small_spark() as opened:
        yield opened


def test_a_table_is_what_a_consumer_delivers_row_by_row_over_epochs(session, amcast_topic):
    # Init: two epochs; in the second C1 reads P4, too. Covered messages, skips, transactions.
    topic = amcast_topic(INTERESTS)
    send(topic, 300)
    send_oddities(topic)
    wider = {**INTERESTS, "topic": topic.topic}
    wider["consumer"] = [
        {"name": "C1", "interest": ["P1", "P2", "P3", "P4"]},
        *INTERESTS["consumer"][1:],
    ]
    topic.replan(wider)
    send(topic, 300, seed=2)
    send_oddities(topic)

    for name in ("C1", "C2", "C5"):
        # Test.
        whole = rows_of(topic.drain(topic.consumer(name, committed=False)))
        frame = table(session, topic, consumer=name, maxRecordsPerPartition="50").load()
        got = in_order(frame)

        # Check: the same rows; any row's cursor is a place to begin and to end, here and there.
        assert got == whole
        assert len(whole) > 50
        middle = whole[len(whole) // 2][-1]
        tail = table(session, topic, consumer=name, startingOffsets=middle).load()
        assert in_order(tail) == whole[len(whole) // 2 + 1 :]
        head = table(session, topic, consumer=name, endingOffsets=middle).load()
        assert in_order(head) == whole[: len(whole) // 2 + 1]
        again = topic.consumer(name, committed=False, start=got[10][-1], group="again")
        assert rows_of(topic.drain(again)) == whole[11:]


@pytest.mark.campaign
def test_void_messages_are_no_rows_wherever_a_task_begins(session, amcast_topic):
    topic = amcast_topic(INTERESTS)
    start = LogPosition("P1+P3", 0)
    with topic.producer() as producer:
        receipts = [
            producer.multicast(
                b"%d" % number,
                to={"P1", "P3"} if number % 2 else {"P3", "P1"},
                tags=(tags := {f"seat:{number % 30}"}),
                expect=nothing_after(start, tags=tags) if number % 3 else None,
            )
            for number in range(300)
        ]
        void = sum(not receipt.decided(60).takes_effect for receipt in receipts)
    assert 100 < void < 300
    whole = rows_of(topic.drain(topic.consumer("C1", committed=False)))
    assert len(whole) == 300 - void
    frame = table(session, topic, consumer="C1", maxRecordsPerPartition="20").load()
    assert in_order(frame) == whole
    tail = table(session, topic, consumer="C1", startingOffsets=whole[20][-1]).load()
    assert in_order(tail) == whole[21:]


@pytest.mark.campaign
def test_an_error_names_itself_and_says_what_to_do(session, amcast_topic):
    topic = amcast_topic(INTERESTS)
    start = str(topic.consumer("C1", committed=False).position)
    send(topic, 50)

    def fails(**options):
        with pytest.raises(PySparkException) as raised:
            table(session, topic, **options).load().collect()
        return str(raised.value)

    assert "UncoveredInterest: no collector of epoch 1" in fails(interest="P1,P5")
    assert "UsageError: option 'path' is unknown" in fails(consumer="C1", path="x")
    with Admin(topic.bootstrap) as admin:
        admin.delete_records({log_partition(topic.plan.log("P1")): 3})
    gone = fails(consumer="C1", startingOffsets=start)
    assert "Trimmed: log P1 begins at offset 3" in gone
    topic.close()  # its own check at the end would read what is gone


@pytest.mark.campaign
@pytest.mark.parametrize(
    "settings",
    [
        {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
        {"spark.sql.ansi.enabled": "true", "spark.sql.ansi.enforceReservedKeywords": "true"},
    ],
    ids=["times without a zone", "reserved words"],
)
def test_a_table_is_the_same_whatever_the_sessions_sql_settings(session, amcast_topic, settings):
    topic = amcast_topic(INTERESTS)
    send(topic, 50)
    whole = rows_of(topic.drain(topic.consumer("C1", committed=False)))
    before = {name: session.conf.get(name) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        frame = table(session, topic, consumer="C1").load()
        got = in_order(frame)
        states = fold(frame, key="log", initial=0, step=lambda state, _: state + 1, state="int")
        last = state_after(states, key="log", epoch=1, position=50).collect()
    finally:
        for name, value in before.items():
            session.conf.set(name, value)
    assert got == whole
    assert sum(row.state for row in last) == len(whole)
