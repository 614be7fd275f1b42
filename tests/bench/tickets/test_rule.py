"""The ticket rule, clause by clause, on hand-made records."""

import pytest

from bench.tickets.collector import FillHole, TicketCollector, WriteRecord
from bench.tickets.producer import TicketBook
from bench.tickets.rule import (
    COUNT_MAX,
    Correction,
    FreezeRecord,
    NotCounted,
    OwnRecord,
    RelayEntry,
    RelayRecord,
    StreamShape,
    Ticket,
    TicketStream,
    decode,
    encode,
)
from multicast.order import ORDERED_MAX, Run

TAG = 7
A, B, INHERITED = 0, 1, 2


class Stream(TicketStream):
    """A stream that is given records instead of bytes."""

    def take(self, record, tag=TAG):
        return self.read(self.offset_next, encode(tag, record))

    def tickets(self, *tickets):
        return self.take(OwnRecord(tickets))


@pytest.fixture
def stream():
    return Stream(StreamShape(TAG, {A: 0, B: 10}, {INHERITED: 5}, parent_first=3))


@pytest.mark.parametrize(
    "record",
    [
        OwnRecord((Ticket(A, 3, 9), Ticket(B, 0, 2**40)), (Correction(A, 1, -2),)),
        RelayRecord(3, 9, (RelayEntry(2, 6), RelayEntry(2, 8))),
        FreezeRecord(4, ((0, 3), (1, 12))),
    ],
)
def test_a_record_is_read_as_it_was_written(record):
    raw = encode(TAG, record)
    assert decode(TAG, raw) == record
    assert decode(TAG, raw + b"\0") is NotCounted.MALFORMED
    assert decode(TAG, raw[:-1]) is NotCounted.MALFORMED
    assert decode(TAG + 1, raw) is NotCounted.FOREIGN
    assert decode(TAG, b"hello") is NotCounted.FOREIGN


def test_tickets_of_several_producers_add_up(stream):
    assert stream.tickets(Ticket(A, 1, 1)) == (Run(A, 0, 1),)
    assert stream.tickets(Ticket(A, 2, 1), Ticket(B, 1, 0)) == (Run(A, 1, 3), Run(B, 10, 11))
    assert stream.state.debts == {A: 0, B: 0}


def test_a_late_ticket_pays_for_what_a_collector_has_ordered(stream):
    assert stream.tickets(Ticket(A, 0, 2)) == (Run(A, 0, 2),)
    assert stream.state.debts[A] == 2
    assert stream.tickets(Ticket(A, 1, 0)) == ()
    assert stream.tickets(Ticket(A, 2, 0)) == (Run(A, 2, 3),)
    assert stream.state.debts[A] == 0


def test_a_collectors_ticket_may_come_twice_late_or_from_a_zombie(stream):
    stream.tickets(Ticket(A, 0, 5))
    before = stream.state.copy()
    assert stream.tickets(Ticket(A, 0, 5)) == ()
    assert stream.tickets(Ticket(A, 0, 3)) == ()
    assert stream.state == before


def test_a_correction_counts_once_and_leaves_no_negative_debt(stream):
    stream.tickets(Ticket(A, 0, 2))
    correction = OwnRecord((), (Correction(A, 1, 5),))
    stream.take(correction)
    assert stream.state.debts[A] == 0
    stream.tickets(Ticket(A, 0, 4))
    stream.take(correction)
    assert stream.state.debts[A] == 2
    stream.take(OwnRecord((), (Correction(A, 2, -1),)))
    assert stream.state.debts[A] == 3


def test_a_relay_adds_only_what_is_new_and_admits_no_gap(stream):
    first, second = RelayEntry(INHERITED, 6), RelayEntry(INHERITED, 8)
    assert stream.take(RelayRecord(4, 6, (second,))) is NotCounted.GAP
    assert stream.take(RelayRecord(3, 4, (first,))) == (Run(INHERITED, 5, 6),)
    assert stream.take(RelayRecord(3, 6, (first, second))) == (Run(INHERITED, 6, 8),)
    assert stream.take(RelayRecord(4, 6, (second,))) is NotCounted.KNOWN
    assert stream.state.parent_next == 6


def test_a_freeze_counts_only_where_the_stream_has_come_so_far(stream):
    assert stream.take(FreezeRecord(3, ((A, 1),))) is NotCounted.EARLY
    assert stream.take(FreezeRecord(4, ())) is NotCounted.EARLY
    stream.tickets(Ticket(A, 1, 0))
    assert stream.take(FreezeRecord(3, ((A, 1),))) == ()
    assert stream.tickets(Ticket(A, 1, 0)) is NotCounted.FROZEN


@pytest.mark.parametrize(
    "record",
    [
        OwnRecord((Ticket(A, COUNT_MAX + 1, 0),)),
        OwnRecord((Ticket(A, 0, ORDERED_MAX + 1),)),
        OwnRecord((Ticket(INHERITED, 1, 0),)),
        OwnRecord((Ticket(A, 1, 0),), (Correction(9, 1, 1),)),
        RelayRecord(3, 4, (RelayEntry(A, 1),)),
        RelayRecord(3, 4, (RelayEntry(INHERITED, ORDERED_MAX + 6),)),
    ],
)
def test_a_record_with_an_impossible_entry_changes_nothing(stream, record):
    before = stream.state.copy()
    assert stream.take(record) is NotCounted.IMPOSSIBLE
    assert stream.state == before


def test_a_producer_has_one_ticket_in_flight_and_gathers_the_next():
    book = TicketBook()
    book.started(A)
    assert book.record_due() == OwnRecord((Ticket(A, 1, 1),))
    book.started(A)
    book.started(B, 3)
    assert book.record_due() is None
    book.settled(A, 41)
    book.ticket_settled()
    assert book.record_due() == OwnRecord((Ticket(A, 1, 43), Ticket(B, 3, 3)))


def test_a_refused_message_leaves_its_ticket_to_the_next_and_a_refused_ticket_is_owed():
    book = TicketBook()
    book.started(A)
    book.record_due()
    book.settled(A, None, refused=True)
    book.ticket_settled()
    book.started(A)
    assert book.record_due() is None
    book.started(A)
    assert book.record_due() == OwnRecord((Ticket(A, 1, 2),))
    book.ticket_settled(refused=True)
    assert book.record_due() == OwnRecord((Ticket(A, 1, 2),))


def collector():
    own = TicketStream(StreamShape(TAG, {A: 0}, {}))
    return TicketCollector(own, None, patience=5, rest=2, lively=100)


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


@pytest.mark.parametrize(
    ("tickets", "end", "amount"), [((Ticket(A, 0, 1),), 1, 1), ((Ticket(A, 2, 0),), 1, -1)]
)
def test_a_collector_corrects_what_stays_unpaid_or_stays_empty_in_a_log_that_grows(
    tickets, end, amount
):
    core = collector()
    core.log_end(A, 0, now=0)
    core.own_read(0, encode(TAG, OwnRecord(tickets)), now=1)
    core.log_end(A, end, now=1)
    for now in (10, 20, 30, 40):
        core.tick(now)
    records = [action for action in core.step(40) if isinstance(action, WriteRecord)]
    assert records == [WriteRecord(OwnRecord((), (Correction(A, 1, amount),)))]
