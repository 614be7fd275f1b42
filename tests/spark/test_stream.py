"""A stream of ordered messages: contiguous batches, and exactly on after kill -9 at any moment."""

import random
import threading

import pytest

from tests.helpers.spark import INTERESTS, send, send_oddities, small_spark
from tests.helpers.streamed import StreamedQuery

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
