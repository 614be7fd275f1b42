"""What the doctor says of logs: all records older than retention, or ordered ahead of their end."""

import pytest

from collectors.doctor.checks import Check, Weight, findings
from collectors.doctor.facts import AheadLog, Facts
from collectors.doctor.record_times import names_older, older_logs
from collectors.doctor.streams import InspectionStart, inspect_collector, now_ms
from multicast.control import log_partition, stream_partition
from multicast.drivers.memory.driver import MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.order.records import OwnRecord, Ticket, encode
from tests.helpers.plans import chain, tag_in
from tests.helpers.small import Small, state_of

DAY_MS = 86_400_000
NOW_MS = 20_000 * DAY_MS
PLAN = chain()
STREAM = stream_partition(PLAN, "K1")
P1 = log_partition(PLAN.log("P1"))


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


@pytest.fixture
def system():
    with Small(PLAN) as made:
        yield made


def order(system, messages, upto, *, seconds_ago):
    system.log.now_ms = lambda: now_ms() - 1000 * seconds_ago
    ticket = Ticket(PLAN.number("P1"), messages, upto)
    system.log.write(STREAM, encode(tag_in(PLAN, "K1"), OwnRecord((ticket,))))


def ahead(system):
    places = [log_partition(log) for log in PLAN.logs]
    ends = system.driver.last_stable_offsets([*places, STREAM])
    start = InspectionStart(now_ms(), ends, 0.0)
    facts, _ = inspect_collector(system.driver, state_of(system), PLAN, "K1", start)
    return facts.ahead


@pytest.mark.parametrize(("first", "by"), [(1, "a producer's ticket"), (0, "a collector's ticket")])
def test_the_first_record_that_went_beyond_the_end_says_since_when_and_by_whom(system, first, by):
    order(system, 1, 1, seconds_ago=60)
    order(system, first, 3, seconds_ago=20)
    order(system, 1, 4, seconds_ago=5)
    system.log.write(P1, b"the only one that is stored")
    (log,) = ahead(system)
    assert log == AheadLog("P1", "K1", 4, 1, f"{by} at offset 1", log.for_ms)
    assert 20_000 <= log.for_ms < 60_000


def test_a_log_that_has_what_was_ordered_is_not_named(system):
    order(system, 2, 2, seconds_ago=20)
    for _ in range(2):
        system.log.write(P1, b"")
    assert ahead(system) == ()


def test_what_an_open_transaction_hides_is_stored(system):
    order(system, 1, 1, seconds_ago=20)
    transaction = system.log.transaction()
    transaction.append(P1, b"hidden")
    assert ahead(system) == ()
    transaction.abort()
