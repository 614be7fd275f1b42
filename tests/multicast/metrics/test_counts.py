"""What a producer counts of its appends to each log, and when it times one."""

import threading

import pytest

from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AppendNotAuthorized, AppendRefused, AppendUnknown
from multicast.producing.append_counts import LogAppends

STORED = Appended(0)


class Watch:
    """A time that only the test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def watch():
    return Watch()


@pytest.fixture
def log(watch):
    return LogAppends(watch)


def durations(log):
    seconds = log.counts().seconds
    return sum(seconds.counts), seconds.sum_s


def test_outcomes_are_counted_by_what_is_known_of_the_message(log):
    log.sent(7)
    log.settled(Appended(3), 2)
    assert (log.pending, log.stored, log.in_doubt) == (5, 4, False)
    for error in (AppendUnknown("a"), AppendRefused("b"), AppendNotAuthorized("c")):
        log.settled(AppendFailed(error))
    assert (log.pending, log.stored, log.in_doubt) == (2, 4, True)
    log.had_no_room()
    counts = log.counts()
    assert (counts.sent, counts.settled, counts.in_flight) == (7, 5, 2)
    assert (counts.accepted, counts.refused, counts.unknown, counts.full) == (2, 2, 1, 1)
    log.settled(Appended(8), 2)  # what follows in the log has come: nothing comes before it now
    assert (log.pending, log.stored, log.in_doubt) == (0, 9, False)


def test_an_outcome_before_its_append_is_counted_leaves_nothing_in_flight_and_no_time(log, watch):
    log.settled(STORED)
    assert log.counts().in_flight == 0
    log.sent(1)
    watch.now = 5.0
    log.settled(STORED)  # of a message that is not counted yet, either
    assert log.counts().in_flight == 0
    assert durations(log) == (0, 0.0)


def test_the_next_message_is_timed_once_the_last_one_has_its_outcome(log, watch):
    log.sent(1)
    watch.now = 0.001
    log.sent(9)
    watch.now = 0.002
    log.settled(STORED)
    assert durations(log) == (1, 0.002)
    watch.now = 0.003
    log.settled(STORED, 4)  # none of them was timed
    assert durations(log) == (1, 0.002)
    log.sent(2)  # the last of these two is
    watch.now = 0.010
    log.settled(STORED, 6)
    assert durations(log) == (1, 0.002)
    log.settled(STORED)
    assert durations(log) == (2, pytest.approx(0.009))


@pytest.mark.parametrize("error", [AppendRefused("no"), AppendUnknown("perhaps")])
def test_a_message_that_is_not_accepted_has_no_time_and_the_next_one_has(log, watch, error):
    log.sent(1)
    watch.now = 30.0
    log.settled(AppendFailed(error))
    assert durations(log) == (0, 0.0)
    log.sent(1)
    watch.now = 30.25
    log.settled(STORED)
    assert durations(log) == (1, 0.25)


def test_no_count_is_lost_between_threads(log):
    def work():
        for _ in range(2000):
            log.sent(1)
            log.settled(AppendFailed(AppendUnknown("x")))
            log.had_no_room()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = log.counts()
    assert (counts.sent, counts.settled, counts.unknown, counts.full) == (8000,) * 4
