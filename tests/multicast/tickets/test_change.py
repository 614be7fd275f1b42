"""A producer's appender leaves the plain appender for the joint one; each log keeps its order."""

import threading
from dataclasses import replace

import pytest

from multicast.drivers.memory.driver import MemoryAppender, MemoryDriver
from multicast.drivers.memory.logs import MemoryLog
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import UsageError
from multicast.tickets import appender as module
from multicast.tickets.appender import TicketingAppender
from tests.helpers.plans import chain
from tests.helpers.small import until
from tests.multicast.tickets.test_places import state_of
from topology.carry_over import with_order_version

PATIENCE_S = 60.0  # stops a hang, no more
LOG = TopicPartition("A", 0)
FIRST = chain()
SECOND = with_order_version(replace(FIRST, epoch=2, base_epoch=1), 2, FIRST)


class Joined(MemoryDriver):
    """A driver whose joint appender is an ordinary one, and which counts how many it has opened."""

    opened = 0

    def joint_appender(self, *, beside=None):  # noqa: ARG002 - this log knows no requests
        self.opened += 1
        return MemoryAppender(self.log)


class World:
    """An appender in an epoch of version 1; its plain appends wait in `pending` if `holds`."""

    def __init__(self, *, holds=True, kind=Joined):
        self.pending = []
        log = MemoryLog({"A": 4}, threaded=True)
        self.driver = kind(log, step=self.pending.append) if holds else kind(log)
        self.appender = TicketingAppender(
            state_of(FIRST), self.driver.appender, self.driver.joint_appender
        )
        self.outcomes = []

    def append(self, value):
        self.appender.append(LOG, value, done=lambda out: self.outcomes.append((value, out)))

    def settle(self):
        while self.pending:
            append = self.pending.pop(0)
            append.settle(append.store())

    def changing(self):
        """Begin the change in a thread; returns once new appends are held."""
        thread = threading.Thread(target=self.appender.learn, args=(state_of(FIRST, SECOND),))
        thread.start()
        until(lambda: self.appender._held is not None or not thread.is_alive(), PATIENCE_S)
        return thread

    def stored(self):
        reader = self.driver.reader({LOG: 0})
        return [record.value for fetched in reader.poll(0.0) for record in fetched.records]


@pytest.fixture
def world():
    return World()


def test_what_starts_while_the_plain_appender_is_left_waits_and_comes_after_what_is_in_flight(
    world,
):
    world.append(b"first")
    thread = world.changing()
    world.append(b"second")  # it returns at once
    assert not world.appender.flush(0.0)
    world.append(b"third")
    world.settle()
    thread.join(PATIENCE_S)
    world.append(b"fourth")
    assert world.appender.flush(PATIENCE_S)
    values = [b"first", b"second", b"third", b"fourth"]
    assert world.stored() == values
    assert world.outcomes == [(value, Appended(n)) for n, value in enumerate(values)]
    assert not world.pending, "only the first went by the plain appender"


def test_if_outcomes_do_not_come_the_plain_appender_goes_on_and_a_later_look_changes(
    world, monkeypatch
):
    monkeypatch.setattr(module, "_LEAVE_S", 0.2)
    world.append(b"first")
    thread = world.changing()
    world.append(b"second")
    thread.join(PATIENCE_S)
    assert [append.value for append in world.pending] == [b"first", b"second"]
    world.settle()
    world.appender.learn(state_of(FIRST, SECOND))
    world.append(b"third")
    assert world.stored() == [b"first", b"second", b"third"]
    assert not world.pending
    assert world.driver.opened == 2


def test_an_outcome_may_append_while_the_plain_appender_is_left(world):
    def again(outcome):
        world.outcomes.append((b"first", outcome))
        world.append(b"second")

    world.appender.append(LOG, b"first", done=again)
    thread = world.changing()
    world.settle()
    thread.join(PATIENCE_S)
    assert world.appender.flush(PATIENCE_S)
    assert world.stored() == [b"first", b"second"]


@pytest.mark.parametrize("many", [False, True])
def test_an_append_that_comes_to_the_plain_appender_after_its_close_goes_by_the_joint_one(many):
    world = World(holds=False)
    plain = world.appender._plain
    append = plain.append

    def late(*arguments, **more):
        """Append once another thread has made the change."""
        plain.append = append
        world.appender.learn(state_of(FIRST, SECOND))
        append(*arguments, **more)

    plain.append = late
    if many:
        taken = world.appender.append_all(
            LOG, [b"a", b"b"], done=lambda *received: world.outcomes.append(received)
        )
        assert taken == 2
    else:
        world.append(b"a")
        world.append(b"b")
    assert world.stored() == [b"a", b"b"]
    assert len(world.outcomes) == 2


def test_too_many_held_appends_are_refused(world, monkeypatch):
    monkeypatch.setattr(module, "_HELD_MAX", 2)
    world.append(b"first")
    thread = world.changing()
    world.append(b"second")
    world.append(b"third")
    with pytest.raises(module.BufferFull, match="2 appends wait"):
        world.append(b"fourth")
    world.settle()
    thread.join(PATIENCE_S)
    assert world.stored() == [b"first", b"second", b"third"]


def test_a_close_waits_for_the_change_and_no_change_begins_after_it(world):
    world.append(b"first")
    thread = world.changing()
    world.append(b"second")
    closing = threading.Thread(target=world.appender.close)
    closing.start()
    world.settle()
    closing.join(PATIENCE_S)
    thread.join(PATIENCE_S)
    assert world.stored() == [b"first", b"second"]
    other = World(holds=False)
    other.appender.close()
    other.appender.learn(state_of(FIRST, SECOND))
    with pytest.raises(UsageError):
        other.append(b"late")


def test_after_the_close_an_append_is_refused(world):
    world.settle()
    world.appender.close()
    with pytest.raises(UsageError):
        world.append(b"late")


class Lacking(Joined):
    """A driver whose joint appender lacks the package of a codec that its plain one has."""

    def joint_appender(self, *, beside=None):  # noqa: ARG002 - this log knows no requests
        raise UsageError("compression.type zstd needs the package zstandard")


def test_a_codec_that_the_joint_appender_lacks_leaves_the_plain_one_and_is_told_once(caplog):
    world = World(holds=False, kind=Lacking)
    for _ in range(2):
        world.appender.learn(state_of(FIRST, SECOND))
    world.append(b"first")
    assert world.stored() == [b"first"]
    (told,) = [entry for entry in caplog.records if entry.name == "amcast.tickets"]
    assert "zstandard" in told.getMessage()
