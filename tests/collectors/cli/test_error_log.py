"""What a process of collectors logs while the same thing goes wrong all the time."""

import logging

from collectors.supervisor import ErrorLog
from multicast.errors import ClusterUnreachable


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
