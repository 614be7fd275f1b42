"""librdkafka drops all its brokers when one names none; its reader continues."""

import contextlib
import socket
import struct
import threading
import uuid

import pytest

from multicast.drivers.kafka import Admin, KafkaPythonDriver, TopicSpec
from multicast.drivers.librdkafka_reader import LibrdkafkaDriver
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable
from tests.helpers.system import until

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(600)]
METADATA = 3
FIND_COORDINATOR = 10  # librdkafka takes a broker's address from its answers, too
FLEXIBLE = 9  # the first version of an answer to Metadata with compact arrays
TIMEOUT_S = 1.0


def read_exactly(source, size):
    read = b""
    while len(read) < size:
        more = source.recv(size - len(read))
        if not more:
            raise ConnectionError
        read += more
    return read


def read_frame(source):
    return read_exactly(source, *struct.unpack(">i", read_exactly(source, 4)))


def renamed(answer, port):
    """Return an answer to Metadata that names the brokers at this port; without one, no broker."""
    begin = 9  # after the number, the header's tags and the throttle time
    count, end = answer[begin] - 1, begin + 1
    named = answer[begin : begin + 1]
    for _ in range(count):
        start, end = end, end + 4  # the broker's ID
        end += answer[end]  # the host; the byte holds its length and one more
        named += answer[start:end] + struct.pack(">i", port or 0)
        start = end = end + 4
        end += max(1, answer[end])  # the rack
        assert answer[end] == 0, "no tags"
        end += 1
        named += answer[start:end]
    return answer[:begin] + (named if port else b"\x01") + answer[end:]


class Fenced:
    """A broker behind an address of its own; while `fenced`, it names no broker, not even itself.

    So does a broker that was frozen for so long that its controller took it for dead.
    """

    def __init__(self, bootstrap):
        host, port = bootstrap.split(":")
        self._broker = (host, int(port))
        self._clients = []
        self.fenced = False
        self.named_none = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._port = self._socket.getsockname()[1]
        self.address = f"127.0.0.1:{self._port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._socket.accept()
                self._clients.append(client)
                broker = socket.create_connection(self._broker)
                requests = {}
                for forward in (self._requests, self._answers):
                    threading.Thread(
                        target=forward, args=(client, broker, requests), daemon=True
                    ).start()

    def _requests(self, client, broker, requests):
        with contextlib.suppress(OSError), broker:
            while True:
                frame = read_frame(client)
                api, version, number = struct.unpack(">hhi", frame[:8])
                requests[number] = api
                assert api != METADATA or version >= FLEXIBLE
                broker.sendall(struct.pack(">i", len(frame)) + frame)

    def _answers(self, client, broker, requests):
        with contextlib.suppress(OSError), client:
            while True:
                frame = read_frame(broker)
                fenced = self.fenced
                api = requests.pop(*struct.unpack(">i", frame[:4]))
                if api == FIND_COORDINATOR:
                    frame = frame[:-4] + struct.pack(">i", self._port)
                if api == METADATA:
                    frame = renamed(frame, None if fenced else self._port)
                client.sendall(struct.pack(">i", len(frame)) + frame)
                if api == METADATA and fenced:
                    self.named_none.set()

    def close(self):
        """Accept no connection any more, and end those that are open."""
        with contextlib.suppress(OSError):  # a test has closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def topic(kafka_cluster):
    name = f"lost-{uuid.uuid4().hex[:8]}"
    with Admin(kafka_cluster.bootstrap) as admin:
        admin.create_topics({name: TopicSpec(2)})
    return name


@pytest.fixture
def behind(kafka_cluster):
    """A broker that can name none, and a driver whose clients know no other one."""
    with (
        contextlib.closing(Fenced(kafka_cluster.bootstrap)) as broker,
        LibrdkafkaDriver(
            broker.address,
            delegate=KafkaPythonDriver(kafka_cluster.bootstrap),
            request_timeout_s=TIMEOUT_S,
        ) as driver,
    ):
        yield broker, driver


def append(driver, partition, values):
    with contextlib.closing(driver.appender()) as appender:
        outcomes = []
        for value in values:
            appender.append(partition, value, done=outcomes.append)
        assert appender.flush(30)
    assert all(isinstance(outcome, Appended) for outcome in outcomes)


def poll(reader, records):
    with contextlib.suppress(AmcastError):  # the brokers are unreachable for a while
        for fetched in reader.poll(0.1):
            records.setdefault(fetched.partition.partition, []).extend(
                (record.offset, record.value) for record in fetched.records
            )


def test_a_reader_whose_broker_named_none_continues_at_its_positions(kafka_cluster, behind, topic):
    # Init: a reader of two logs; one is paused, and has records that are kept for it.
    broker, driver = behind
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    values = [b"%d" % number for number in range(20)]
    records = {}
    with contextlib.ExitStack() as stack:
        other = stack.enter_context(KafkaPythonDriver(kafka_cluster.bootstrap))
        append(other, first, values[:10])
        append(other, second, values[:10])
        reader = stack.enter_context(contextlib.closing(driver.reader({first: 3, second: 0})))
        reader.pause([second])
        until(lambda: poll(reader, records) or len(records.get(0, [])) >= 7, "ten")

        # Test: the broker names no broker once, and then itself again; both logs have grown.
        broker.fenced = True
        until(lambda: poll(reader, records) or broker.named_none.is_set(), "none")
        broker.fenced = False
        append(other, first, values[10:])
        append(other, second, values[10:])
        until(lambda: poll(reader, records) or len(records[0]) >= 17, "the rest")
        before = set(records)
        reader.resume([second])
        until(lambda: poll(reader, records) or len(records.get(1, [])) >= 20, "both")
        replaced = reader.replaced

    # Check: each record once, in order, and none of the paused log.
    assert before == {0}
    assert records[0] == list(enumerate(values))[3:]
    assert records[1] == list(enumerate(values))
    # Again, where the next client asked before the broker named itself.
    assert replaced >= 1, "librdkafka keeps its brokers now: say so in docs/hazards.md"


def test_a_reader_whose_broker_is_away_keeps_its_client(behind, topic):
    broker, driver = behind
    with contextlib.closing(driver.reader({TopicPartition(topic, 0): 0})) as reader:
        broker.close()
        unreachable = []

        def raised():
            try:
                reader.poll(0.1)
            except ClusterUnreachable as error:
                unreachable.append(error)
            return len(unreachable) > 1

        until(raised, "two errors")
        assert reader.replaced == 0
