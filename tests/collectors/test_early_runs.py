"""Early runs through the shells: announced messages are ordered before they are stored."""

import itertools
import socket
from dataclasses import replace

import pytest

from bench.harness.hosts import CollectorProcesses
from collectors.engine import clock
from collectors.engine.listener import Listener, address_towards
from multicast import Consumer, Producer, announcer
from multicast.announcements import DEBT_TICKS, Announcement, Count, encode
from multicast.control import ControlReader, log_partition
from multicast.drivers.memory.driver import MemoryDriver
from multicast.errors import TopicChanged, UsageError
from multicast.messages import SKIP
from tests.helpers.plans import chain, poster
from tests.helpers.small import Small, until
from tests.helpers.system import System, amcast

HERE = "127.0.0.1"
SETS = ({"P1"}, {"P2"}, {"P3"}, {"P1", "P3"}, {"P2", "P3", "P4"})
MANY = 100_000
UNHURRIED_S = 5.0


@pytest.fixture(autouse=True)
def _every_announcement_is_sent(monkeypatch):
    # Else one within 0.2 ms of the one before is dropped, and here no later one makes up for it.
    monkeypatch.setattr(announcer, "_SPACING_S", 0.0)


class Early:
    """A chain of two collectors, and a producer with appends that the test holds back."""

    def __init__(self, system, **options):
        self.system = system
        self.held = []
        self.nodes = {node.name: node for node, _ in system.run_all(listen=HERE, **options)}
        control = ControlReader(system.driver, system.plan.topic)
        until(lambda: len(control.refresh().addresses) == len(self.nodes))
        self.addresses = {name: address for name, (_, address) in control.state.addresses.items()}
        control.close()
        for node in self.nodes.values():
            until(lambda node=node: node.core._ends)
        slow = MemoryDriver(system.log, step=self.held.append)
        self.producer = system.producer(driver=slow)

    def store(self):
        for append in self.held:
            append.settle(append.store())
        self.held.clear()

    def begin(self, name, log):
        """Store the producer's first message to a log, which is never ordered early."""
        self.producer.multicast(b"first", to={log})
        self.store()
        until(lambda: self.position(name, log) == 1)

    def position(self, name, log):
        return self.nodes[name].core.own.state.positions[self.system.plan.number(log)]

    def skips(self, log):
        fetched = self.system.log.read(log_partition(self.system.plan.log(log)), 0, 1000)
        return [
            record.offset
            for record in (fetched.records if fetched else ())
            if dict(record.headers).get(SKIP) == log.encode()
        ]


def test_an_announced_message_is_ordered_everywhere_before_it_is_stored(monkeypatch):
    monkeypatch.setattr(clock, "TICK_S", 3600.0)  # no hole is filled, however long it takes
    with Small(chain()) as system:
        early = Early(system)
        early.begin("K1", "P2")
        early.producer.multicast(b"x", to={"P2"})
        until(lambda: early.position("K1", "P2") == 2)
        until(lambda: early.position("K2", "P2") == 2)  # relayed, as any order
        assert (
            system.log.last_stable_offsets([log_partition(system.plan.log("P2"))]).popitem()[1] == 1
        )
        with system.consumer("C2") as consumer:
            (batch,) = consumer.poll(60)
            assert [record.value for record in batch.records] == [b"first"]
            assert consumer.poll(0.2) == []
            early.store()
            (batch,) = consumer.poll(60)
            assert [record.value for record in batch.records] == [b"x"]
        early.producer.close()


def test_a_hole_is_filled_and_what_stands_behind_it_is_delivered():
    with Small(chain()) as system:
        early = Early(system)
        early.begin("K1", "P1")
        early.producer.multicast(b"never", to={"P1"})
        until(lambda: early.position("K1", "P1") == 2)
        early.held.clear()  # its producer died
        with system.producer(announce=False) as other:
            other.multicast(b"behind", to={"P2"}).ordered(60)
        with system.consumer("C1", committed=False) as consumer:
            batches = list(consumer.until_end(timeout=60))
            values = [record.value for batch in batches for record in batch.records]
            assert values == [b"first", b"behind"]
        assert early.skips("P1") == [1]
        # No consumer delivers it as a message.
        assert system.all("C1") == ["P1:0", "P2:0"]
        early.producer.close(0.1)


