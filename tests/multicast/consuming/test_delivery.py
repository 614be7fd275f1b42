"""Delivery: whatever arrives when, the same messages come out in the same order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multicast.consuming.buffers import Waiting
from multicast.consuming.cursor import Cursor, single_log_cursor, start_cursor
from multicast.consuming.delivery import Delivery
from multicast.drivers.protocol import Record
from multicast.errors import Truncated
from multicast.messages import covered_header, epoch_header, skip_header
from multicast.order.records import FreezeRecord, OwnRecord, Position, RelayRecord, Ticket, encode
from multicast.order.runs import Run
from tests.helpers.plans import chain, first_stream, poster, tag_in

PLAN = chain()


def stream_of(*steps: list[Run]) -> list[bytes]:
    """Raw records of K1's stream, one for each list of runs; an empty list is a freeze."""
    records = [
        OwnRecord(tuple(Ticket(run.log, 0, run.next) for run in runs))
        if runs
        else FreezeRecord(0, ())
        for runs in steps
    ]
    return [encode(tag_in(PLAN, "K1"), record) for record in records]


def opened(cursor: Cursor | None = None, interest=("P1", "P2"), **bounds) -> Delivery:
    order = first_stream(PLAN, "K1")
    return Delivery(PLAN, interest, order, cursor or start_cursor(PLAN, "K1"), **bounds)


def plain(first: int, end: int) -> list[Record]:
    return [Record(offset, b"%d" % offset) for offset in range(first, end)]


def ids(batches) -> list[str]:
    return [f"{b.log.name}:{record.offset}" for b in batches for record in b.records]


def test_a_message_waits_for_its_order_and_an_order_for_its_message():
    core = opened()
    core.payload_read(0, plain(0, 2), 2)
    assert core.deliver(10) == []
    for offset, raw in enumerate(stream_of([Run(0, 0, 1), Run(1, 0, 1)], [Run(0, 1, 2)])):
        core.order_read(Record(offset, raw))
    assert ids(core.deliver(10)) == ["P1:0"]
    core.payload_read(1, plain(0, 1), 1)
    assert ids(core.deliver(10)) == ["P2:0", "P1:1"]


def test_a_cursor_goes_on_only_where_the_order_record_is_the_one_from_which_it_was_made():
    raws = stream_of([Run(0, 0, 1), Run(1, 0, 1)], [Run(0, 1, 2)], [Run(1, 1, 2)])
    core = opened()
    core.payload_read(0, plain(0, 2), 2)
    core.payload_read(1, plain(0, 2), 2)
    for offset, raw in enumerate(raws):
        core.order_read(Record(offset, raw, b"writer", timestamp_ms=7))
    first, second = (batch.cursor() for batch in core.deliver(2))

    def goes_on(*records, cursor=second):
        again = opened(Cursor.parse(str(cursor)))
        for record in records:
            again.order_read(record)
        again.payload_read(0, plain(1, 2), 2)
        return ids(again.deliver(10))

    there, after = Record(0, raws[0], b"writer", timestamp_ms=7), Record(1, raws[1], b"w")
    assert goes_on(there, after) == ["P1:1"]
    assert goes_on(there, cursor=first) == []
    for other in (
        [there._replace(timestamp_ms=8)],
        [there._replace(key=b"another")],
        [there._replace(value=raws[1])],
        [after],
    ):
        with pytest.raises(Truncated, match="order record 0 of collector K1 in epoch 1 is not"):
            goes_on(*other)
    again = opened(second)
    with pytest.raises(Truncated, match="lost the end"):
        again.order_passed(1)
    for _ in range(2):  # who goes on all the same gets it again, and nothing else
        with pytest.raises(Truncated):
            again.order_read(after)
    assert again.deliver(10) == []
    assert goes_on(there._replace(key=b"another"), cursor=Cursor.parse(second.place)) == []


