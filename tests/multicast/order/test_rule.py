"""The ticket rule, clause by clause, on hand-made records."""

import tracemalloc
from dataclasses import replace

import pytest

from collectors.core.restored_runs import EndedStream, restored_records, restored_runs
from multicast.errors import ProtocolViolation
from multicast.order.records import (
    COUNT_MAX,
    PROMISE_MAX,
    CheckpointRecord,
    Correction,
    FreezeRecord,
    Loss,
    OwnLog,
    OwnRecord,
    Position,
    RelayRecord,
    RestoredRecord,
    SeenEnd,
    SightRecord,
    Ticket,
    Unread,
    decode,
    encode,
)
from multicast.order.rule import NotCounted, RecordStream, StreamShape
from multicast.order.runs import ORDERED_MAX, Run
from multicast.producing.ticket_book import RECORD_COUNT_MAX, TicketBook

TAG, OTHER_TAG = b"t" * 16, b"u" * 16
A, B, INHERITED = 0, 1, 2


class Stream(RecordStream):
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
        OwnRecord((Ticket(A, 3, 9), Ticket(B, 0, 2**40)), (Correction(A, 1, 2),)),
        RelayRecord(3, 9, (Position(2, 6), Position(2, 8)), 4, 2**32 - 1),
        FreezeRecord(4, (Position(0, 3), Position(1, 12))),
        RestoredRecord(0, 2, (Position(2, 6), Position(0, 8))),
        CheckpointRecord(9, 3, 0, (OwnLog(0, 1, 2, 3, True),), (Position(2, 8),)),
        CheckpointRecord(
            9,
            3,
            0,
            (OwnLog(0, 1, 2, 3, True),),
            (Position(2, 8),),
            5,
            (SeenEnd(0, 8, 1), SeenEnd(0, 9, 2), SeenEnd(2, 9, 1)),
            (Loss(0, 7), Loss(2, 4)),
        ),
        SightRecord((SeenEnd(2, 8, 1), SeenEnd(0, 2**63 - 1, 2**32 - 1)), (Loss(0, 7),)),
        OwnRecord(),
    ],
)
def test_a_record_is_read_as_it_was_written(record):
    raw = encode(TAG, record)
    assert decode(TAG, raw) == record
    assert decode(TAG, raw + b"\0") is Unread.MALFORMED
    assert decode(TAG, raw[:-1]) is Unread.MALFORMED
    assert decode(OTHER_TAG, raw) is Unread.FOREIGN
    assert decode(TAG, b"hello") is Unread.FOREIGN


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


def test_what_tickets_promise_beyond_their_messages_is_bounded_however_often_they_say_it(stream):
    assert stream.tickets(Ticket(A, 2, 2**23)) == (Run(A, 0, 2 + PROMISE_MAX),)
    for place in range(3):
        first = 2 + PROMISE_MAX + place
        assert stream.tickets(Ticket(A, 1, 2**23)) == (Run(A, first, first + 1),)
        assert stream.state.debts[A] == PROMISE_MAX
    # A collector has seen the end that it names. Until that is paid, producers promise nothing.
    stream.tickets(Ticket(A, 0, 2**20))
    assert stream.state.positions[A] == 2**20
    assert stream.tickets(Ticket(A, 1, 2**23)) == ()


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


def test_a_relay_begins_where_the_last_one_ended_in_the_same_tail_of_the_parents_stream(stream):
    first, second = Position(INHERITED, 6), Position(INHERITED, 8)
    assert stream.take(RelayRecord(4, 6, (second,))) is NotCounted.GAP
    assert stream.take(RelayRecord(3, 4, (first,), 0, 9)) == (Run(INHERITED, 5, 6),)
    assert stream.take(RelayRecord(3, 6, (first, second), 0, 7)) is NotCounted.OVERLAP
    assert stream.take(RelayRecord(4, 6, (second,), 8, 7)) is NotCounted.OTHER
    assert stream.take(RelayRecord(4, 6, (second,), 9, 7)) == (Run(INHERITED, 6, 8),)
    assert stream.take(RelayRecord(4, 6, (second,), 9, 7)) is NotCounted.KNOWN
    assert (stream.state.parent_next, stream.state.parent_last) == (6, 7)


def test_of_the_ends_that_were_seen_stay_those_that_show_a_loss(stream):
    def seen(*ends):
        assert stream.take(SightRecord(tuple(SeenEnd(A, *each) for each in ends))) == ()
        return [(each.end, each.leader_epoch) for each in stream.state.seen[A]]

    assert seen((5, 3)) == [(5, 3)]
    assert seen((7, 3)) == [(7, 3)]  # the same leader went on
    assert seen((6, 4)) == [(7, 3)]  # under the next one it was shorter: the loss shows already
    assert seen((9, 4), (12, 7), (15, 8)) == [(7, 3), (9, 4), (15, 8)]
    # Of those that are ordered the largest stays: nothing may be filled below it.
    stream.tickets(Ticket(A, 9, 0))
    assert [each.end for each in stream.checkpoint().seen] == [9, 15]
    assert seen((10, 5), (11, 6)) == [(9, 4), (10, 5), (11, 6), (15, 8)]
    assert seen((ORDERED_MAX + 10, 9)) == [(9, 4), (10, 5), (11, 6), (15, 8)]