def test_no_announcement_reaches_a_collector_once_they_are_switched_off():
    with Small(chain()) as system:
        early = Early(system)
        with system.producer(announce=False) as producer:
            producer.multicast(b"x", to={"P1"}).ordered(60)
        assert early.nodes["K1"].status()["announcements"] == 0
        early.producer.close()


def test_a_producers_first_message_is_ordered_once_it_is_stored(monkeypatch):
    monkeypatch.setattr(clock, "TICK_S", 3600.0)  # no debt is forgiven, however long it takes
    with Small(chain()) as system:
        early = Early(system)
        early.producer.multicast(b"first", to={"P1"})
        # Its introduction is there, and orders nothing.
        until(lambda: early.nodes["K1"].status()["announcements"] == 1)
        assert early.position("K1", "P1") == 0
        early.store()
        until(lambda: early.position("K1", "P1") == 1)
        until(lambda: early.nodes["K1"].status()["announcements"] == 2)
        # It left no debt: the second one is ordered early.
        early.producer.multicast(b"second", to={"P1"})
        until(lambda: early.position("K1", "P1") == 2)
        early.store()
        early.producer.close()


@pytest.mark.parametrize("delay_ticks", [0, DEBT_TICKS, 5 * DEBT_TICKS])
def test_a_first_message_whose_outcome_is_heard_late_leaves_no_hole(monkeypatch, delay_ticks):
    monkeypatch.setattr(clock, "TICK_S", 3600.0)  # this test ticks itself
    with Small(chain()) as system:
        early = Early(system)
        node = early.nodes["K1"]
        early.producer.multicast(b"first", to={"P1"})
        until(lambda: node.status()["announcements"] == 1)
        outcomes = [(append, append.store()) for append in early.held]
        until(lambda: early.position("K1", "P1") == 1)
        for _ in range(delay_ticks):
            node._runner.tick()
        for append, outcome in outcomes:
            append.settle(outcome)
        until(lambda: node.status()["announcements"] == 2)
        assert node.core.early == 0
        early.held.clear()
        early.producer.close()


def test_a_strangers_datagram_orders_nothing():
    with Small(chain()) as system:
        early = Early(system)
        address = early.addresses["K1"]
        count = [Count(system.plan.number("P1"), 5, 0)]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            for token in (b"\0" * 8, address.token[::-1]):
                raw = encode(token, Announcement(1, count))
                stranger.sendto(raw, (address.host, address.port))
            stranger.sendto(b"", (address.host, address.port))
        early.begin("K1", "P2")
        assert early.position("K1", "P1") == 0
        early.store()
        early.producer.close()


def test_a_collector_that_was_started_anew_is_found_again():
    with Small(chain()) as system:
        early = Early(system)
        early.nodes["K1"].stop()
        until(early.nodes["K1"].ended.is_set)
        early.nodes["K1"], _ = system.run("K1", listen=HERE)
        until(lambda: early.nodes["K1"].core._ends)

        def heard():
            early.producer.multicast(b"x", to={"P1"})
            early.store()
            return early.nodes["K1"].status()["announcements"]

        until(heard)
        early.producer.close()


def test_a_topic_that_was_made_again_is_never_filled():
    made = chain()
    with Small(made) as empty:
        ids = empty.log.topic_ids(["A"])
    with Small(replace(made, topic_ids=ids)) as system:
        early = Early(system)
        early.begin("K1", "P1")
        early.producer.multicast(b"never", to={"P1"})
        until(lambda: early.position("K1", "P1") == 2)
        early.held.clear()
        system.log.recreate("A")
        until(early.nodes["K1"].ended.is_set)
        assert isinstance(system.errors["K1"], TopicChanged)
        assert early.skips("P1") == []
        with pytest.raises(TopicChanged, match="topic A is not the one that epoch 1"):
            system.consumer("C1")
        with pytest.raises(TopicChanged):
            system.run("K1")
        early.producer.close(0.1)


