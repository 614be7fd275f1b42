"""Many collectors on one engine: its loops serve all, and what fails in one stops no other."""

import threading
from dataclasses import dataclass, field

import confluent_kafka
import pytest

from collectors.engine import clock, stream_loop
from collectors.engine.engine import Engine
from collectors.engine.instance import CollectorInstance
from collectors.engine.stream_loop import StreamLoop
from multicast.control import collectors_partition, log_partition, order_topic, stream_partition
from multicast.control.codecs import named_record
from multicast.drivers.kafka import Admin
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, AppendRefused, ProtocolViolation, Trimmed
from multicast.order.records import encode
from multicast.order.stream import StreamCheckpoint
from tests.helpers.plans import chain, first_stream, poster, tag_in, tree_plan
from tests.helpers.small import Small, until
from tests.helpers.system import PATIENCE_S, System, set_topic

MANY = 40  # more than any default pool of threads has on a small machine


class Hosted:
    """All collectors of a small system on one engine."""

    def __init__(self, system):
        self.engine = Engine(system.driver, system.plan.topic)
        self.nodes = {
            entry.name: CollectorInstance(self.engine, entry.name)
            for entry in system.plan.collectors
        }
        for node in self.nodes.values():
            self.engine.add(node)

    def __enter__(self):
        until(lambda: all(node.begun or node.over for node in self.nodes.values()))
        return self

    def __exit__(self, *_):
        self.engine.close()
        assert all(node.ended.is_set() for node in self.nodes.values())


def send_to_all(system, names=None):
    logs = [log for log in system.plan.logs if names is None or log.name in names]
    with system.producer() as producer:
        receipts = [producer.multicast(log.name.encode(), to=set(log.to)) for log in logs]
        return [str(receipt.ordered(60)) for receipt in receipts]


def write_to_own_logs(system, node):
    for log in node.plan.own_logs(node.name):
        system.log.write(log_partition(node.plan.log(log)), b"")


def ordered_once(node):
    """Whether one message of each log whose top this is has been ordered."""
    positions = node.core.own.state.positions
    return all(positions[node.plan.number(log)] == 1 for log in node.plan.own_logs(node.name))


