"""Readers open a stream by the control topic, and deliver what it orders."""

from dataclasses import replace

import pytest

from multicast.consuming.cursor import Cursor, start_cursor
from multicast.consuming.delivery import Delivery
from multicast.control import ControlState, ends_record, genesis, markers_record, plan_record
from multicast.control.documents import Ended
from multicast.drivers.protocol import Record
from multicast.errors import ProtocolViolation, UnknownVersion
from multicast.order.records import FreezeRecord, OwnRecord, Position, RelayRecord, Ticket, encode
from multicast.order.rule import NotCounted
from multicast.order.runs import Run, digest_of
from multicast.order.stream import OrderStream, StreamCheckpoint
from tests.helpers.plans import began, chain, first_stream, from_start, tag_in

PLAN = chain()
P1, P2, P3 = 0, 1, 2


def control(plan=PLAN, *more):
    state = ControlState(plan.topic)
    first = plan_record(genesis(plan.topic), plan, attempt="1")
    for offset, (key, value) in enumerate([first, *more]):
        read = state.read_collectors if key.startswith(b"checkpoint/") else state.read
        read(Record(offset, value, key))
    return state


def named(point):
    return control().naming(point, now_ms=1)


def k1(*records):
    """The raw records of K1's stream."""
    return [encode(tag_in(PLAN, "K1"), record) for record in records]


def read(stream, raws, first=0):
    return [stream.read(first + number, raw) for number, raw in enumerate(raws)]


def checkpointed():
    """K1's stream: three tickets, a checkpoint of the epoch's start, and two more tickets."""
    stream = first_stream(PLAN, "K1")
    raws = k1(*[OwnRecord((Ticket(P1, 1, 0),))] * 3)
    read(stream, raws)
    first = stream.marked
    raws += k1(first, OwnRecord((Ticket(P2, 2, 0),)), OwnRecord((Ticket(P1, 1, 0),)))
    read(stream, raws[3:], 3)
    second = stream.marked
    raws += k1(second, OwnRecord((Ticket(P2, 1, 0),)))
    read(stream, raws[6:], 6)
    return raws, StreamCheckpoint(1, "K1", 6, raws[6]), stream


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_stream_of_another_version_is_refused_by_name(version):
    says = f"epoch 1 of topic A has order records of version {version}, and this program reads"
    with pytest.raises(UnknownVersion, match=says):
        control(replace(PLAN, order_version=version)).stream(1, "K1", below=0)


def test_a_stream_of_the_epoch_after_a_recovery_begins_with_the_runs_that_it_is_owed():
    first = plan_record(genesis(PLAN.topic), PLAN, attempt="1")
    following = replace(
        PLAN,
        epoch=2,
        base_epoch=1,
        collectors=(replace(PLAN.collectors[0], stream=7), PLAN.collectors[1]),
    )
    ends = {log.name: 5 for log in PLAN.logs}
    ended = Ended({"K2": {"P2": 3}}, {"K2": 2})
    second = plan_record(digest_of(first[1]), following, attempt="1")
    markers = markers_record(digest_of(second[1]), 1, ends, attempt="1")
    last = ends_record(digest_of(markers[1]), 1, ends, attempt="1", ended=ended)
    state = control(PLAN, second, markers, last)
    stream = state.stream(2, "K2", below=0)
    assert (stream.state.positions, stream.shape.owed) == ({P2: 3, P3: 5}, 2)
    above = state.stream(2, "K1", below=0)
    assert (above.state.positions, above.shape.owed) == ({P1: 5, P2: 5}, 0)


def test_a_reader_begins_at_a_named_checkpoint_and_has_the_state_of_all():
    raws, point, whole = checkpointed()
    state = control(PLAN, named(point))
    assert state.stream(1, "K1", below=6).offset_next == 0, "the record itself must lie before"
    stream = state.stream(1, "K1", below=7)
    assert (stream.offset_next, stream.proven) == (4, False)
    read(stream, raws[4:], 4)
    assert stream.proven
    assert stream.state == whole.state
    assert dict(point.positions) == {P1: 3, P2: 0}