def test_a_cursor_behind_the_new_end_of_its_stream_is_no_end_of_the_epoch():
    core = opened()
    core.payload_read(0, plain(0, 2), 2)
    tickets = stream_of([Run(0, 0, 1)], [Run(0, 1, 2)])
    for offset, raw in enumerate(tickets):
        core.order_read(Record(offset, raw))
    cursor = core.deliver(2)[-1].cursor()
    # The stream has lost its end, and a freeze stands where the first ticket was.
    again = opened(cursor)
    with pytest.raises(Truncated):
        again.order_read(Record(0, *stream_of([])))


def test_an_offset_that_is_ordered_before_it_is_filled_is_waited_for():
    core = opened()
    core.order_read(Record(0, stream_of([Run(0, 0, 3)])[0]))
    core.payload_read(0, plain(0, 1), 1)
    assert ids(core.deliver(10)) == ["P1:0"]
    assert core.deliver(10) == []
    core.payload_read(0, plain(1, 3), 3)
    assert ids(core.deliver(10)) == ["P1:1", "P1:2"]


def test_who_waits_for_a_log_that_is_ordered_ahead_of_its_end_can_say_so():
    core = opened()
    for offset, raw in enumerate(stream_of([Run(0, 0, 3)], [Run(1, 0, 2)])):
        core.order_read(Record(offset, raw))
    core.payload_read(0, plain(0, 1), 1, now=5.0)
    assert ids(core.deliver(10)) == ["P1:0"]
    assert core.waiting(6.0) is None, "no message is at hand that could not be delivered"
    core.payload_read(1, plain(0, 1), 1, now=7.0)
    core.payload_read(1, plain(1, 2), 2, now=9.0)
    assert core.deliver(10) == []
    assert core.waiting(10.0) == Waiting("P1", 1, 3, 3.0, {"P2": 2})
    core.payload_read(0, [], 3)
    assert core.waiting(10.0) is None, "P1 has no message in the way any more"
    assert ids(core.deliver(1)) == ["P2:0"]
    assert core.waiting(11.0) is None, "what is deliverable waits for the application"
    assert ids(core.deliver(1)) == ["P2:1"]


def test_who_has_messages_whose_order_is_missing_can_say_so():
    core = opened()
    core.payload_read(1, plain(0, 2), 2, now=2.0)
    core.payload_read(0, plain(0, 1), 1, now=4.0)
    assert core.deliver(10) == []
    assert core.waiting(5.0) == Waiting("P2", 0, 0, 3.0, {"P1": 1, "P2": 2})
    core.order_read(Record(0, stream_of([Run(1, 0, 1)])[0]))
    assert ids(core.deliver(10)) == ["P2:0"]
    assert core.waiting(5.0) == Waiting("P2", 1, 1, 3.0, {"P1": 1, "P2": 1})


def test_who_reads_one_log_waits_for_no_order():
    core = Delivery(PLAN, ("P4",), None, single_log_cursor(PLAN, "P4", 0))
    core.payload_read(3, plain(0, 2), 2)
    assert core.waiting(5.0) is None


def test_offsets_that_were_passed_without_a_message_are_dropped():
    core = opened()
    for offset, raw in enumerate(stream_of([Run(0, 0, 5)], [Run(1, 0, 1)])):
        core.order_read(Record(offset, raw))
    core.payload_read(1, plain(0, 1), 1)
    core.payload_read(0, [Record(1, b"x"), Record(3, b"y")], 4)
    assert ids(core.deliver(10)) == ["P1:1", "P1:3"]
    core.payload_read(0, [], 5)
    assert ids(core.deliver(10)) == ["P2:0"]


def test_skips_and_epoch_markers_are_not_delivered_in_an_order_stream():
    core = opened()
    core.order_read(Record(0, stream_of([Run(0, 0, 4)])[0]))
    special = [
        Record(0, b"", None, [skip_header("P1")]),
        Record(1, None, None, [epoch_header("P1", 2)]),
        Record(2, b"copied from elsewhere", None, [skip_header("P2")]),
        Record(3, b"plain"),
    ]
    core.payload_read(0, special, 4)
    assert ids(core.deliver(10)) == ["P1:2", "P1:3"]


