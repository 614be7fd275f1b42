"""What a collector writes under the ticket rule, on hand-made events."""

import pytest

from collectors.core.balance import BalanceLimits
from collectors.core.collector_core import (
    CollectorCore,
    CollectorLimits,
    FillHole,
    NameCheckpoint,
    WriteRecord,
)
from multicast.order.records import (
    Correction,
    FreezeRecord,
    OwnRecord,
    Position,
    RelayRecord,
    Ticket,
    encode,
)
from multicast.order.rule import NotCounted, RecordStream, StreamShape
from multicast.order.runs import ORDERED_MAX

TAG, PARENT_TAG = b"t" * 16, b"u" * 16
A, B = 0, 1


def collector(parent=None, **limits):
    own = RecordStream(StreamShape(TAG, {A: 0}, {} if parent is None else {B: 10}, 0, parent and 0))
    limits = {"patience": 5, "lively": 100, "checkpoint_time": 1000, **limits}
    return CollectorCore(own, parent, CollectorLimits(**limits))


def test_a_collector_is_patient_only_with_a_log_that_has_tickets():
    core = collector()
    core.log_end(A, 1, now=0)
    assert core.step(0) == [WriteRecord(OwnRecord((Ticket(A, 0, 1),)))]
    core = collector()
    core.own_read(0, encode(TAG, OwnRecord((Ticket(A, 1, 1),))), now=0)
    core.log_end(A, 2, now=0)
    assert core.step(0) == []
    assert core.step(4) == []
    assert core.step(5) == [WriteRecord(OwnRecord((Ticket(A, 0, 2),)))]


def test_a_collector_fills_a_hole_that_rests_for_two_ticks():
    core = collector()
    core.log_end(A, 0, now=0)
    core.own_read(0, encode(TAG, OwnRecord((Ticket(A, 1, 1),))), now=0)
    core.tick(1)
    assert core.step(1) == []
    core.tick(2)
    assert core.step(2) == [FillHole(A, 1)]


GROWING = [
    # A producer has died with the ticket of a message: the order is one ahead of the log.
    pytest.param(2, False, [FillHole(A, 102)], id="hole"),
    # One has died before its ticket: the log is one ahead of the order...
    pytest.param(0, False, [WriteRecord(OwnRecord((Ticket(A, 1, 0),)))], id="late"),
    # ... or, as each next ticket says where the log ends, it stays in debt.
    pytest.param(0, True, [WriteRecord(OwnRecord((), (Correction(A, 1, 1),)))], id="debt"),
]


@pytest.mark.parametrize(("counted", "says_end", "mend"), GROWING)
def test_what_stays_out_of_balance_is_mended_in_a_log_that_never_rests(counted, says_end, mend):
    core = collector(balance=BalanceLimits(urgent=0, slack=0, stale=0), patience=1000)
    core.own_read(0, encode(TAG, OwnRecord((Ticket(A, counted, 0),))), now=0)
    core.log_end(A, 1, now=0)
    actions = []
    for now in range(1, 101):
        upto = now + 1 if says_end else 0
        core.own_read(now, encode(TAG, OwnRecord((Ticket(A, 1, upto),))), now=now)
        core.log_end(A, now + 1, now=now)
        if now % 25 == 0:
            core.tick(now)
        actions += core.step(now)
    assert actions == mend


def test_what_only_passes_is_left_alone_in_a_log_that_never_rests():
    core = collector(balance=BalanceLimits(urgent=0, slack=0, stale=0), patience=50)
    core.log_end(A, 0, now=0)
    for now in range(1, 401):
        ticket_first = now % 2
        for is_ticket in (ticket_first, not ticket_first):
            if is_ticket:
                core.own_read(now, encode(TAG, OwnRecord((Ticket(A, 1, 0),))), now=now)
            else:
                core.log_end(A, now, now=now)
        if now % 25 == 0:
            core.tick(now)
        assert core.step(now) == []


