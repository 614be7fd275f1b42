"""`amcast doctor` names a log that is ordered ahead of its end: since when, and by whom."""

import pytest

from collectors.doctor.facts import AheadLog
from collectors.doctor.streams import InspectionStart, inspect_collector, now_ms
from multicast.control import log_partition, stream_partition
from multicast.order.records import OwnRecord, Ticket, encode
from tests.helpers.plans import chain, tag_in
from tests.helpers.small import Small, state_of

PLAN = chain()
STREAM = stream_partition(PLAN, "K1")
P1 = log_partition(PLAN.log("P1"))


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
