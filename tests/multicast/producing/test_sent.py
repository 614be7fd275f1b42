"""Tickets count what a request sends, no more, whatever lingers, fails or changes meanwhile."""

from dataclasses import replace

import pytest

from multicast.control import ControlState, log_partition
from multicast.drivers.protocol import Appended, AppendFailed
from multicast.errors import AppendNotStored, AppendRefused, AppendUnknown
from multicast.order.records import decode, tag_of
from multicast.producing.ticketing import TicketingAppender
from tests.helpers.plans import chain
from tests.multicast.producing.test_places import state_of

PLAN = chain()
P1, P2 = (log_partition(PLAN.log(name)) for name in ("P1", "P2"))
OTHERS = tuple(replace(spec, stream=spec.stream + 2) for spec in PLAN.collectors)
NEXT = replace(PLAN, epoch=2, base_epoch=1, collectors=OTHERS)


class Joint:
    """An appender whose requests and outcomes a test chooses."""

    def __init__(self, *, beside, settled):
        self.beside, self.settled = beside, settled
        self.waiting = {P1: [], P2: []}
        self.sent = {P1: [], P2: []}
        self.plan = PLAN

    def prepare(self, partition):
        pass

    append_all = ready = flush = close = prepare

    def append(self, partition, value, *, done):
        if value == b"too large":
            done(AppendFailed(AppendRefused("too large"), sent=False))
        else:
            self.waiting[partition].append(done)

    def send(self, **numbers):
        """Send a request with so many of what waits; give its tickets, as (messages, upto)."""
        started = {log_partition(PLAN.log(name)): number for name, number in numbers.items()}
        for partition, number in started.items():
            self.sent[partition] += self.waiting[partition][:number]
            del self.waiting[partition][:number]
        found = {}
        for record in self.beside(started):
            plan = self.plan
            for log, messages, upto in decode(tag_of(record.value), record.value).tickets:
                found[plan.logs[log].name] = (messages, upto)
        return found

    def settle(self, partition, *outcomes):
        for outcome in outcomes:
            done = (self.sent[partition] or self.waiting[partition]).pop(0)
            self.settled(partition, 1, outcome)
            done(outcome)


@pytest.fixture
def world():
    made = []

    def opened(**callbacks):
        made.append(Joint(**callbacks))
        return made[0]

    time = [0.0]
    appender = TicketingAppender(state_of(PLAN), opened, monotonic=lambda: time[0])
    appender.joint, appender.time = made[0], time
    return appender


def append(world, partition, *values):
    outcomes = []
    for value in values:
        world.append(partition, value, done=outcomes.append)
    return outcomes


def test_what_lingers_has_no_ticket_yet(world):
    append(world, P1, b"a", b"b", b"c")
    append(world, P2, b"d")
    assert world.joint.send(P1=2) == {"P1": (2, 2)}
    world.joint.settle(P1, Appended(0), Appended(1))
    assert world.joint.send(P1=1, P2=1) == {"P1": (1, 3), "P2": (1, 1)}


def test_a_record_that_is_refused_at_once_disturbs_no_count(world):
    append(world, P1, b"a", b"b")
    world.joint.send(P1=2)
    (refused,) = append(world, P1, b"too large")
    assert isinstance(refused.error, AppendRefused)
    append(world, P1, b"c")
    assert world.joint.send(P1=1) == {"P1": (1, 3)}


def test_what_was_never_sent_disturbs_no_count_though_it_is_told_after_a_later_one_was_sent(world):
    append(world, P1, b"a", b"b")
    del world.joint.waiting[P1][0]
    assert world.joint.send(P1=1) == {"P1": (1, 1)}
    world.joint.settled(P1, 1, AppendFailed(AppendNotStored("its time is up"), sent=False))
    world.joint.settle(P1, Appended(0))
    append(world, P1, b"c")
    assert world.joint.send(P1=1) == {"P1": (1, 2)}


def test_a_message_that_is_certainly_not_stored_leaves_its_ticket_to_the_next(world):
    append(world, P1, b"a", b"b")
    world.joint.send(P1=2)
    world.joint.settle(P1, AppendFailed(AppendRefused("no")), AppendFailed(AppendUnknown("?")))
    append(world, P1, b"c")
    assert world.joint.send(P1=1) == {}
    world.joint.settle(P1, Appended(0))
    append(world, P1, b"d")
    assert world.joint.send(P1=1) == {"P1": (1, 2)}


def test_once_a_collector_has_filled_the_places_of_refused_messages_the_next_have_tickets(world):
    append(world, P1, *[b"a"] * 1000)
    world.joint.send(P1=1000)
    world.joint.settle(P1, *[AppendFailed(AppendRefused("no"))] * 1000)
    append(world, P1, b"b", b"c")
    assert world.joint.send(P1=1) == {}
    world.time[0] = 15.0
    assert world.joint.send(P1=1) == {"P1": (1, 2)}


def test_outcomes_are_told_to_the_book_that_counted_though_the_epoch_changed(world):
    append(world, P1, b"a", b"b")
    world.joint.send(P1=1)
    world.learn(state_of(PLAN, NEXT))
    world.joint.plan = NEXT
    assert world.joint.send(P1=1) == {"P1": (1, 1)}
    world.joint.settle(P1, Appended(0), Appended(1))
    append(world, P1, b"c")
    assert world.joint.send(P1=1) == {"P1": (1, 3)}


def test_calls_of_many_are_counted_as_they_are_sent(world):
    assert world.joint.beside({P1: 5})
    world.joint.settled(P1, 3, Appended(7))
    world.joint.settled(P1, 2, AppendFailed(AppendUnknown("?")))
    append(world, P1, b"x")
    assert world.joint.send(P1=1) == {"P1": (1, 11)}


def test_in_an_epoch_without_tickets_none_is_written_by_the_same_appender(world):
    off = replace(NEXT, tickets=False)
    on = replace(NEXT, epoch=3, base_epoch=2)
    append(world, P1, b"a", b"b", b"c")
    assert world.joint.send(P1=1) == {"P1": (1, 1)}
    world.learn(state_of(PLAN, off))
    assert world.joint.send(P1=1) == {}
    world.learn(state_of(PLAN, off, on))
    world.joint.plan = off  # which began the stream
    assert world.joint.send(P1=1) == {"P1": (1, 1)}
    world.joint.settle(P1, Appended(0), Appended(1), Appended(2))


def test_before_an_epoch_has_begun_messages_go_without_tickets():
    made = []
    appender = TicketingAppender(
        ControlState("A"), lambda **callbacks: made.append(Joint(**callbacks)) or made[0]
    )
    append(appender, P1, b"a", b"b")
    assert made[0].send(P1=1) == {}
    appender.learn(state_of(PLAN))
    assert made[0].send(P1=1) == {"P1": (1, 1)}