def test_a_tick_looks_at_no_log_that_is_ordered_to_its_end():
    own = RecordStream(StreamShape(TAG, dict.fromkeys(range(1000), 0), {}))
    core = CollectorCore(own, None, CollectorLimits(5, 100, 10**6))
    for log in range(1000):
        core.log_end(log, 0, now=0)
    core.tick(1)
    core.tick(2)
    core._judge_hole = pytest.fail
    core.tick(3)
    assert core.ahead == {}


def records(core, now):
    return [action.record for action in core.step(now) if isinstance(action, WriteRecord)]


def feed(core, written, now):
    """Append these records to the own stream, and let the core read them."""
    for record in written:
        core.own_read(core.own.offset_next, encode(TAG, record), now)


def test_a_backlog_is_ordered_in_records_that_count():
    core = collector(run_length_max=2**15)
    end = 2 * ORDERED_MAX + 5
    core.log_end(A, end, now=0)
    for _ in range(10):
        for record in records(core, 0):
            raw = encode(TAG, record)
            assert not isinstance(core.own.read(core.own.offset_next, raw), NotCounted)
    assert core.own.state.positions[A] == end


def test_a_backlog_of_one_log_does_not_delay_another():
    own = RecordStream(StreamShape(TAG, {A: 0, B: 10}, {}))
    core = CollectorCore(own, None, CollectorLimits(5, 100, 1000, run_length_max=10, runs_max=3))
    core.log_end(A, 100, now=0)
    core.log_end(B, 11, now=0)
    (first,) = records(core, 0)
    assert first == OwnRecord((Ticket(A, 0, 10), Ticket(B, 0, 11), Ticket(A, 0, 20)))


def test_a_relay_is_within_the_limits_of_one_record():
    parent = RecordStream(StreamShape(PARENT_TAG, {B: 10}, {}))
    core = collector(parent)
    for number in (1, 2):
        ticket = Ticket(B, 0, 10 + number * ORDERED_MAX)
        core.parent_read(number, encode(PARENT_TAG, OwnRecord((ticket,))))
    written = records(core, 0)
    assert written == [
        RelayRecord(0, 2, (Position(B, 10 + ORDERED_MAX),)),
        RelayRecord(2, 3, (Position(B, 10 + 2 * ORDERED_MAX),)),
    ]
    feed(core, written, 0)
    assert core.own.state.positions[B] == 10 + 2 * ORDERED_MAX


def ticket_of_parent(core, offset):
    core.parent_read(offset, encode(PARENT_TAG, OwnRecord((Ticket(B, 1, 0),))), 100 + offset)


def test_each_relay_names_the_record_of_the_parent_where_it_begins_and_where_it_ends():
    core = collector(RecordStream(StreamShape(PARENT_TAG, {B: 10}, {})))
    ticket_of_parent(core, 0)
    ticket_of_parent(core, 2)
    first = records(core, 0)
    assert first == [RelayRecord(0, 3, (Position(B, 12),), 0, 102)]
    feed(core, first, 0)
    ticket_of_parent(core, 3)
    assert records(core, 0) == [RelayRecord(3, 4, (Position(B, 13),), 102, 103)]


def test_relays_in_flight_that_another_instance_overtakes_are_written_anew_from_its_end():
    core = collector(RecordStream(StreamShape(PARENT_TAG, {B: 10}, {})))
    for offset in range(3):
        ticket_of_parent(core, offset)
    ours = records(core, 0)
    feed(core, [RelayRecord(0, 2, (Position(B, 12),), 0, 101)], 0)
    again = records(core, 0)
    assert again == [RelayRecord(2, 3, (Position(B, 13),), 101, 102)]
    assert core.own.read(core.own.offset_next, encode(TAG, ours[0])) is NotCounted.OVERLAP
    feed(core, again, 0)
    assert core.own.state.positions[B] == 13
    assert not core.relay.strayed


@pytest.mark.parametrize("opened_at", [0, 1, 2])
def test_what_was_relayed_of_another_tail_of_the_parents_stream_is_found(opened_at):
    # Init: a part of the parent's stream was relayed, is lost, and written otherwise.
    parent = RecordStream(StreamShape(PARENT_TAG, {B: 10}, {}))
    core = collector(parent)
    relay = [RelayRecord(0, 2, (Position(B, 12),), 0, 999)]
    for offset in range(4):
        if offset == opened_at:
            feed(core, relay, 0)
        ticket_of_parent(core, offset)
    assert core.relay.strayed
    assert records(core, 0) == []
    # What is relayed behind it, by whoever has the other tail, does not heal it.
    feed(core, [RelayRecord(2, 4, (Position(B, 14),), 999, 103)], 0)
    assert core.relay.strayed