def test_a_covered_message_reaches_only_whom_its_exact_set_names():
    plan = poster()
    number = plan.number("P2+P3+P4")
    for interest, expected in ((("P1", "P2", "P3"), ["P2+P3+P4:0", "P2+P3+P4:1"]),):
        node = plan.collector_for(interest)
        order = first_stream(plan, node.name)
        record = OwnRecord((Ticket(number, 0, 3),))
        if number not in order.own:
            record = RelayRecord(0, 1, (Position(number, 3),))
        raw = encode(tag_in(plan, node.name), record)
        core = Delivery(plan, interest, order, start_cursor(plan, node.name))
        core.order_read(Record(0, raw))
        records = [
            Record(0, b"all"),
            Record(1, b"", None, [covered_header("P2+P3+P4", ["P3", "P4"])]),
            Record(2, b"", None, [covered_header("P2+P3+P4", ["P4"])]),
        ]
        core.payload_read(number, records, 3)
        batches = core.deliver(10)
        assert ids(batches) == expected
        assert [batch.to for batch in batches] == [("P2", "P3", "P4"), ("P3", "P4")]


def test_only_the_logs_of_the_interest_are_delivered():
    core = opened(interest=("P2",))
    core.order_read(Record(0, stream_of([Run(0, 0, 9), Run(1, 0, 2)])[0]))
    core.payload_read(1, plain(0, 2), 2)
    assert ids(core.deliver(10)) == ["P2:0", "P2:1"]


def test_a_freeze_ends_the_epoch_once_all_before_it_is_delivered():
    core = opened()
    for offset, raw in enumerate(stream_of([Run(0, 0, 1)], [])):
        core.order_read(Record(offset, raw))
    assert not core.ended
    core.payload_read(0, plain(0, 1), 1)
    core.deliver(10)
    core.deliver(10)
    assert core.ended


def test_the_log_at_the_head_of_the_order_is_never_paused():
    core = opened(buffer_bytes_max=1)
    core.order_read(Record(0, stream_of([Run(0, 0, 2), Run(1, 0, 1)])[0]))
    core.payload_read(0, plain(0, 1), 1)
    core.payload_read(1, plain(0, 1), 1)
    assert core.paused() == [1]
    assert ids(core.deliver(10)) == ["P1:0"]
    assert core.paused() == [1]
    core.payload_read(0, plain(1, 2), 2)
    assert ids(core.deliver(10)) == ["P1:1", "P2:0"]


def test_a_full_queue_of_runs_pauses_the_order():
    core = opened(runs_max=2)
    core.order_read(Record(0, stream_of([Run(0, 0, 1), Run(1, 0, 1)])[0]))
    assert core.order_paused()
    core.payload_read(0, plain(0, 1), 1)
    core.deliver(10)
    core.deliver(10)
    assert not core.order_paused()


def test_a_lone_reader_needs_no_order_stream():
    core = Delivery(PLAN, ("P4",), None, single_log_cursor(PLAN, "P4", 0))
    core.payload_read(3, plain(0, 3), 3)
    batches = core.deliver(10)
    assert ids(batches) == ["P4:0", "P4:1", "P4:2"]
    assert batches[0].cursor().place == "1/@P4/0/0/3"


def test_a_lone_reader_stops_at_the_epoch_marker_until_it_knows_where_the_epoch_ends():
    core = Delivery(PLAN, ("P4",), None, single_log_cursor(PLAN, "P4", 0))
    marked = [*plain(0, 2), Record(2, None, None, [epoch_header("P4", 2)]), *plain(3, 6)]
    core.payload_read(3, marked, 6)
    assert ids(core.deliver(10)) == ["P4:0", "P4:1"]
    assert core.deliver(10) == []
    assert core.marker == 2
    assert not core.ended
    core.end_log_at(5)
    assert ids(core.deliver(10)) == ["P4:3", "P4:4"]
    core.deliver(10)
    assert core.ended