@pytest.mark.slow
def test_many_collectors_on_one_engine_all_deliver_with_a_fixed_number_of_threads():
    plan = tree_plan(MANY, "A")
    before = threading.active_count()
    with Small(plan) as system, Hosted(system) as hosted:
        assert threading.active_count() - before <= 6
        sent = send_to_all(system)
        assert len(sent) == len(plan.logs)
        for entry in plan.consumers[:: MANY // 8]:
            delivered = system.all(entry.name)
            assert set(delivered) == {f"{log.name}:0" for log in plan.logs_of(entry.interest)}
        assert not any(node.over for node in hosted.nodes.values())


@pytest.mark.slow
def test_a_collector_that_fails_of_its_stream_stops_no_other():
    plan = tree_plan(3, "A")
    with Small(plan) as system:
        # The control topic names a checkpoint of K4 where its stream has something else.
        state = first_stream(plan, "K4").checkpoint()
        point = StreamCheckpoint(1, "K4", 0, encode(tag_in(plan, "K4"), state))
        key, value = named_record(point, 1, (0, 0))
        system.log.write(collectors_partition("A"), value, key=key)
        system.log.write(stream_partition(plan, "K4"), b"no checkpoint")
        with Hosted(system) as hosted:
            until(hosted.nodes["K4"].ended.is_set)
            assert isinstance(hosted.nodes["K4"].error, ProtocolViolation)
            # Not `send_to_all`: its receipts wait for all streams, that of K4 included.
            others = [hosted.nodes["K2"], hosted.nodes["K3"]]
            for node in others:
                write_to_own_logs(system, node)
            until(lambda: all(ordered_once(node) for node in others))
            assert not any(node.over for node in others)


@pytest.mark.slow
def test_a_stream_that_cannot_be_read_stops_those_who_read_it_and_no_other():
    plan = tree_plan(7, "A")
    stream = stream_partition(plan, "K4")
    with Small(plan) as system:
        for _ in range(3):
            system.log.write(stream, b"foreign")
        system.log.trim(stream, 2)
        readers = {"K4", "K8"}  # K8 is its child
        with Hosted(system) as hosted:
            until(lambda: all(hosted.nodes[name].over for name in readers))
            assert all(isinstance(hosted.nodes[name].error, Trimmed) for name in readers)
            others = [node for name, node in hosted.nodes.items() if name not in readers]
            for node in others:
                write_to_own_logs(system, node)
            until(lambda: all(ordered_once(node) for node in others))
            assert not any(node.over for node in others)


def test_a_collector_at_rest_leaves_the_clock_and_comes_back_with_the_next_message():
    with Small(chain()) as system, Hosted(system) as hosted:
        clock = hosted.engine.clock
        until(lambda: not clock._following)
        send_to_all(system, {"P1"})
        until(lambda: not clock._following)
        assert system.all("C1") == ["P1:0"]


def test_an_engine_that_is_closed_ends_its_nodes_and_threads():
    before = set(threading.enumerate())
    with Small(chain()) as system:
        with Hosted(system) as hosted:
            send_to_all(system, {"P1"})
        assert all(node.error is None for node in hosted.nodes.values())
    assert set(threading.enumerate()) <= before


# -- streams that several read ----------------------------------------------------------------

AT = TopicPartition("S", 0)


@dataclass(eq=False)
class Sink:
    offsets: list = field(default_factory=list)
    errors: list = field(default_factory=list)

    def on_batches(self, batches):
        for batch in batches:
            self.offsets += [record.offset for record in batch.records]

    def fail(self, error):
        self.errors.append(error)


class Streams:
    """A loop that is turned by hand, on a log in memory."""

    def __init__(self, **options):
        self.log = MemoryLog({"S": 2})
        self.failed = []
        self.loop = StreamLoop(MemoryDriver(self.log), failed=self.failed.append, **options)
        self._written = 0

    def write(self, count, partition=AT):
        """Append so many records, no two of which are alike."""
        for _ in range(count):
            self._written += 1
            self.log.write(partition, b"%d" % self._written)

    def turn(self):
        try:
            self.loop._turn()
        except AmcastError as error:
            self.loop._failed(error)


@pytest.fixture
def streams():
    made = Streams()
    yield made
    made.loop.close()


def test_a_stream_is_given_to_each_subscriber_from_its_own_position_on(streams):
    early, late, later = Sink(), Sink(), Sink()
    streams.write(6)
    streams.loop.subscribe(late, {AT: 4})
    streams.turn()
    streams.loop.subscribe(early, {AT: 1})
    streams.loop.subscribe(later, {AT: 8})
    streams.turn()
    streams.write(4)
    streams.turn()
    assert (early.offsets, late.offsets, later.offsets) == (
        list(range(1, 10)),
        list(range(4, 10)),
        [8, 9],
    )


def test_one_that_is_paused_misses_nothing_and_holds_up_nobody(streams):
    paused, other = Sink(), Sink()
    streams.loop.subscribe(paused, {AT: 0})
    streams.loop.subscribe(other, {AT: 0})
    streams.write(2)
    streams.turn()
    streams.loop.pause(paused, AT, paused=True)
    streams.write(3)
    streams.turn()
    assert (paused.offsets, other.offsets) == ([0, 1], [0, 1, 2, 3, 4])
    streams.loop.pause(other, AT, paused=True)
    streams.write(1)
    streams.turn()
    assert len(other.offsets) == 5
    streams.loop.pause(paused, AT, paused=False)
    streams.loop.pause(other, AT, paused=False)
    streams.turn()
    assert paused.offsets == other.offsets == list(range(6))


def test_one_that_leaves_is_given_nothing_more_and_the_others_go_on(streams):
    gone, other = Sink(), Sink()
    streams.loop.subscribe(gone, {AT: 0})
    streams.loop.subscribe(other, {AT: 0})
    streams.write(1)
    streams.turn()
    streams.loop.unsubscribe(gone, [AT])
    streams.write(1)
    streams.turn()
    assert (gone.offsets, other.offsets) == ([0], [0, 1])


def test_an_urgent_one_changes_the_reader_and_nobody_misses_anything(streams):
    kinds, open_reader = [], streams.loop._driver.reader

    def noted(starts, *, wait_s=None):
        kinds.append(wait_s is None)
        return open_reader(starts, wait_s=wait_s)

    streams.loop._driver.reader = noted
    calm, behind, urgent = Sink(), Sink(), Sink()
    streams.loop.subscribe(calm, {AT: 0}, urgent=False)
    streams.loop.subscribe(behind, {AT: 0}, paused=True, urgent=False)
    streams.write(3)
    streams.turn()
    streams.loop.subscribe(urgent, {AT: 1})
    streams.write(2)
    streams.turn()
    streams.loop.unsubscribe(urgent, [AT])
    streams.loop.pause(behind, AT, paused=False)
    streams.write(2)
    streams.turn()
    streams.turn()
    assert kinds == [False, True, False]
    assert calm.offsets == behind.offsets == list(range(7))
    assert urgent.offsets == [1, 2, 3, 4]
    streams.loop.urge(calm, AT, urgent=True)
    streams.write(1)
    streams.turn()
    streams.loop.urge(calm, AT, urgent=False)
    streams.loop.urge(urgent, AT, urgent=True)  # it has left
    streams.write(1)
    streams.turn()
    assert kinds == [False, True, False, True, False]
    assert calm.offsets == list(range(9))


def test_the_pause_between_two_readings_ends_once_somebody_subscribes(streams, monkeypatch):
    monkeypatch.setattr(stream_loop, "_SPACING_S", 3600.0)
    calm, late = Sink(), Sink()
    streams.loop.subscribe(calm, {AT: 0}, urgent=False)
    streams.write(1)
    turn = threading.Thread(target=streams.turn, daemon=True)
    turn.start()
    until(lambda: calm.offsets == [0])
    streams.loop.subscribe(late, {AT: 0}, urgent=False)
    turn.join(60)
    assert not turn.is_alive()


def test_an_error_of_one_partition_reaches_its_subscribers_alone(streams):
    bad, good = Sink(), Sink()
    streams.write(3)
    streams.log.trim(AT, 2)
    streams.loop.subscribe(bad, {AT: 0})
    streams.loop.subscribe(good, {TopicPartition("S", 1): 0})
    streams.turn()
    assert [type(error) for error in bad.errors] == [Trimmed]
    assert streams.failed == good.errors == []
    streams.log.write(TopicPartition("S", 1), b"")
    streams.turn()
    assert good.offsets == [0]


def while_it_polls(streams, act):
    """Have something happen in the loop's next poll, once its reader is arranged."""
    reader = streams.loop._reader
    poll = reader.poll

    def polled(*limits):
        reader.poll = poll
        act()
        return poll(*limits)

    reader.poll = polled


def test_one_that_subscribes_while_the_loop_polls_misses_nothing(streams):
    early, ahead = Sink(), Sink()
    streams.write(4)
    streams.loop.subscribe(ahead, {AT: 0})
    streams.turn()
    streams.write(2)
    while_it_polls(streams, lambda: streams.loop.subscribe(early, {AT: 1}))
    for _ in range(3):
        streams.turn()
    assert ahead.offsets == list(range(6))
    assert early.offsets == list(range(1, 6))


def test_one_that_goes_on_while_the_loop_polls_misses_nothing(streams):
    paused, ahead = Sink(), Sink()
    streams.loop.subscribe(paused, {AT: 0}, paused=True)
    streams.loop.subscribe(ahead, {AT: 0})
    streams.write(4)
    streams.turn()
    streams.write(2)
    while_it_polls(streams, lambda: streams.loop.pause(paused, AT, paused=False))
    for _ in range(3):
        streams.turn()
    assert paused.offsets == ahead.offsets == list(range(6))


@dataclass(eq=False)
class Ticked:
    """A sink of the clock that counts its ticks; it does not rest by itself."""

    ticks: int = 0

    def tick(self):
        self.ticks += 1

    def look(self):
        raise AssertionError("nobody has asked for a look")


def test_a_resting_sink_is_ticked_each_minute_and_one_that_follows_again_not_twice(monkeypatch):
    monkeypatch.setattr(clock, "TICK_S", 0.0)  # each turn of the clock is a tick,
    monkeypatch.setattr(clock, "_REST_S", 0.0)  # and a minute
    made = clock.Clock(failed=lambda error: pytest.fail(str(error)))
    resting, following, left = Ticked(), Ticked(), Ticked()
    for sink in (resting, following, left):
        made.follow(sink)
        made.rest(sink)
    made.follow(following)
    made.leave(left)
    for _ in range(3):
        made._turn()
    assert (resting.ticks, following.ticks, left.ticks) == (3, 3, 0)


# -- on a real broker -------------------------------------------------------------------------


def ended_by_a_message(system, hosted):
    """Give the collector that orders P1, once it has ended: it cannot order a new message."""
    producer = confluent_kafka.Producer({"bootstrap.servers": system.bootstrap})
    producer.produce(system.topic, b"of a plain producer", partition=0)
    assert producer.flush(PATIENCE_S) == 0
    top = hosted.nodes[system.plan.top("P1").name]
    until(top.ended.is_set)
    return top


def deleted(admin, order):
    admin.delete_topics([order])


def narrowed(admin, order):
    set_topic(admin, order, max_message_bytes="1")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (deleted, (AmcastError, "")),  # "does not exist", or "is not the one that epoch 1 ..."
        (narrowed, (AppendRefused, "max.message.bytes")),
    ],
)
def test_a_collector_that_can_write_no_order_for_good_ends_and_names_the_reason(
    kafka_cluster, tmp_path, spoil, reason
):
    plan = poster()
    with System(kafka_cluster.bootstrap, plan, tmp_path) as system, Hosted(system) as hosted:
        order = order_topic(system.topic)
        with Admin(kafka_cluster.bootstrap) as admin:
            spoil(admin, order)
        top = ended_by_a_message(system, hosted)
        assert isinstance(top.error, reason[0])
        assert order in str(top.error)
        assert reason[1] in str(top.error)