def test_what_stays_of_seen_ends_does_not_depend_on_where_a_reader_began(stream):
    def sight(*ends):
        return SightRecord(tuple(SeenEnd(A, *each) for each in ends))

    stream.take(sight((10, 1), (20, 3)))
    stream.tickets(Ticket(A, 30, 0))
    later = RecordStream(stream.shape, stream.checkpoint())
    late = encode(TAG, sight((40, 2)))  # of an instance that still sees the leader before
    assert later.read(later.offset_next, late) == stream.take(sight((40, 2))) == ()
    assert later.state.seen == stream.state.seen == {A: (SeenEnd(A, 40, 2),)}


def test_of_equal_seen_ends_the_first_with_a_checksum_stays(stream):
    for checksum, stays in ((0, 0), (7, 7), (0, 7), (8, 7)):
        stream.take(SightRecord((SeenEnd(A, 9, 1, checksum),)))
        assert stream.state.seen == {A: (SeenEnd(A, 9, 1, stays),)}


def test_a_stream_begins_with_what_was_seen_before_as_with_a_sight(stream):
    sight = SightRecord((SeenEnd(A, 9, 1, 7), SeenEnd(B, 2**40, 1, 7)), (Loss(INHERITED, 6),))
    begun = RecordStream(replace(stream.shape, sight=sight))
    stream.take(sight)
    assert (begun.state.seen, begun.state.lost) == (stream.state.seen, stream.state.lost)
    assert begun.marked.seen == (SeenEnd(A, 9, 1, 7),)


def test_of_a_logs_losses_the_lowest_stays(stream):
    for first in (9, 7, 8):
        assert stream.take(SightRecord((), (Loss(B, first),))) == ()
    assert stream.state.lost == {B: 7}
    assert stream.checkpoint().lost == (Loss(B, 7),)


def test_what_was_seen_and_lost_goes_through_a_checkpoint(stream):
    stream.take(SightRecord((SeenEnd(A, 5, 3), SeenEnd(A, 9, 4)), (Loss(INHERITED, 6),)))
    stream.take(RelayRecord(3, 4, (), 0, 9))
    opened = RecordStream(stream.shape, stream.checkpoint())
    assert opened.state == stream.state


def test_a_freeze_counts_only_where_the_stream_has_come_so_far(stream):
    assert stream.take(FreezeRecord(3, (Position(A, 1),))) is NotCounted.EARLY
    assert stream.take(FreezeRecord(4, ())) is NotCounted.EARLY
    stream.tickets(Ticket(A, 1, 0))
    assert stream.take(FreezeRecord(3, (Position(A, 1),))) == ()
    assert stream.tickets(Ticket(A, 1, 0)) is NotCounted.FROZEN