@pytest.mark.parametrize(("epoch", "stops"), [(PLAN.epoch, False), (PLAN.epoch + 6, True)])
def test_only_a_marker_of_a_later_epoch_stops_a_lone_reader(epoch, stops):
    """The log may have been retained several times; an old marker is of a repeated drain."""
    core = Delivery(PLAN, ("P4",), None, single_log_cursor(PLAN, "P4", 0))
    core.payload_read(3, [Record(0, None, None, [epoch_header("P4", epoch)]), *plain(1, 2)], 2)
    assert ids(core.deliver(10)) == ([] if stops else ["P4:1"])


def history(seed: int) -> tuple[list[bytes], dict[int, list[Record]], dict[int, int]]:
    """Random order records over two logs, and payloads with empty offsets and skips."""
    rng = random.Random(seed)
    ends = {0: 0, 1: 0}
    steps = []
    for _ in range(rng.randint(1, 8)):
        runs = []
        for _ in range(rng.randint(1, 4)):
            log = rng.randrange(2)
            first, ends[log] = ends[log], ends[log] + rng.randint(1, 4)
            runs.append(Run(log, first, ends[log]))
        steps.append(runs)
    logs: dict[int, list[Record]] = {0: [], 1: []}
    for log, end in ends.items():
        for offset in range(end):
            kind = rng.random()
            if kind < 0.6:
                logs[log].append(Record(offset, b"m"))
            elif kind < 0.75:
                logs[log].append(Record(offset, b"", None, [skip_header(f"P{log + 1}")]))
    return stream_of(*steps), logs, ends


def slow_progress(core: Delivery) -> dict[str, int]:
    """Give what `progress` gives, by a look at all runs."""
    reached = {number: core.order.state.positions[number] for number in core.logs}
    for run in reversed(core._runs._all):
        buffer = core.buffers[run.log]
        passed = run.first if buffer.chunks else max(run.first, buffer.passed)
        reached[run.log] = min(run.next, passed)
    return {core.logs[number].name: offset for number, offset in reached.items()}


def run_through(core: Delivery, seed: int, history_seed: int) -> list[tuple[str, Cursor]]:
    """Feed a whole history in an order that `seed` chooses; list the deliveries with cursors."""
    rng = random.Random(seed)
    raws, logs, ends = history(history_seed)
    out = []
    moved = {}
    read = {0: None, 1: None}
    order_offset = 0
    for step in range(10_000):
        choice = rng.randrange(4)
        if choice == 0 and order_offset < len(raws):
            core.order_read(Record(order_offset, raws[order_offset]))
            order_offset += 1
        elif choice in (1, 2) and core.payload_starts is not None:
            log = choice - 1
            begin = core.payload_starts[log] if read[log] is None else read[log]
            end = min(ends[log], begin + rng.randint(1, 3))
            read[log] = max(begin, end)
            core.payload_read(log, [r for r in logs[log] if begin <= r.offset < end], read[log])
        else:
            for batch in core.deliver(rng.randint(1, 5)):
                for index, record in enumerate(batch.records):
                    out.append((f"{batch.log.name}:{record.offset}", batch.cursor(index)))
        if core.payload_starts is not None and rng.random() < 0.7:
            moved.update(core.moved())
            assert {core.logs[log].name: to for log, to in moved.items()} == core.progress()
            assert core.progress() == slow_progress(core)
        done = order_offset == len(raws) and all(read[log] == ends[log] for log in ends)
        if step > 300 and done and not core.deliver(1) and not core._runs:
            break
    return out


@settings(max_examples=200)
@given(what=st.integers(0, 2**32), seed=st.integers(0, 2**32), other=st.integers(0, 2**32))
def test_when_payloads_arrive_never_shows_and_every_cursor_goes_on_exactly_there(what, seed, other):
    first = run_through(opened(), seed, what)
    again = run_through(opened(), other, what)
    assert first == again
    raws, logs, _ = history(what)
    expected = sum(not record.headers for records in logs.values() for record in records)
    assert len(first) == expected
    if first:
        index = random.Random(other).randrange(len(first))
        resumed = run_through(opened(first[index][1]), other, what)
        assert resumed == first[index + 1 :]
    assert len(raws) > 0