def test_a_collector_stops_when_a_log_that_it_watches_was_made_again():
    made = chain()
    with Small(made) as empty:
        ids = empty.log.topic_ids(["A"])
    with Small(replace(made, topic_ids=ids)) as system:
        early = Early(system)
        with system.producer() as producer:
            for _ in range(3):
                producer.multicast(b"x", to={"P1"}).ordered(60)
        system.log.recreate("A")
        until(early.nodes["K1"].ended.is_set)
        assert isinstance(system.errors["K1"], TopicChanged)
        early.producer.close()


def test_where_announcements_cannot_be_taken_a_sentence_says_so():
    with pytest.raises(UsageError, match=r"cannot be taken at 192\.0\.2\.1"):
        Listener("192.0.2.1")
    with pytest.raises(UsageError, match="no route leads to"):
        address_towards("nowhere.invalid:9092")
    assert address_towards("127.0.0.1:9092,127.0.0.2:9092") == HERE


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_on_a_real_broker_a_producer_that_died_leaves_a_skip_and_no_gap(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        host = system.collectors()
        host.wait_healthy(120)
        top = system.plan.top("P3").name
        with Producer(topic=system.topic, driver=system.driver) as producer:
            numbers = itertools.count()

            def announced():
                producer.multicast(b"%d" % next(numbers), to={"P3"}).accepted(60)
                return host.status(top)["announcements"] > 0

            # A producer learns within a second the address of a collector that started after it.
            until(announced, 120)
            sent = next(numbers)

            # A producer announces messages and dies. (Earlier messages were perhaps not announced
            # yet; then the first announcements only cover these.)
            control = ControlReader(system.driver, system.topic)
            _, address = control.refresh().addresses[top]
            control.close()
            log = system.plan.number("P3")
            counts = itertools.count(3, 3)

            def filled():
                announcement = Announcement(1, [Count(log, next(counts), 0)])
                dying.sendto(encode(address.token, announcement), (address.host, address.port))
                return host.status(top)["skips"] >= 3

            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dying:
                until(filled, 120, pause=0.2)
            producer.multicast(b"behind", to={"P3"}).ordered(60)
        for name in ("C1", "C2", "C3"):
            with Consumer(topic=system.topic, name=name, driver=system.driver) as consumer:
                values = [
                    record.value for batch in consumer.until_end() for record in batch.records
                ]
            assert values == [b"%d" % number for number in range(sent)] + [b"behind"]


# -- logs without faults get no skips ---------------------------------------------------------


def records_once_all_is_ordered(system, host):
    """Count the records of all logs, once no collector waits for a message that may be a hole."""
    names = [node.name for node in system.plan.collectors]

    def quiet():
        statuses = [host.status(name) for name in names]
        return all(status and not (status["early"] or status["lag"]) for status in statuses)

    until(quiet, 240)
    logs = [log_partition(log) for log in system.plan.logs]
    return sum(system.driver.high_watermarks(logs).values())


class Unhurried(CollectorProcesses):
    """Collectors whose ticks are so far apart that an append of a busy machine is no hole.

    A hole that is one is filled all the same, at the second tick, before a test counts records.
    """

    def __init__(self, *where):
        super().__init__(*where)
        start = f"from collectors.engine import clock; clock.TICK_S = {UNHURRIED_S}; "
        self._command[1:3] = ["-c", f"{start} from multicast.cli.main import main; main()"]


@pytest.fixture
def ordered(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        where = (system.bootstrap, system.topic, system.driver_name, system.plan, tmp_path)
        with Unhurried(*where) as host:
            host.wait_healthy(120)
            yield system, host


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_producers_that_come_and_go_leave_no_skip(ordered):
    system, host = ordered
    sent = 0
    for _ in range(4):
        for to in SETS:
            with Producer(system.bootstrap, topic=system.topic) as producer:
                producer.multicast(b"x", to=to).accepted(60)
                sent += 1
    for to in ("P1", "P2,P3,P4"):
        done = amcast("send", "--to", to, *system.common(), stdin="x\n")
        assert done.returncode == 0, done.stderr
        sent += 1
    assert records_once_all_is_ordered(system, host) == sent


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_hundred_thousand_messages_leave_no_skip(ordered):
    system, host = ordered
    with Producer(system.bootstrap, topic=system.topic) as producer:
        for number in range(MANY):
            producer.multicast(b"x", to=SETS[number % len(SETS)])
        producer.flush(240)
    assert records_once_all_is_ordered(system, host) == MANY