def test_a_named_checkpoint_that_its_stream_does_not_contain_is_a_violation():
    raws, point, _ = checkpointed()
    false = replace(point.record, parent_next=1)
    lies = StreamCheckpoint(1, "K1", 6, encode(tag_in(PLAN, "K1"), false))
    stream = control(PLAN, named(lies)).stream(1, "K1", below=7)
    with pytest.raises(ProtocolViolation, match=r"collector K1 .* offset 6"):
        read(stream, raws[4:], 4)
    assert not stream.proven
    stream = control(PLAN, named(point)).stream(1, "K1", below=7)
    read(stream, raws[4:6], 4)
    with pytest.raises(ProtocolViolation):
        stream.passed(8)


@pytest.mark.parametrize("value", [b"", b'"record":"zz"', b'"record":"544f"', b'"record":7'])
def test_a_statement_without_a_checkpoint_record_of_the_stream_is_void(value):
    value = b'{"schema_version":1,"epoch":1,"offset":6,"time_ms":1,%s}' % value
    state = control(PLAN, (b"checkpoint/K1/0/0", value.replace(b",}", b"}")))
    assert state.void == 1
    assert state.stream(1, "K1", below=100).proven


def test_a_checkpoint_of_another_stream_or_beyond_its_own_offset_is_void():
    _, point, _ = checkpointed()
    _, value = named(point)
    early = value.replace(b'"offset":6', b'"offset":3')
    assert control(PLAN, (b"checkpoint/K2/0/0", value)).void == 1
    assert control(PLAN, (b"checkpoint/K1/0/0", early)).void == 1
    assert control(PLAN, (b"checkpoint/K1/0/0", value)).void == 0


@pytest.mark.parametrize("key", ["1/K1/6", "K1/0/5", "K1/27/0", "K1/00/0", "K1/0", "K1/0/0/0", "/"])
def test_a_checkpoint_that_has_no_slot_would_be_held_for_ever_and_is_void(key):
    _, point, _ = checkpointed()
    state = control(PLAN, (f"checkpoint/{key}".encode(), named(point)[1]))
    assert (state.void, state.checkpoints(1, "K1")) == (1, [])


def delivery(cursor, order):
    core = Delivery(PLAN, ("P1", "P2"), order, cursor)
    for log, end in ((P1, 4), (P2, 3)):
        core.payload_read(log, [Record(offset, b"") for offset in range(end)], end)
    return core


def places(batches):
    return [(batch.log.name, record.offset) for batch in batches for record in batch.records]


def test_delivery_follows_tickets_and_any_cursor_of_it_continues_the_same_sequence():
    raws, point, _ = checkpointed()
    whole = delivery(start_cursor(PLAN, "K1"), first_stream(PLAN, "K1"))
    for offset, raw in enumerate(raws):
        whole.order_read(Record(offset, raw))
    sequence, cursors = [], []
    while batches := whole.deliver(1):
        sequence += places(batches)
        cursors.append(Cursor.parse(str(batches[-1].cursor())))
    assert sequence == [
        *(("P1", offset) for offset in range(3)),
        *(("P2", offset) for offset in range(2)),
        ("P1", 3),
        ("P2", 2),
    ]
    state = control(PLAN, named(point))
    for number, cursor in enumerate(cursors, 1):
        order = state.stream(1, "K1", below=cursor.record)
        again = delivery(cursor, order)
        for offset in range(order.offset_next, len(raws)):
            again.order_read(Record(offset, raws[offset]))
        assert places(again.deliver(100)) == sequence[number:]
        assert again.payload_starts is not None


def test_delivery_counts_what_is_void_and_ends_with_the_streams_freeze():
    core = delivery(start_cursor(PLAN, "K1"), first_stream(PLAN, "K1"))
    freeze = FreezeRecord(0, (Position(P1, 1),))
    for offset, raw in enumerate([b"garbage", *k1(freeze, OwnRecord((Ticket(P1, 1, 0),)), freeze)]):
        core.order_read(Record(offset, raw))
    assert core.void == {NotCounted.FOREIGN: 1, NotCounted.EARLY: 1}
    assert places(core.deliver(9)) == [("P1", 0)]
    assert core.ended


def test_a_childs_stream_takes_its_starts_and_its_parents_from_the_plan():
    stream = OrderStream(PLAN, "K2", {**from_start(PLAN), "P2": 5}, began=began(PLAN))
    relay = RelayRecord(0, 4, (Position(P2, 7),))
    assert stream.read(0, encode(tag_in(PLAN, "K2"), relay)) == (Run(P2, 5, 7),)
    assert (stream.own, stream.inherited) == ({P3}, {P2})
    assert stream.starts == {P2: 5, P3: 0}
