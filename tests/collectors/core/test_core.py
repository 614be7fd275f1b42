"""The core of a collector as the engine runs it: alone, as a standby, restarted."""

from dataclasses import replace

import pytest

from collectors.core.actions import Append, Fill, SaveCheckpoint
from collectors.core.collector import LIMITS, Collector
from collectors.core.standby import Standby
from multicast.order.records import OwnRecord, Ticket, encode
from multicast.order.rule import NotCounted
from tests.helpers.plans import chain, first_stream, tag_in

PLAN = chain()
P1, P2, P3 = 0, 1, 2


class Stream:
    """K1's Kafka partition in memory, and the clock of its instances in milliseconds."""

    def __init__(self):
        self.records = []
        self.now = 0

    def core(self, writer=1, checkpoint=None, limits=LIMITS):
        own = first_stream(PLAN, "K1", checkpoint)
        core = Collector(own, None, writer=writer, clock=lambda: self.now, limits=limits)
        core.own_end(len(self.records))
        self.read(core)
        return core

    def read(self, core):
        for offset in range(core.own.offset_next, len(self.records)):
            core.own_read(offset, self.records[offset])

    def carry_out(self, core):
        """Do what the core wants; give the actions."""
        actions = core.step()
        self.records += [action.raw for action in actions if isinstance(action, Append)]
        self.read(core)
        return actions

    def ticket(self, log, messages, upto=0):
        record = OwnRecord((Ticket(log, messages, upto),))
        self.records.append(encode(tag_in(PLAN, "K1"), record))


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def core(stream):
    return stream.core()


def test_an_instance_orders_what_has_no_ticket_and_takes_its_own_record_for_its_own(stream, core):
    core.log_end(P1, 3)
    core.log_end(P3, 9)  # not of this collector
    assert core.lag == core.unordered(P1, 3) == 3
    assert core.due
    assert [type(action) for action in stream.carry_out(core)] == [Append]
    assert core.own.state.positions == {P1: 3, P2: 0}
    assert (core.pending, core.counted, core.lag, core.due) == (0, 0, 0, False)


def test_a_message_that_waits_for_its_ticket_asks_for_a_look_and_no_question_about_ends(
    stream, core
):
    stream.ticket(P1, 1, 1)
    stream.read(core)
    core.log_end(P1, 2)
    assert core.waits
    assert not core.due
    assert core.unordered(P1, 2) == 0
    stream.now += LIMITS.patience
    assert core.due
    stream.carry_out(core)
    assert not core.waits


def test_nothing_is_written_before_the_own_stream_is_read_to_its_end(stream):
    stream.ticket(P1, 1)
    core = Collector(first_stream(PLAN, "K1"), None, writer=1, clock=lambda: stream.now)
    core.own_end(1)
    core.log_end(P1, 5)
    assert (core.step(), core.due, core.caught_up()) == ((), False, False)
    stream.read(core)
    assert core.caught_up()
    assert not core.due
    stream.now += LIMITS.patience
    assert core.due


def test_a_look_at_what_is_due_loses_no_action(stream, core):
    stream.ticket(P1, 2, 0)
    stream.read(core)
    core.log_end(P1, 0)
    core.log_end(P2, 4)
    for _ in range(3):
        stream.now += 300
        core.tick({})
        assert core.due
    kinds = [type(action) for action in stream.carry_out(core)]
    assert sorted(kinds, key=str) == [Append, Fill]
    assert core.step() == []


def test_a_correction_alone_makes_no_standby_act(stream, core):
    core.log_end(P1, 1)
    stream.carry_out(core)
    assert core.own.state.debts[P1] == 1
    for _ in range(4):
        stream.now += 300
        core.tick({})
    assert not core.due
    stream.carry_out(core)
    assert core.own.state.debts[P1] == 0


def test_what_seven_producers_lost_with_two_full_requests_each_is_filled(stream, core):
    for _ in range(7):
        stream.ticket(P1, 20_000)
    stream.read(core)
    core.log_end(P1, 0)
    core.tick({})
    core.tick({})
    assert stream.carry_out(core) == [Fill(P1, 140_000)]


def test_a_fill_ends_where_its_hole_does_though_tickets_come_meanwhile(stream, core):
    stream.ticket(P1, 2)
    stream.read(core)
    core.log_end(P1, 0)
    core.tick({})
    core.tick({})
    assert stream.carry_out(core) == [Fill(P1, 2)]
    stream.ticket(P1, 5)
    stream.read(core)
    core.filled(P1, 1)
    assert stream.carry_out(core) == [Fill(P1, 2)]
    core.filled(P1, 2)  # the messages of the later ticket may be on their way
    assert stream.carry_out(core) == []


def beside(stream, seconds, each=lambda _: None, highs=()):
    """Let a standby of K1 follow for so long; give when it acted (ms), or None."""
    core, part = stream.core(2), Standby(primary=False)
    part.begin(core)
    core.log_end(P1, 0)
    core.log_end(P2, 0)
    until = stream.now + 1000 * seconds
    while stream.now < until:
        stream.now += 250
        each(core)
        stream.read(core)
        core.tick(dict(highs))
        if part.decide(core, stream.now / 1000):
            return stream.now
    return None


