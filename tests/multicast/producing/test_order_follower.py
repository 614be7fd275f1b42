"""The follower of the order: what it outlives, and what it tells who waits."""

import asyncio
import threading
from dataclasses import replace

import pytest

from bench.simulation.waits import Incident, WaitSchedule, WaitSimulation
from bench.simulation.world import COLLECTORS
from multicast.aio import AsyncProducer
from multicast.conditional import follower as decision_follower
from multicast.control import loss_record, order_topic
from multicast.control.codecs import named_record
from multicast.drivers.memory.driver import MemoryDriver, MemoryReader
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable, NotAuthorized, Truncated, UsageError
from multicast.order.records import OwnRecord, Ticket, encode
from multicast.order.stream import StreamCheckpoint
from multicast.producing import order_follower
from tests.helpers.plans import chain
from tests.helpers.small import Small, until

SHORT_S = 0.01


class Breakable(MemoryDriver):
    """A memory driver whose readers raise `error` while it is set."""

    def __init__(self, log):
        super().__init__(log)
        self.error = None
        self.raised = 0

    def reader(self, starts, *, wait_s=None):
        del wait_s
        return BreakableReader(self, starts)


class BreakableReader(MemoryReader):
    def __init__(self, driver, starts):
        super().__init__(driver.log, starts)
        self._driver = driver

    def poll(self, *arguments):
        if self._driver.error is not None:
            self._driver.raised += 1
            raise self._driver.error
        return super().poll(*arguments)


@pytest.fixture
def system(monkeypatch):
    monkeypatch.setattr(order_follower, "_RETRY_S", SHORT_S)
    monkeypatch.setattr(order_follower, "_REPEAT_S", SHORT_S)
    with Small(chain()) as running:
        running.run_all()
        yield running


@pytest.fixture
def driver(system):
    return Breakable(system.log)


def fail(driver, error):
    before = driver.raised
    driver.error = error
    until(lambda: driver.raised > before + 1)  # the second time it has begun anew


def test_after_an_outage_who_waits_for_the_order_goes_on_by_itself(system, driver):
    with system.producer(driver=driver) as producer:
        producer.multicast(b"", to={"P1"}).ordered()
        fail(driver, ClusterUnreachable("no broker answered"))
        receipt = producer.multicast(b"", to={"P1"})
        results = []
        waiting = threading.Thread(target=lambda: results.append(receipt.ordered()))
        waiting.start()
        fail(driver, ClusterUnreachable("no broker answered"))
        driver.error = None
        waiting.join(60)
        assert results == [receipt.accepted()]


@pytest.mark.usefixtures("system")
def test_asyncio_awaits_the_order_through_an_outage(driver):
    async def run():
        async with AsyncProducer(topic="A", driver=driver) as producer:
            await (await producer.multicast(b"", to={"P1"})).ordered()
            await asyncio.to_thread(fail, driver, ClusterUnreachable("no broker answered"))
            receipt = await producer.multicast(b"", to={"P1"})
            waiting = asyncio.create_task(receipt.ordered())
            await asyncio.to_thread(fail, driver, ClusterUnreachable("no broker answered"))
            driver.error = None
            assert await waiting == await receipt.accepted()

    asyncio.run(run())


@pytest.mark.parametrize("error", [NotAuthorized("no right"), KeyError("a defect")])
def test_an_error_that_does_not_pass_is_raised_until_an_attempt_succeeds(system, driver, error):
    with system.producer(driver=driver) as producer:
        producer.multicast(b"", to={"P1"}).ordered()
        fail(driver, error)
        receipt = producer.multicast(b"", to={"P1"})
        with pytest.raises(AmcastError, match=r"no right|a defect"):
            receipt.ordered()
        driver.error = None

        def ordered():
            try:
                return receipt.ordered()
            except AmcastError:
                return None

        assert until(ordered) == receipt.accepted()


def test_a_defect_in_the_follower_of_decisions_is_raised_to_who_waits(system, driver):
    with system.producer(driver=driver) as producer:
        assert producer.multicast(b"", to={"P1"}).decided().takes_effect
        driver.error = KeyError("a defect")
        with pytest.raises(AmcastError, match="a defect"):
            producer.multicast(b"", to={"P1"}).decided()
        driver.error = None
        assert producer.multicast(b"", to={"P1"}).decided().takes_effect


