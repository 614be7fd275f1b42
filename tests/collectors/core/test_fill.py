"""Holes of a log are filled in batches, and only while its leader answers."""

from dataclasses import replace

import pytest

from collectors.engine.skips import fill
from multicast.control import log_partition
from multicast.drivers.memory.driver import MemoryLog
from multicast.drivers.protocol import AppendFailed
from multicast.errors import AppendUnknown, ClusterUnreachable, TopicChanged
from tests.helpers.held import SteppedDriver
from tests.helpers.plans import chain

PLAN = chain()
P1 = 0
LOG = log_partition(PLAN.logs[P1])
HOLE = 20_000


class Cluster(SteppedDriver):
    """A log in memory whose leader may be slow or away."""

    def __init__(self):
        super().__init__(MemoryLog({LOG.topic: 4}), step=self._stored)
        self.high_watermarks = self._high_watermarks
        self.questions = 0
        self.answers_after_s = 0.0
        self.lost_from = HOLE  # appends from this offset on have no known outcome
        self.skips = self.appender(in_flight_max=HOLE)

    def _stored(self, append):
        if self.end < self.lost_from:
            append.settle(append.store())
        else:
            append.settle(AppendFailed(AppendUnknown("no answer")))

    def _high_watermarks(self, partitions, *, timeout_s=10.0):
        self.questions += 1
        if self.answers_after_s > timeout_s:
            raise ClusterUnreachable("the leader is away")
        return self.log.high_watermarks(partitions)

    def fill(self, below=HOLE, plan=PLAN):
        """Carry out one `Fill`; give the end that it reports, and how many skips it started."""
        ends = []
        started = fill(
            self, self.skips, plan, P1, below=below, is_whole=lambda: True, filled=ends.append
        )
        (end,) = ends
        return end, started

    @property
    def end(self):
        return self.log.high_watermarks([LOG])[LOG]


def test_a_hole_of_twenty_thousand_is_filled_with_a_question_for_some_thousand_skips():
    cluster = Cluster()
    end = 0
    while end < HOLE:
        before = end
        end, started = cluster.fill()
        assert end == before + started
    assert end == HOLE
    assert cluster.questions <= HOLE // 1000


@pytest.mark.parametrize("seconds", [9.0, 30.0])
def test_a_log_whose_leader_is_slow_or_away_is_not_filled_now(seconds):
    cluster = Cluster()
    cluster.answers_after_s = seconds
    assert cluster.fill() == (None, 0)
    assert cluster.end == 0


def test_a_fill_that_is_lost_on_the_way_is_reported_once_as_failed():
    cluster = Cluster()
    cluster.lost_from = 7
    end, started = cluster.fill()
    assert end is None
    assert started > 7
    cluster.lost_from = HOLE
    assert cluster.fill(below=9) == (9, 2)
    assert cluster.fill(below=9) == (9, 0)


def test_a_topic_that_was_created_again_gets_no_skip():
    cluster = Cluster()
    plan = replace(PLAN, topic_ids={LOG.topic: "another"})
    with pytest.raises(TopicChanged):
        cluster.fill(plan=plan)
    assert cluster.end == 0


def test_a_full_buffer_takes_the_rest_later():
    cluster = Cluster()
    held = []
    cluster.skips = SteppedDriver(cluster.log, step=held.append).appender(in_flight_max=3)
    ends = []
    assert (
        fill(cluster, cluster.skips, PLAN, P1, below=9, is_whole=lambda: True, filled=ends.append)
        == 3
    )
    assert ends == []
    for append in held:
        append.settle(append.store())
    assert ends == [None], "the rest is started after the next look"
    assert cluster.end == 3
