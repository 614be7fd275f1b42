"""An agent of Faust over an ordered stream, as a process of its own, on a real broker."""

from pathlib import Path

import pytest

from collectors.testing.running import RunningTopic
from tests.helpers.faust_worker import FaustWorker, runs_of
from tests.helpers.system import PATIENCE_S, until

pytestmark = pytest.mark.timeout(600)

PROGRAM = Path(__file__).with_name("agent_program.py")
INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}, "destinations": [{"P1", "P2"}]}
WIDER = {"consumers": {"C1": {"P1", "P2", "P3"}, "C2": {"P2", "P3"}}}
SETS = ({"P1"}, {"P2"}, {"P1", "P2"})


@pytest.fixture
def topic(kafka_cluster):
    with RunningTopic(kafka_cluster.bootstrap, INTERESTS) as running:
        yield running


@pytest.fixture
def worker(topic, tmp_path):
    return FaustWorker(PROGRAM, topic.bootstrap, topic.topic, tmp_path)


def send(topic, first, count, sets=SETS):
    with topic.producer() as producer:
        receipts = [
            producer.multicast(b"%d" % number, to=sets[number % len(sets)])
            for number in range(first, first + count)
        ]
        for receipt in receipts:
            receipt.ordered(PATIENCE_S)


def in_order(topic):
    with topic.consumer("C1", committed=False) as consumer:
        return [message.payload.decode() for message in topic.drain(consumer)]


def committed(topic, order, group):
    """Count the messages before the group's cursor."""
    with topic.consumer("C1", group=group) as consumer:
        return len(order) - len(topic.drain(consumer))


def test_a_killed_worker_goes_on_at_its_cursor_in_order_and_with_its_table_also_in_a_new_epoch(
    topic, worker
):
    send(topic, 0, 200)
    with worker.running():
        worker.wait(200)
        until(
            lambda: committed(topic, in_order(topic), worker.app_id) >= 200, "a commit", pause=0.5
        )
        send(topic, 200, 100)
        worker.wait(300)
    # Killed. What is sent now has an order of a new epoch for a part.
    order = in_order(topic)
    before, first = committed(topic, order, worker.app_id), len(worker.lines())
    assert 200 <= before <= 300
    with worker.running() as process:
        send(topic, 300, 50)
        topic.replan(WIDER)
        send(topic, 350, 50, (*SETS[:2], {"P3"}))
        worker.wait(400)
        assert worker.ends(process) == 0
    order = in_order(topic)
    assert len(order) == 400
    runs = runs_of(worker.payloads(), order)
    # The second worker began at the cursor that the first one had committed, and saw no gap.
    assert runs == [[0, 299], [before, 399]] if before < 300 else runs == [[0, 399]]
    # The table has all updates of what was committed: an update is stored before the commit.
    counts = [int(count) for _, count in worker.lines()]
    assert counts[:first] == list(range(1, first + 1))
    assert counts[first] > before
    assert counts[first:] == list(range(counts[first], counts[first] + len(counts) - first))
    # The worker that was asked to end has committed everything.
    assert committed(topic, order, worker.app_id) == 400


@pytest.mark.campaign
@pytest.mark.parametrize("agent", ["plain", "take", "yields"])
def test_an_agent_that_fails_gets_the_same_messages_again(topic, worker, agent):
    send(topic, 0, 60)
    order = in_order(topic)
    with worker.running(AGENT=agent, FAIL_AT=f"{order[0]} {order[10]} {order[43]}") as process:
        worker.wait(60)
        assert worker.ends(process) == 0
    runs = runs_of(worker.payloads(), order, worker.log())
    if agent == "take":  # the list in which it failed comes again, or more than that list
        assert len(runs) <= 3
        assert runs[-1][1] == 59
    else:
        assert runs == [[0, 59]]
    assert committed(topic, order, worker.app_id) == 60


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize(
    ("env", "sentence"),
    [
        pytest.param({"CONSUMER": "C9"}, "C9", marks=pytest.mark.campaign),
        ({"AGENT": "pair"}, "concurrency=2"),
    ],
)
def test_a_stream_that_cannot_be_read_in_order_ends_the_worker_with_a_sentence(
    worker, env, sentence
):
    with worker.running(**env) as process:
        assert process.wait(PATIENCE_S) == 1, worker.log()
    assert sentence in worker.log()
    assert worker.lines() == []