def test_nobody_waits_at_a_closed_producer(system):
    producer = system.producer()
    early = producer.multicast(b"", to={"P1"})
    early.accepted()
    producer.close()
    for wait in (early.ordered, early.decided):
        with pytest.raises(UsageError, match="This producer is closed"):
            wait()
    with pytest.raises(UsageError, match="This producer is closed"):
        producer.multicast(b"", to={"P1"})
    with pytest.raises(UsageError, match="This producer is closed"):
        producer.multicast_all([b""], to={"P1"})


def test_closing_ends_the_waits_of_other_threads(system):
    driver = MemoryDriver(system.log)
    of_decisions = decision_follower.DecisionFollower(driver)
    of_decisions.add(system.plan.logs)
    for follower in (order_follower.OrderFollower(driver, "A"), of_decisions):
        errors = []

        def waits(follower=follower, errors=errors):
            try:
                follower.wait("P1", 0, 600.0)
            except UsageError as error:
                errors.append(error)

        waiting = threading.Thread(target=waits)
        waiting.start()
        follower.close()
        waiting.join(60)
        assert len(errors) == 1


@pytest.fixture
def world():
    """A world in virtual time; the stream of K1 orders one message of P1, has a checkpoint, and
    orders two messages more."""
    world = WaitSimulation(WaitSchedule(0, Incident.NOTHING, 1, 8, "even", 1, 1)).world
    state = world.view().state
    ticket = encode(state.tag(1, "K1"), OwnRecord((Ticket(0, 1, 0),)))
    world.put(STREAM, ticket)
    world.put(STREAM, encode(state.tag(1, "K1"), world.whole(state, 1, "K1").marked))
    for _ in range(2):
        world.put(STREAM, ticket)
    return world


STREAM = TopicPartition(order_topic("A"), 0)


def test_an_error_that_does_not_pass_is_raised_once_to_who_waits(world):
    follower = order_follower.OrderFollower(world.driver, "A")
    ask = world.driver.last_stable_offsets

    def refuse(_):
        raise NotAuthorized("no right")

    world.driver.last_stable_offsets = refuse
    with pytest.raises(NotAuthorized):
        follower.wait("P1", 0, 1.0)
    world.driver.last_stable_offsets = ask
    assert follower.wait("P1", 2, 1.0)
    assert not follower.wait("P1", 3, 1.0)


def name_falsely(world, offset):
    """Name a checkpoint that is not there; give its key."""
    true = world.whole(world.view().state, 1, "K1").marked
    far = tuple(log._replace(position=log.position + 9) for log in true.own)
    raw = encode(world.view().state.tag(1, "K1"), replace(true, own=far))
    key, value = named_record(StreamCheckpoint(1, "K1", offset, raw), 0, (0, 0))
    world.log.write(COLLECTORS, value, key=key)
    return key


def test_once_a_false_checkpoint_beyond_the_end_is_deleted_who_waits_goes_on(world):
    key = name_falsely(world, 9)
    follower = order_follower.OrderFollower(world.driver, "A")
    for _ in range(2):
        with pytest.raises(Truncated, match="a checkpoint was at offset 9"):
            follower.wait("P1", 0, 1.0)
    world.log.write(COLLECTORS, None, key=key)
    world.pass_time(200)  # it looks at the control topic
    with pytest.raises(Truncated):
        follower.wait("P1", 0, 1.0)
    assert follower.wait("P1", 2, 1.0)
    assert not follower.wait("P1", 3, 1.0)


def test_a_false_checkpoint_orders_nothing_before_it_is_proven(world):
    name_falsely(world, 3)
    world.driver.amount = 1
    follower = order_follower.OrderFollower(world.driver, "A")
    for _ in range(9):
        assert not follower.wait("P1", 3, 0.0)
    assert follower.wait("P1", 2, 1.0)


@pytest.mark.parametrize(("statements", "heard"), [(0, "has lost its end"), (1, "log P1 has lost")])
def test_a_loss_that_is_stated_below_what_was_read_is_heard(world, statements, heard):
    begin = world.log.write(COLLECTORS, b"{}", key=b"stranger/K2")
    world.log.write(COLLECTORS, b"{}", key=b"stranger/K2")
    follower = order_follower.OrderFollower(world.driver, "A")
    assert follower.wait("P1", 2, 1.0)
    world.log.lose(COLLECTORS, begin)
    key, value = loss_record("P1", 0, 1)
    for each in [key] + [b"stranger/K2"] * statements:
        world.log.write(COLLECTORS, value, key=each)
    world.pass_time(5000)  # it asks where the control topics end
    with pytest.raises(Truncated, match=heard):
        follower.wait("P1", 9, 1.0)
    with pytest.raises(Truncated, match=heard):
        follower.wait("P1", 2, 1.0)