def test_a_collector_that_has_strayed_relays_no_more_and_freezes_without_its_parent():
    parent = RecordStream(StreamShape(PARENT_TAG, {B: 10}, {}))
    core = collector(parent)
    core.parent_read(0, encode(PARENT_TAG, OwnRecord((Ticket(B, 1, 0),))))
    feed(core, [RelayRecord(0, 1, (Position(B, 15),))], 0)
    assert core.relay.strayed
    core.parent_read(1, encode(PARENT_TAG, OwnRecord((Ticket(B, 1, 0),))))
    assert records(core, 0) == []
    core.freeze_after({A: 0})
    assert records(core, 0) == [FreezeRecord(1, (Position(A, 0),))]


def test_an_epoch_ends_although_late_tickets_come_behind_the_parents_freeze_without_end():
    parent = RecordStream(StreamShape(PARENT_TAG, {B: 10}, {}))
    core = collector(parent)
    core.parent_read(0, encode(PARENT_TAG, FreezeRecord(0, ())))
    core.freeze_after({A: 0})
    written = []
    for offset in range(1, 9):
        core.parent_read(offset, encode(PARENT_TAG, OwnRecord((Ticket(B, 1, 0),))))
        written += (now := records(core, offset))
        feed(core, now, offset)
    assert written == [RelayRecord(0, 1, ()), FreezeRecord(1, (Position(A, 0),))]


def test_a_collector_holds_a_log_while_a_transaction_rests_in_it():
    core = collector()
    core.own_read(0, encode(TAG, OwnRecord((Ticket(A, 1, 1),))), now=0)
    core.log_end(A, 1, now=0)
    core.tick(1, {A: 3})
    assert records(core, 1) == []
    core.tick(2, {A: 4})
    held = records(core, 2)
    assert held == [OwnRecord((), (Correction(A, 1, 0, held=True),))]
    feed(core, held, 2)
    core.tick(3, {A: 5})
    assert records(core, 3) == []
    core.log_end(A, 6, now=4)
    core.tick(4, {A: 6})
    release = records(core, 4)
    assert release == [OwnRecord((Ticket(A, 0, 6),), (Correction(A, 2, 0, held=False),))]
    feed(core, release, 4)
    assert (core.own.state.positions[A], core.own.state.debts[A]) == (6, 0)


def test_a_collector_writes_checkpoints_by_time_and_by_records_and_names_them_once_they_count():
    core = collector(checkpoint_records=2)
    start = core.own.marked
    assert core.step(999) == []
    assert core.step(1000) == [WriteRecord(start)]
    assert core.step(1001) == []
    feed(core, [start], 1002)
    assert core.step(1002) == [NameCheckpoint(0)]
    assert core.step(1003) == []
    feed(core, [OwnRecord((Ticket(A, 1, 1),))] * 2, 1004)
    assert core.step(1004) == [WriteRecord(core.own.marked)]
    core.append_failed()
    assert core.step(1005) == [WriteRecord(core.own.marked)]


def test_what_orders_nothing_here_is_relayed_before_retention_removes_it():
    parent = RecordStream(StreamShape(PARENT_TAG, {A: 0, B: 10}, {}))
    core = collector(parent)
    core.parent_read(7, encode(PARENT_TAG, OwnRecord((Ticket(A, 1, 0),))))
    assert records(core, 999) == []
    assert RelayRecord(0, 8, ()) in records(core, 1000)


def test_a_hole_beyond_what_any_ticket_promises_waits_for_a_recovery():
    core = collector(fill_max=4)
    core.log_end(A, 0, now=0)
    core.own_read(0, encode(TAG, OwnRecord((Ticket(A, 5, 0),))), now=0)
    for now in (1, 2, 3):
        core.tick(now)
    assert core.step(3) == []
