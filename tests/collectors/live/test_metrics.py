"""The page `/metrics` of a collectors' process: its text, and what makes it move."""

import pytest

from collectors.metrics import page_of
from multicast import Producer
from multicast.order.runs import MAGIC
from tests.helpers.forged import far, forge
from tests.helpers.scraped import samples
from tests.helpers.system import PATIENCE_S, open_transaction, until


def test_of_two_epochs_of_a_collector_the_one_that_has_begun_is_shown_with_escaped_names():
    nodes = [
        {"node": "K\\1", "epoch": 2, "begun": True, "acting": True, "ordered": {'a"b': 3}},
        {"node": "K\\1", "epoch": 3, "begun": False},
    ]
    text = page_of(lambda: {"topic": "A", "nodes": nodes}).text()
    assert 'amcast_collector_epoch{collector="K\\\\1",topic="A"} 2.0' in text
    assert 'amcast_collector_ordered_total{collector="K\\\\1",log="a\\"b",topic="A"} 3.0' in text


def test_what_consumers_have_committed_is_shown_as_far_as_it_is_known():
    consumers = [
        {"consumer": "C1", "never": False, "lag": 3, "lag_seconds": 9.0, "stands_seconds": 4.0,
         "committed_at": 1e9, "problem": None},
        {"consumer": "C2", "never": True},
    ]  # fmt: skip
    text = page_of(lambda: {"topic": "A", "nodes": [], "consumers": consumers}).text()
    assert 'amcast_group_stands_seconds{consumer="C1",topic="A"} 4.0' in text
    assert 'amcast_group_never_committed{consumer="C2",topic="A"} 1.0' in text
    assert 'amcast_group_lag_messages{consumer="C2"' not in text


pytestmark = pytest.mark.timeout(900)


VOID = ("amcast_collector_void_total", "foreign")


def values_of(host, top, log):
    """Give a function that scrapes a value of one collector, of its log or with a label's value."""

    def value(name, *label):
        found = samples(host.page("/metrics").decode())
        if label:
            return found.get((name, (top, *label)))
        return found.get((name, (top, log)), found.get((name, (top,))))

    return value


def test_a_void_record_a_hole_and_an_open_transaction_move_their_metrics(system):
    # Init: messages are ordered.
    host = system.order()
    log = system.plan.log("P2")
    top = system.plan.top("P2").name
    with Producer(topic=system.topic, driver=system.driver, tickets=False) as producer:
        for _ in range(20):
            producer.multicast(b"m", to={"P2"}).ordered(PATIENCE_S)
        value = values_of(host, top, "P2")
        until(lambda: (value("amcast_collector_ordered_total") or 0) >= 20, "20 ordered offsets")
        assert value("amcast_collector_acting") == 1
        assert value("amcast_collector_epoch") == 1
        appended = "amcast_collector_entries_appended_total"
        until(lambda: (value(appended) or 0) >= 20, "20 entries that were read back")
        assert value("amcast_collector_append_seconds_count") > 0
        assert value("amcast_collector_append_seconds_sum") > 0
        until(lambda: value("amcast_collector_lag_messages") == 0, "no lag in messages")
        until(lambda: value("amcast_collector_lag_seconds") == 0, "no lag in seconds")
        for hole in ("holes_waited", "holes_filled", "early"):
            assert value(f"amcast_collector_{hole}_total") == 0

        # Test and check: a ticket promised offsets that stay empty.
        forge(system, top, far("P2", 3))
        until(
            lambda: value("amcast_collector_holes_filled_total") >= 3,
            "holes that are filled",
            pause=0.2,
        )
        assert value("amcast_collector_holes_waited_total") >= 1
        assert value("amcast_collector_early_total") >= 3

        # Test and check: a record that is none of this stream is void.
        assert value(*VOID) is None
        system.append_garbage(top)
        until(lambda: value(*VOID) == 1, "a void record")
        system.append_garbage(top, MAGIC + bytes(100))
        until(lambda: value(*VOID) == 2, "another void record")

        # Test and check: a transaction that stays open holds the log, and its messages wait.
        transaction = open_transaction(system, log)
        waits = producer.multicast(b"waits", to={"P2"})
        waits.accepted(PATIENCE_S)
        until(lambda: value("amcast_collector_held_logs") == 1, "a held log")
        until(lambda: value("amcast_log_oldest_transaction_seconds") > 1, "an old transaction")
        until(lambda: value("amcast_log_stable_lag_records") == 2, "the lag of both records")
        transaction.abort_transaction(PATIENCE_S)
        waits.ordered(PATIENCE_S)
        until(lambda: value("amcast_log_oldest_transaction_seconds") == 0, "no transaction")
        until(lambda: value("amcast_log_stable_lag_records") == 0, "no stable lag")
