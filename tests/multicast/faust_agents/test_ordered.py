"""An agent of Faust over an ordered stream, as a process of its own, on a real broker."""

import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

from collectors.testing.running import RunningTopic
from tests.helpers.system import PATIENCE_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]

PROGRAM = Path(__file__).with_name("agent_program.py")
INTERESTS = {"consumers": {"C1": {"P1", "P2"}, "C2": {"P2", "P3"}}, "destinations": [{"P1", "P2"}]}
WIDER = {"consumers": {"C1": {"P1", "P2", "P3"}, "C2": {"P2", "P3"}}}
SETS = ({"P1"}, {"P2"}, {"P1", "P2"})


@pytest.fixture
def topic(kafka_cluster):
    with RunningTopic(kafka_cluster.bootstrap, INTERESTS) as running:
        yield running


class Worker:
    def __init__(self, topic, folder):
        self._seen = folder / "seen"
        self._log = folder / "worker.log"
        self._env = {
            **os.environ,
            "AMCAST_BOOTSTRAP": topic.bootstrap,
            "AMCAST_TOPIC": topic.topic,
            "APP_ID": f"agents-{uuid.uuid4().hex[:8]}",
            "DATADIR": str(folder / "data"),
            "SEEN": str(self._seen),
        }

    @contextmanager
    def running(self, **env):
        command = [sys.executable, str(PROGRAM), "worker", "-l", "info"]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, env={**self._env, **env}, stdout=log, stderr=log, cwd=PROGRAM.parents[3]
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait(PATIENCE_S)

    def seen(self):
        lines = self._seen.read_text().splitlines() if self._seen.exists() else []
        return [line.split()[0] for line in lines]

    def wait(self, count):
        until(lambda: len(set(self.seen())) >= count, self._log.read_text()[-3000:], 90)


def send(topic, first, count, sets=SETS):
    with topic.producer() as producer:
        for number in range(first, first + count):
            producer.multicast(b"%d" % number, to=sets[number % len(sets)]).ordered(PATIENCE_S)


def in_order(topic):
    with topic.consumer("C1", committed=False) as consumer:
        return [message.payload.decode() for message in topic.drain(consumer)]


def test_a_killed_worker_goes_on_after_what_it_committed_also_in_a_new_epoch(topic, tmp_path):
    worker = Worker(topic, tmp_path)
    send(topic, 0, 30)
    with worker.running():
        worker.wait(30)
    topic.replan(WIDER)
    send(topic, 30, 30, (*SETS[:2], {"P3"}))
    with worker.running() as process:
        worker.wait(60)
        process.terminate()
        process.wait(PATIENCE_S)
    order, seen = in_order(topic), worker.seen()
    assert len(order) == 60
    # A restart may repeat, from its cursor on, and leaves out nothing.
    again = [seen.index(each) for each in seen]
    firsts = sorted(set(again))
    assert [seen[place] for place in firsts] == order


def test_an_agent_that_fails_gets_the_message_again(topic, tmp_path):
    worker = Worker(topic, tmp_path)
    send(topic, 0, 20)
    order = in_order(topic)
    with worker.running(FAIL_AT=order[10]):
        worker.wait(20)
    seen = worker.seen()
    assert [each for place, each in enumerate(seen) if each not in seen[:place]] == order
