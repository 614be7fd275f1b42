"""A producer that is idle asks the brokers next to nothing, and learns of a new epoch at once."""

import queue
from dataclasses import replace
from types import SimpleNamespace

import pytest
from kafka.future import Future

from multicast.control import (
    ControlFollower,
    ControlReader,
    control_partition,
    control_topics,
    plan_record,
)
from multicast.control import follower as follower_module
from multicast.drivers.kafka.fetcher import Fetching
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog, MemoryReader
from multicast.errors import AmcastError, Trimmed
from tests.helpers.plans import chain
from tests.helpers.system import PATIENCE_S

PLAN = chain()
CONTROL = control_partition(PLAN.topic)


class Asked(MemoryDriver):
    """Notes what its clients ask; a wait of a reader ends with a record, a wake, or `error`."""

    def __init__(self):
        super().__init__(MemoryLog(dict.fromkeys(control_topics(PLAN.topic), 1), threaded=True))
        self.questions = queue.Queue()
        self.error = None
        self.leader_ends = self._ends

    def _ends(self, partitions, *, timeout_s=None):
        self.questions.put("ends")
        return self.log.leader_ends(partitions, timeout_s=timeout_s)

    def reader(self, starts, *, wait_s=None):
        driver = self

        class Reader(MemoryReader):
            def poll(self, timeout_s, records_max=5000):
                driver.questions.put((wait_s, timeout_s))
                if driver.error is not None:
                    raise driver.error
                return super().poll(timeout_s, records_max)

        return Reader(self.log, starts)

    def propose(self, plan):
        reader = ControlReader(MemoryDriver(self.log), plan.topic)
        key, value = plan_record(reader.refresh().previous, plan, attempt="1")
        self.log.write(CONTROL, value, key=key)
        return reader.state


@pytest.fixture
def followed(monkeypatch):
    """A driver, a follower of its control topic, and the epochs that a part of it learns."""
    monkeypatch.setattr(follower_module, "_EVERY_S", 0.0)
    driver, epochs = Asked(), queue.Queue()
    driver.propose(PLAN)
    state = driver.propose(replace(PLAN, epoch=1))  # a second one for this epoch does not count

    def learn(state):
        epochs.put(state.epoch)
        raise AmcastError("a part whose trouble is nobody else's")

    follower = ControlFollower(driver, state, [learn])
    yield driver, epochs
    follower.close()


def learned(epochs, epoch):
    while epochs.get(timeout=PATIENCE_S) != epoch:
        pass


def test_one_question_that_stays_open_for_seconds_is_all_that_an_idle_producer_asks(followed):
    driver, epochs = followed
    asked = [driver.questions.get(timeout=PATIENCE_S) for _ in range(3)]
    assert asked == ["ends", pytest.approx((5.0, 10.0), rel=1e-3), (5.0, 5.0)], (
        "where it ends, all of it, and what comes"
    )
    driver.propose(replace(PLAN, epoch=2, base_epoch=1))
    learned(epochs, 2)
    assert driver.questions.qsize() <= 1, "the answer to the open question told of the epoch"


def test_while_the_control_topic_cannot_be_read_parts_are_called_with_what_is_known(
    followed, monkeypatch
):
    driver, epochs = followed
    monkeypatch.setattr(follower_module, "_WAIT_S", 0.0)
    driver.error = Trimmed("it was recreated")
    driver.propose(replace(PLAN, epoch=2, base_epoch=1))  # ends a wait
    for _ in range(3):
        learned(epochs, 2)


@pytest.mark.parametrize(
    ("wait_s", "timeout_s", "wait_ms"), [(None, 10.0, 500), (5.0, 10.0, 5000), (5.0, 4.0, 2000)]
)
def test_a_broker_leaves_a_question_open_for_as_long_as_its_reader_says(wait_s, timeout_s, wait_ms):
    sent = []
    connection = SimpleNamespace(
        timeout_s=timeout_s,
        leader=lambda _: 1,
        manager=SimpleNamespace(send=lambda request, **_: sent.append(request) or Future()),
        net=SimpleNamespace(poll=lambda **_: None),
        cluster=SimpleNamespace(_last_successful_refresh_ms=0.0),
    )
    limits = {"partition_bytes_max": 1, "request_bytes_max": 1}
    fetching = Fetching(connection, None, wait_s=wait_s, **limits)
    fetching.want(CONTROL, 0)
    fetching.turn(0.0)
    assert [request.max_wait_ms for request in sent] == [wait_ms]
