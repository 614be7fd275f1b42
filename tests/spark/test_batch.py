"""A table of ordered messages is what a plain consumer delivers, row by row."""

import pytest

from tests.helpers.spark import (
    INTERESTS,
    in_order,
    rows_of,
    send,
    send_oddities,
    small_spark,
    table,
)

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # pyspark leaves the sockets of its answers to the garbage collector.
    pytest.mark.filterwarnings(
        "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning",
        "ignore:unclosed <socket:ResourceWarning",
    ),
]


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