@pytest.mark.parametrize(
    "record",
    [
        OwnRecord((Ticket(A, COUNT_MAX + 1, 0),)),
        OwnRecord((Ticket(A, 0, ORDERED_MAX + 1),)),
        OwnRecord((Ticket(INHERITED, 1, 0),)),
        OwnRecord((Ticket(A, 1, 0),), (Correction(9, 1, 1),)),
        SightRecord((SeenEnd(9, 1, 1),)),
        SightRecord((), (Loss(9, 1),)),
        RelayRecord(3, 4, (Position(A, 1),)),
        RelayRecord(3, 4, (Position(INHERITED, ORDERED_MAX + 6),)),
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


def test_a_record_of_many_tickets_orders_no_more_than_one_record_may(stream):
    each = Ticket(A, COUNT_MAX, 0)
    most = ORDERED_MAX // COUNT_MAX
    assert stream.tickets(*[each] * (most + 1)) is NotCounted.IMPOSSIBLE
    assert stream.state.positions[A] == 0
    stream.tickets(*[each] * most)
    assert stream.state.positions[A] == ORDERED_MAX


def test_in_a_held_log_only_the_collector_orders_and_nobody_owes_a_ticket(stream):
    stream.take(OwnRecord((), (Correction(A, 1, 0, held=True),)))
    assert stream.tickets(Ticket(A, 1, 5), Ticket(B, 1, 0)) == (Run(B, 10, 11),)
    assert stream.tickets(Ticket(A, 0, 4)) == (Run(A, 0, 4),)
    assert stream.state.debts[A] == 0
    # In this order: the last tickets of its collector make no debt either.
    release = OwnRecord((Ticket(A, 0, 6),), (Correction(A, 2, 0),))
    assert stream.take(release) == (Run(A, 4, 6),)
    assert stream.tickets(Ticket(A, 1, 0)) == (Run(A, 6, 7),)


def test_a_checkpoint_counts_once_and_only_with_the_state_at_the_mark(stream):
    stream.take(OwnRecord((Ticket(A, 2, 3),), (Correction(B, 1, 0, held=True),)))
    start, here = stream.marked, stream.checkpoint()
    assert stream.take(here) is NotCounted.FALSE
    assert stream.take(start) == ()
    assert stream.checkpoint_at == 2
    assert stream.take(start) is NotCounted.KNOWN
    stream.tickets(Ticket(A, 1, 0))
    second = stream.marked
    assert second.mark == 3
    assert stream.take(second) == ()

    reader = Stream(stream.shape, second)
    assert reader.offset_next == 3
    assert reader.take(start) is NotCounted.KNOWN
    assert reader.tickets(Ticket(A, 1, 0)) == ()
    assert reader.take(second) == ()
    assert reader.state == stream.state
    assert reader.marked == stream.marked


def test_of_what_was_decoded_only_small_records_are_kept_for_other_readers():
    ticket = encode(TAG, OwnRecord((Ticket(A, 1, 1),)))
    assert decode(TAG, ticket) is decode(TAG, bytes(ticket))
    entries = tuple(Position(log, log) for log in range(1000))
    tracemalloc.start()
    try:
        for place in range(20):
            decode(TAG, encode(TAG, RelayRecord(place, place + 1, entries)))
            decode(TAG, TAG + place.to_bytes(2) + bytes(100_000))  # a stranger's
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 500_000


def test_a_checkpoint_of_other_logs_is_no_checkpoint_of_a_stream(stream):
    other = RecordStream(StreamShape(TAG, {A: 0}, {})).checkpoint()
    with pytest.raises(ProtocolViolation, match="other logs"):
        RecordStream(stream.shape, other)


def test_restored_runs_come_before_everything_else():
    shape = StreamShape(TAG, {A: 4}, {INHERITED: 5}, parent_first=3, owed=3)
    stream = Stream(shape)
    assert stream.tickets(Ticket(A, 1, 0)) is NotCounted.OWED
    assert stream.take(RelayRecord(3, 4, (Position(INHERITED, 6),))) is NotCounted.OWED
    assert stream.take(FreezeRecord(0, ())) is NotCounted.OWED
    entries = Position(INHERITED, 7), Position(A, 6), Position(INHERITED, 9)
    assert stream.take(RestoredRecord(1, 3, entries[1:])) is NotCounted.GAP
    assert stream.take(RestoredRecord(0, 1, entries)) is NotCounted.IMPOSSIBLE
    assert stream.take(RestoredRecord(0, 4, (*entries, entries[0]))) is NotCounted.IMPOSSIBLE
    assert stream.take(RestoredRecord(0, 2, entries[:2])) == (Run(INHERITED, 5, 7), Run(A, 4, 6))
    assert stream.take(RestoredRecord(0, 3, entries)) == (Run(INHERITED, 7, 9),)
    assert stream.take(RestoredRecord(0, 3, entries)) is NotCounted.KNOWN
    assert stream.tickets(Ticket(A, 1, 0)) == (Run(A, 6, 7),)


def test_a_recovery_restores_what_parents_have_ordered_in_their_order():
    runs = [Run(A, 0, 2), Run(B, 0, 1), Run(A, 2, 3)]
    streams = {
        "top": EndedStream(None, {A: 3, B: 1}, runs),
        "middle": EndedStream("top", {A: 2, B: 0, INHERITED: 4}, [Run(A, 0, 2)]),
        "low": EndedStream("middle", {A: 0, B: 0}, []),
    }
    assert restored_runs(streams) == {
        "top": [],
        "middle": [Run(B, 0, 1), Run(A, 2, 3)],
        "low": [Run(A, 0, 2), Run(B, 0, 1), Run(A, 2, 3)],
    }
    (record,) = restored_records([Run(B, 0, 1), Run(A, 2, 3)])
    assert record == RestoredRecord(0, 2, (Position(B, 1), Position(A, 3)))


def test_each_record_of_a_recovery_is_within_the_limits():
    ended = {"top": EndedStream(None, {A: 0}, []), "low": EndedStream(None, {A: 2**25}, [])}
    runs = restored_runs(ended)["top"]
    assert runs == [Run(A, 0, ORDERED_MAX), Run(A, ORDERED_MAX, 2**25)]
    stream = Stream(StreamShape(TAG, {A: 0}, {}, owed=2))
    assert [stream.take(record) for record in restored_records(runs)] == [(runs[0],), (runs[1],)]


def test_one_record_of_a_producer_counts_a_bounded_number_of_messages():
    book = TicketBook()
    for log in range(20):
        book.started(log, COUNT_MAX)
    record = book.record_due()
    assert sum(ticket.messages for ticket in record.tickets) == RECORD_COUNT_MAX
    book.ticket_settled()
    rest = book.record_due()
    assert {ticket.log for ticket in rest.tickets} == {16, 17, 18, 19}
