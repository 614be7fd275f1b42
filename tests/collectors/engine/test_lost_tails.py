"""Collectors on a log in memory that loses ends, as replicas without power do."""

import pytest

from collectors.engine import chores, last_records
from collectors.engine.engine import Engine
from multicast.control import collectors_partition, log_partition, running_record, stream_partition
from multicast.control.codecs import named_record
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, Truncated
from multicast.order.records import Loss, OwnRecord, SeenEnd, SightRecord, Ticket, encode
from multicast.order.stream import StreamCheckpoint
from tests.collectors.engine.test_engine import AT, Sink, Streams
from tests.helpers.plans import chain, first_stream, tag_in
from tests.helpers.small import Small, state_of, until

P1, P2, P3 = 0, 1, 2
FOREVER_S = 3600.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(chores, "_RECHECK_EVERY_S", 0.02)
    monkeypatch.setattr(last_records, "END_LAGS_S", 0.0)


@pytest.fixture
def system():
    with Small(chain()) as made:
        yield made


def send(system, to, count=1):
    with system.producer() as producer:
        for number in range(count):
            producer.multicast(b"%d" % number, to={to}).accepted(60)


def read(system, name):
    """Read a collector's stream."""
    stream = first_stream(system.plan, name)
    fetched = system.log.read(stream_partition(system.plan, name), 0, 10**6)
    for record in fetched.records if fetched else ():
        stream.read(record.offset, record.value)
    return stream


def seen_of(system, name, log):
    """Give what the stream says how far a log was seen, as (end, leader epoch)."""
    return [each[1:3] for each in read(system, name).state.seen.get(log, ())]


def lost_of(system, name):
    return read(system, name).state.lost


def stated(system, log):
    """Give what the control topic says that a log has lost."""
    return state_of(system).loss_of(1, log)


def is_lost(system, name):
    """Whether the control topic says that a collector's stream has lost its end."""
    return state_of(system).stream_is_lost(1, name)


def place(system, log):
    return log_partition(system.plan.log(log))


def test_ends_are_stated_by_the_top_and_repeated_by_its_child(system):
    system.run_all()
    send(system, "P2", 3)
    send(system, "P3", 2)
    until(lambda: seen_of(system, "K1", P2) == seen_of(system, "K2", P2) == [(3, 0)])
    until(lambda: seen_of(system, "K2", P3) == [(2, 0)])
    system.log.lose(place(system, "P2"), 3)  # another leader, and nothing is lost
    send(system, "P2")
    until(lambda: seen_of(system, "K1", P2) == seen_of(system, "K2", P2) == [(4, 1)])
    assert not lost_of(system, "K1")


def test_one_that_runs_states_a_loss_in_all_streams_and_on_the_control_topic(system):
    system.run_all()
    send(system, "P2", 9)
    until(lambda: seen_of(system, "K2", P2) == [(9, 0)])
    system.log.lose(place(system, "P2"), 5)
    send(system, "P2", 9)
    until(lambda: lost_of(system, "K1") == lost_of(system, "K2") == {P2: 5})
    until(lambda: stated(system, "P2") == 5)
    assert stated(system, "P1") is None
    send(system, "P1")
    until(lambda: seen_of(system, "K1", P1) == [(1, 0)])
    assert (9, 0) in seen_of(system, "K1", P2)
    assert all(epoch == 0 for _, epoch in seen_of(system, "K1", P2))  # no end of a lost log


def test_one_that_starts_states_a_loss_before_the_log_grows_and_fills_nothing(system):
    node, thread = system.run("K1")
    send(system, "P1", 9)
    until(lambda: seen_of(system, "K1", P1) == [(9, 0)])
    node.stop()
    thread.join(60)
    system.log.lose(place(system, "P1"), 5)
    system.run("K1")
    until(lambda: stated(system, "P1") == 5)
    send(system, "P2")  # ticks pass meanwhile
    until(lambda: seen_of(system, "K1", P2) == [(1, 0)])
    assert system.log.high_watermarks([place(system, "P1")]) == {place(system, "P1"): 5}


