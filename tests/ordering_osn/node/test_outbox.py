"""An outbox posts each record again until it is stored, and reposts in their order."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AmcastError, AppendUnknown, BufferFull, ClusterUnreachable
from ordering_osn.node.kafka_connection import SharedAttempts
from ordering_osn.node.outbox import Outbox


class Log:
    """Takes postings, and answers when the test says so."""

    def __init__(self):
        self.posted = []
        self.refuses = False

    def post(self, raw, done):
        if self.refuses:
            raise BufferFull("no room")
        self.posted.append((raw, done))

    def answer(self, index, *, stored):
        failed = AppendFailed(AppendUnknown("the connection broke"))
        self.posted[index][1](Appended(index) if stored else failed)


def made():
    log = Log()
    return log, Outbox(log.post, retry_s=1.0)


def ignore(outcome):
    """Take an outcome, and do nothing."""


def test_a_copy_is_posted_when_the_one_before_it_stands_and_not_before():
    log, outbox = made()
    outbox.put(b"four", ignore)
    outbox.put(b"five", ignore)
    outbox.post_due(0.0)
    assert [raw for raw, _ in log.posted] == [b"four"]
    log.answer(0, stored=False)
    assert outbox.post_due(0.5) == 1.5
    outbox.post_due(1.4)
    assert len(log.posted) == 1
    outbox.post_due(1.6)
    assert [raw for raw, _ in log.posted] == [b"four", b"four"]
    log.answer(1, stored=True)
    outbox.post_due(1.7)
    assert [raw for raw, _ in log.posted] == [b"four", b"four", b"five"]
    assert outbox.owes
    log.answer(2, stored=True)
    assert outbox.post_due(1.8) is None
    assert not outbox.owes


def test_a_time_to_cut_waits_for_no_copy_and_ends_with_its_need():
    log, outbox = made()
    needed = [True]
    outbox.put(b"copy", ignore)
    outbox.put(b"cut", ignore, needed=lambda: needed[0])
    outbox.post_due(0.0)
    assert [raw for raw, _ in log.posted] == [b"copy", b"cut"]
    log.answer(1, stored=False)
    outbox.post_due(0.1)
    outbox.post_due(1.2)
    assert [raw for raw, _ in log.posted] == [b"copy", b"cut", b"cut"]
    needed[0] = False
    log.answer(2, stored=False)
    outbox.post_due(1.3)
    outbox.post_due(9.9)
    assert len(log.posted) == 3


def test_what_finds_no_room_is_posted_again():
    log, outbox = made()
    log.refuses = True
    outbox.put(b"copy", ignore)
    assert outbox.post_due(0.0) == 1.0
    log.refuses = False
    outbox.post_due(1.0)
    assert [raw for raw, _ in log.posted] == [b"copy"]


def test_chains_that_wait_while_one_tries_to_reach_the_cluster_fail_as_that_one_did():
    # Init: a clock that shows when the second caller has begun to wait.
    times, two_have_begun, calls = itertools.count(), threading.Event(), []

    def clock():
        time = next(times)
        if time == 1:
            two_have_begun.set()
        return time

    attempts = SharedAttempts(AmcastError, clock=clock)

    def unreachable():
        calls.append("call")
        assert two_have_begun.wait(60)
        raise ClusterUnreachable("nobody answered")

    # Test: two at once, and one afterwards.
    with ThreadPoolExecutor(2) as threads:
        together = [threads.submit(attempts.run, unreachable) for _ in range(2)]

        # Check: both failed, by one attempt; the next one is an attempt of its own.
        for waited in together:
            with pytest.raises(ClusterUnreachable):
                waited.result()
    assert len(calls) == 1
    assert attempts.run(lambda: "reached") == "reached"