def test_a_standby_acts_where_a_hole_is_left_for_seconds_while_other_logs_go_on(stream):
    stream.ticket(P1, 1)  # its message never comes

    def goes_on(core):
        if stream.now % 1000 == 0:
            stream.ticket(P2, 1)
            core.log_end(P2, stream.now // 1000)

    assert 3000 <= beside(stream, 3600, goes_on) <= 5000


def test_a_standby_acts_where_nobody_holds_a_log_with_an_open_transaction():
    assert 3000 <= beside(Stream(), 3600, highs={P1: 3}) <= 5000


def test_a_standby_tries_in_vain_to_fill_a_log_without_a_leader_once_a_minute(stream):
    stream.ticket(P1, 1)
    core, part = stream.core(2), Standby(primary=False)
    core.log_end(P1, 0)
    tried = []
    while stream.now < 300_000:
        stream.now += 250
        core.tick({})
        if part.decide(core, stream.now / 1000):
            fills = [action for action in core.step() if isinstance(action, Fill)]
            assert fills == [Fill(P1, 1)]
            tried.append(stream.now)
            core.filled(P1, None)
            part.step_back()  # the one that acts has written something
    assert 3 <= len(tried) <= 6


def test_a_standby_leaves_a_large_hole_to_the_one_that_fills_it(stream):
    stream.ticket(P1, 60_000)
    acting = stream.core(1)
    filled = []

    def fills(standby):
        acting.tick({})
        filled.extend(action for action in stream.carry_out(acting) if isinstance(action, Fill))
        if filled and stream.now % 1000 == 0:
            for core in (acting, standby):
                core.log_end(P1, stream.now)

    acting.log_end(P1, 0)
    assert beside(stream, 50, fills) is None
    assert filled


def test_a_standby_leaves_corrections_to_the_one_that_writes_them(stream):
    acting = stream.core(1)

    def corrects(standby):
        """A producer without tickets writes a message each second."""
        if stream.now % 1000 == 0:
            for core in (acting, standby):
                core.log_end(P1, stream.now // 1000)
        acting.tick({})
        stream.carry_out(acting)

    assert beside(stream, 60, corrects) is None
    assert acting.own.state.corrections[P1] > 10


def test_a_standby_keeps_the_newest_checkpoint_alone_and_names_it_when_it_takes_over(stream):
    standby, part = stream.core(2), Standby(primary=False)
    for _ in range(500):
        stream.records.append(encode(tag_in(PLAN, "K1"), standby.own.marked))
        stream.read(standby)
        assert not part.decide(standby, 0.0)
        assert not standby.due
    part.primary = True
    assert part.decide(standby, 0.0)
    saved = [action.checkpoint.offset for action in stream.carry_out(standby)]
    assert saved == [499]


def test_the_successor_of_one_whose_page_alone_has_ended_soon_waits_as_others_do(stream):
    first, second = stream.core(1), stream.core(2)
    part = Standby(primary=False, patience_s=3600)
    assert not part.decide(second, 0.0)
    part.holder_ended()
    acted = []
    for end in range(1, 101):
        second.log_end(P1, end)
        acted.append(part.decide(second, 0.0))
        first.log_end(P1, end)
        stream.carry_out(first)
        stream.read(second)
        part.decide(second, 0.0)
    assert acted[0]
    assert not any(acted[50:])


def test_two_instances_that_write_the_same_disturb_nobody(stream):
    cores = [stream.core(1), stream.core(2)]
    for end in range(1, 5):
        for core in cores:
            core.log_end(P1, end)
        written = [core.step() for core in cores]
        stream.records += [action.raw for actions in written for action in actions]
        for core in cores:
            stream.read(core)
    assert [core.own.state.positions[P1] for core in cores] == [4, 4]
    assert [core.pending for core in cores] == [0, 0]


def test_an_instance_begins_at_the_checkpoint_that_another_has_written_and_named(stream):
    limits = replace(LIMITS, checkpoint_records=3)
    core = stream.core(1, limits=limits)
    saved = []
    for _ in range(12):
        stream.ticket(P1, 1)
        stream.read(core)
        actions = stream.carry_out(core)
        saved += [action.checkpoint for action in actions if isinstance(action, SaveCheckpoint)]
    assert len(saved) >= 2
    again = stream.core(3, saved[-1], limits)
    assert again.own.state == core.own.state
    assert again.caught_up()
    assert again.own.count < core.own.count


def test_a_failed_append_is_written_again(core):
    core.log_end(P1, 1)
    (lost,) = core.step()
    assert (core.pending, core.step()) == (1, [])
    core.append_failed()
    assert core.step() == [lost]


@pytest.mark.parametrize(
    ("raw", "why"), [(b"garbage", NotCounted.FOREIGN), (None, NotCounted.FOREIGN)]
)
def test_void_records_are_counted_by_reason(stream, core, raw, why):
    stream.records.append(raw)
    stream.read(core)
    assert dict(core.void) == {why: 1}


def test_a_standby_leaves_alone_what_the_one_that_acts_has_ended_once(stream):
    stream.ticket(P1, 5)

    def fills(standby):
        """Fill the hole after a second, while another log goes on."""
        if stream.now == 1000:
            standby.log_end(P1, 5)
        stream.ticket(P2, 1)
        standby.log_end(P2, stream.now // 250)

    assert beside(stream, 15, fills) is None