def test_a_statement_that_the_control_topic_lacks_is_written_by_the_next_instance(system):
    tag = tag_in(system.plan, "K1")
    at = stream_partition(system.plan, "K1")
    system.log.write(at, encode(tag, OwnRecord((Ticket(P1, 3, 3),))))
    system.log.write(at, encode(tag, SightRecord((), (Loss(P1, 1),))))
    assert stated(system, "P1") is None
    system.run("K1")
    until(lambda: stated(system, "P1") == 1)


def test_a_hole_is_filled_only_once_the_present_leader_is_compared(system, monkeypatch):
    monkeypatch.setattr(chores, "_RECHECK_EVERY_S", FOREVER_S)  # so only a fill asks
    tag, at = tag_in(system.plan, "K1"), stream_partition(system.plan, "K1")
    p1 = place(system, "P1")
    for _ in range(4):
        system.log.write(p1, b"")
    system.log.write(at, encode(tag, OwnRecord((Ticket(P1, 4, 4),))))
    system.log.write(at, encode(tag, SightRecord((SeenEnd(P1, 4, 0),))))
    system.log.lose(p1, 2)
    for _ in range(3):
        system.log.write(p1, b"")
    system.run("K1")
    system.log.write(at, encode(tag, OwnRecord((Ticket(P1, 9, 12),))))  # a hole at 5
    until(lambda: lost_of(system, "K1") == {P1: 2})
    assert system.log.high_watermarks([p1]) == {p1: 5}


def test_an_instance_whose_own_stream_has_another_end_ends_by_name_and_the_next_works(system):
    node, _ = system.run("K1")
    send(system, "P1", 9)
    until(lambda: seen_of(system, "K1", P1) == [(9, 0)])
    at = stream_partition(system.plan, "K1")
    end = system.log.last_stable_offsets([at])[at]
    until(lambda: node.core.own.offset_next >= end)
    system.log.lose(at, end - 2)
    for _ in range(9):
        system.log.write(at, b"")
    until(node.ended.is_set)
    assert isinstance(node.error, Truncated)
    assert "the order stream A.Msg-TO/0 has lost its end" in str(node.error)
    until(lambda: is_lost(system, "K1"))
    system.run("K1")
    send(system, "P1")
    until(lambda: (10, 0) in seen_of(system, "K1", P1))


def test_an_instance_whose_own_stream_is_shorter_than_what_it_has_read_ends_by_name(system):
    node, _ = system.run("K1")
    send(system, "P1", 9)
    until(lambda: seen_of(system, "K1", P1) == [(9, 0)])
    system.log.lose(stream_partition(system.plan, "K1"), 1)
    until(node.ended.is_set)
    assert isinstance(node.error, Truncated)


def test_a_child_states_that_its_parents_stream_has_lost_what_it_has_relayed(system):
    running = [system.run(name) for name in ("K1", "K2")]
    send(system, "P2", 9)
    until(lambda: seen_of(system, "K2", P2) == [(9, 0)])
    for node, thread in running:
        node.stop()
        thread.join(60)
    relayed = read(system, "K2").state.parent_next
    at = stream_partition(system.plan, "K1")
    system.log.lose(at, relayed - 1)
    for _ in range(9):
        system.log.write(at, b"")
    system.run("K2")
    until(lambda: is_lost(system, "K1"))
    assert not is_lost(system, "K2")


def test_a_process_reads_a_control_topic_anew_that_ends_below_what_it_had_read(system):
    with Engine(system.driver, system.topic) as engine:
        for number in range(9):
            system.write(running_record(1, f"K{number}"))
        until(lambda: len(engine.control.advertised.running) == 9)
        system.log.lose(collectors_partition(system.topic), 1)
        system.write(running_record(1, "K9"))
        until(lambda: set(engine.control.advertised.running) == {"K0", "K9"})
        assert engine.control.plans == [system.plan]


