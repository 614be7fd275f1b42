"""What a process of collectors logs while the same thing goes wrong all the time."""

import logging

import pytest

from collectors.last_error import LastError
from collectors.supervisor import ErrorLog
from multicast.errors import AmcastError, ClusterUnreachable


def test_a_hundred_collectors_without_brokers_log_a_line_a_minute(caplog):
    log, away = ErrorLog(), ClusterUnreachable("No broker answered")
    for second in range(0, 130, 10):
        for number in range(1, 101):
            log.write(logging.ERROR, away, second, about=f"collector K{number}: ")
    assert [record.message for record in caplog.records] == [
        "collector K1: No broker answered",
        "collector K1: No broker answered (599 times more since this was logged last)",
        "collector K1: No broker answered (599 times more since this was logged last)",
    ]


def test_another_sentence_is_logged_at_once(caplog):
    log = ErrorLog()
    log.write(logging.ERROR, ClusterUnreachable("No broker answered"), 0.0)
    log.write(logging.WARNING, ClusterUnreachable("No leader answered"), 0.0)
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("ERROR", "No broker answered"),
        ("WARNING", "No leader answered"),
    ]


def test_sentences_without_a_bound_take_bounded_memory(caplog):
    log = ErrorLog()
    for number in range(3_000):
        log.write(logging.ERROR, ClusterUnreachable(f"offset {number} is gone"), 0.0)
    assert len(caplog.records) == 3_000
    assert len(log._lines) == 1_000


AWAY, OTHER = ClusterUnreachable("No broker answered"), AmcastError("denied")


@pytest.mark.parametrize(
    ("heard", "sentence"),
    [
        ([], None),
        ([(OTHER, 5)], "denied"),
        ([(AWAY, 20)], "no broker reached for 40 s: No broker answered"),
        ([(AWAY, 20), (AWAY, 45)], "no broker reached for 40 s: No broker answered"),
        ([(AWAY, 20), (None, 30)], None),
        ([(AWAY, 20), (None, 30), (AWAY, 45)], "no broker reached for 15 s: No broker answered"),
        ([(AWAY, 20), (OTHER, 30)], "denied"),
        ([(AWAY, 20), ("it failed", 30)], "it failed"),
    ],
)
def test_a_process_says_for_how_long_it_has_reached_no_broker(heard, sentence):
    last = LastError()
    for error, now in heard:
        last.hear(error, now)
    assert last.text(50.0) == sentence
