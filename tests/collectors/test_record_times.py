"""Topics whose records carry old times: retention goes by these."""

import pytest

from collectors.doctor.checks import Check, Weight, findings
from collectors.doctor.facts import Facts
from collectors.doctor.record_times import names_older, older_logs
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import TopicPartition

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS


@pytest.mark.parametrize(
    ("ages", "kept_days", "older"),
    [
        ({"P1": [9, 8], "P2": [9, 1]}, 7, ("P1",)),
        ({"P1": [9, 8], "P2": [8]}, 7, ("P1", "P2")),
        ({"P1": [9, 8], "P2": []}, 10, ()),
        ({"P1": [9000], "P2": []}, None, ()),
    ],
)
def test_logs_without_a_record_younger_than_retention_are_named(ages, kept_days, older):
    now = [NOW_MS]
    log = MemoryLog(now_ms=lambda: now[0])
    log.create("A", 2)
    places = {name: TopicPartition("A", number) for number, name in enumerate(ages)}
    for name, days in ages.items():
        for age in days:
            now[0] = NOW_MS - age * DAY_MS
            log.write(places[name], b"x")
    kept_ms = -1 if kept_days is None else kept_days * DAY_MS
    assert older_logs(MemoryDriver(log), places, kept_ms, NOW_MS) == older


def test_the_doctor_notes_them():
    facts = Facts("A", NOW_MS, older=(names_older("A", 7 * DAY_MS, ["P1", "P2"]),))
    (note,) = [each for each in findings(facts) if each.check is Check.RETENTION]
    assert (note.weight, note.about) == (Weight.NOTE, "topic A")
    assert "every record of P1, P2 is older than retention.ms of topic A (7 days)" in note.says