def test_a_process_reads_a_control_topic_anew_that_has_other_records_where_it_had_read(system):
    with Engine(system.driver, system.topic) as engine:
        for number in range(9):
            system.write(running_record(1, f"K{number}"))
        until(lambda: len(engine.control.advertised.running) == 9)
        with system.log.changed:  # nobody reads meanwhile
            system.log.lose(collectors_partition(system.topic), 1)
            for number in range(10, 18):
                system.write(running_record(1, f"K{number}"))
        system.write(running_record(1, "K18"))
        there = {"K0", *(f"K{number}" for number in range(10, 19))}
        until(lambda: set(engine.control.advertised.running) == there)


@pytest.mark.parametrize("opened", ["K1", "K2"])
def test_a_checkpoint_that_is_named_at_the_end_or_above_is_a_lost_end(system, opened):
    stream = first_stream(system.plan, "K1")
    raw = encode(tag_in(system.plan, "K1"), stream.marked)
    system.write(named_record(StreamCheckpoint(1, "K1", 0, raw), 1, (0, 0)))
    with pytest.raises(Truncated, match=r"stream of collector K1.*checkpoint was at offset 0"):
        system.run(opened)
    system.log.write(stream_partition(system.plan, "K1"), raw)
    system.run(opened)


OTHER = TopicPartition("S", 1)


class Followed(Streams):
    """A loop with one subscriber."""

    def __init__(self, **options):
        super().__init__(**options)
        self.sink = Sink()
        self.offsets, self.errors = self.sink.offsets, self.sink.errors

    def subscribe(self, *starts):
        self.loop.subscribe(self.sink, dict(starts))


def test_who_reads_a_stream_hears_that_another_leader_has_taken_other_records():
    streams = Followed()
    streams.subscribe((AT, 0), (OTHER, 0))
    streams.write(9)
    streams.write(9, OTHER)
    streams.turn()
    streams.log.lose(OTHER, 9)  # another leader, and nothing is lost
    streams.log.lose(AT, 5)
    streams.write(9)
    streams.write(3, OTHER)
    streams.turn()
    assert [error.partition for error in streams.errors] == [AT]
    assert isinstance(streams.errors[0], Truncated)
    assert streams.offsets == [*range(9), *range(9), 9, 10, 11]
    streams.subscribe((AT, 4))  # begins anew
    streams.turn()
    assert streams.offsets[21:] == list(range(4, 14))
    assert not streams.failed


def test_what_is_read_again_is_compared_too():
    streams = Followed()
    streams.subscribe((AT, 0))
    streams.write(9)
    streams.turn()
    streams.loop._drop_reader()
    streams.subscribe((AT, 2))
    streams.turn()
    assert streams.offsets == [*range(9), *range(2, 9)]
    streams.log.lose(AT, 5)
    streams.write(9)
    streams.subscribe((AT, 2))
    streams.turn()
    assert [type(error) for error in streams.errors] == [Truncated]
    assert len(streams.offsets) == 16


def test_a_comparison_that_fails_loses_no_record(monkeypatch):
    streams = Followed()
    streams.subscribe((AT, 0), (OTHER, 0))
    streams.write(9)
    streams.turn()
    streams.log.lose(AT, 9)
    streams.write(2)
    streams.write(2, OTHER)
    with monkeypatch.context() as patch:
        patch.setattr(streams.loop._driver, "log_start_offsets", away)
        streams.turn()
    assert [str(error) for error in streams.errors] == ["nobody answers"]
    streams.subscribe((AT, 9))
    streams.turn()
    assert streams.offsets in ([*range(11), 0, 1], [*range(9), 0, 1, 9, 10])
    assert not streams.failed


def away(_):
    raise AmcastError("nobody answers").about(AT)


def test_a_compacted_topic_is_not_compared():
    streams = Followed(compacted=[AT])
    streams.subscribe((AT, 0))
    streams.write(9)
    streams.turn()
    streams.log.lose(AT, 5)
    streams.write(9)
    streams.turn()
    assert not streams.errors
    assert streams.offsets == list(range(14))
