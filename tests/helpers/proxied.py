"""A broker whose clients come through the nemesis' proxy, and a running system behind it."""

import collections
import contextlib
import struct

from bench.nemesis.frames import Api
from bench.nemesis.proxy import Proxy
from multicast import Consumer, Producer
from multicast.drivers.protocol import Appended
from multicast.history import HistoryBuilder
from multicast.local.broker import BrokerHost, free_ports
from multicast.local.cluster import LocalCluster
from multicast.properties import check_all
from tests.helpers.system import PATIENCE_S, System, unheld
from topology.interests import from_document
from topology.planner.solver import plan

HOST = "127.0.0.1"
START_S = 180.0  # three processes, on a machine that may be busy
INTERESTS = {"C1": ["P1", "P2"], "C2": ["P2", "P3"], "C4": ["P4"]}
PLAN = plan(
    from_document(
        {
            "topic": "A",
            "partitions": ["P1", "P2", "P3", "P4"],
            "consumer": [{"name": name, "interest": to} for name, to in INTERESTS.items()],
        }
    )
)


class Sightings:
    """All requests that came to the proxy, counted by client and call; which are transactional."""

    def __init__(self):
        self.counts = collections.Counter()
        self.transactional = collections.Counter()

    def __call__(self, request):
        self.counts[request.client_id, request.api] += 1
        if is_transactional(request):
            self.transactional[request.client_id, request.api] += 1


# The first version whose texts are compact, and whose head ends in a count of tags (KIP-482).
_COMPACT_SINCE = {Api.PRODUCE: 9, Api.INIT_PRODUCER_ID: 2}
_TRANSACTIONS_ONLY = (
    Api.ADD_PARTITIONS_TO_TXN, Api.ADD_OFFSETS_TO_TXN, Api.END_TXN, Api.TXN_OFFSET_COMMIT,
)  # fmt: skip


def is_transactional(request):
    """Say whether a request belongs to a transaction: these begin with the transactional ID."""
    if request.api not in _COMPACT_SINCE:
        return request.api in _TRANSACTIONS_ONLY
    (client_bytes,) = struct.unpack_from(">h", request.frame, 12)
    at = 14 + max(0, client_bytes)
    if request.version < _COMPACT_SINCE[request.api]:
        return struct.unpack_from(">h", request.frame, at) != (-1,)
    assert request.frame[at] == 0, "a head with tags"
    return request.frame[at + 1] != 0


@contextlib.contextmanager
def proxied_broker():
    """Start a broker; give it, its proxy (whose address is the bootstrap) and the sightings."""
    direct, behind, controller = free_ports(3)
    sightings = Sightings()
    with Proxy({1: (HOST, behind)}, watch=sightings) as proxy:
        listeners = f"PLAINTEXT://{HOST}:{direct},PROXIED://{HOST}:{behind}"
        settings = {
            "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{direct},PROXIED://{proxy.bootstrap}",
            "listener.security.protocol.map": (
                "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
        }
        host = BrokerHost(HOST, settings=settings, port=direct, controller_port=controller)
        with LocalCluster(hosts=[host]) as cluster:
            yield cluster, proxy, sightings


@contextlib.contextmanager
def running(proxy, driver, folder):
    """Start a system with its collectors, all of whose clients come through the proxy."""
    with System(proxy.bootstrap, PLAN, folder, driver=driver) as system:
        world = World(proxy, system)
        try:
            world.collectors.wait_healthy(START_S)
            yield world
        finally:
            world.close()


class World:
    """A running system whose every client comes through the proxy, and all that was sent."""

    def __init__(self, proxy, system):
        self.proxy = proxy
        self.system = system
        self.collectors = system.collectors()
        self.sent = []
        self.live = []
        self._producers = {}

    def producer(self, name="p1"):
        if name not in self._producers:
            self._producers[name] = self.open_producer(name)
        return self._producers[name]

    def open_producer(self, name, **settings):
        return Producer(
            self.system.bootstrap,
            topic=self.system.topic,
            driver=self.system.driver_name,
            client={"client.id": name},
            **settings,
        )

    def close(self):
        self.proxy.disarm()
        for producer in self._producers.values():
            producer.close()

    def send(self, to, *, name="p1", producer=None):
        """Multicast one message that no other is like."""
        payload = f"m{len(self.sent)}".encode()
        receipt = (producer or self.producer(name)).multicast(payload, to={to})
        self.sent.append((payload, to, receipt))
        return receipt

    def send_each(self, count, *, name="p1"):
        """Multicast to all logs in turn, each when the one before has its place in the order."""
        for number in range(count):
            self.send(f"P{1 + number % 4}", name=name).ordered(PATIENCE_S)

    def consumer(self, name):
        return Consumer(
            self.system.bootstrap,
            topic=self.system.topic,
            name=name,
            driver=self.system.driver_name,
            client={"client.id": f"consumer-{name}"},
        )

    def read(self, consumer, name, instance):
        """Deliver all that there is now, as this instance."""
        self.live += delivered(consumer, name, instance)

    def judge(self):
        """Read everything anew, twice; all guarantees hold, and each payload stands there once."""
        self.proxy.disarm()
        self.collectors.wait_healthy(PATIENCE_S)
        builder = HistoryBuilder()
        for _, to, receipt in self.sent:
            stored = isinstance(receipt.outcome, Appended)
            builder.acknowledgement(
                producer="p",
                message_id=f"{to}:{receipt.outcome.offset}" if stored else None,
                to=[to],
                outcome="accepted" if stored else "unknown",
            )
        readings = list(self.live)
        for name in INTERESTS:
            for instance in ("fresh", "again"):
                with Consumer(
                    topic=self.system.topic, name=name, committed=False, driver=self.system.driver
                ) as consumer:
                    readings += delivered(consumer, name, instance)
                builder.end(consumer=name, instance=instance)
        payloads, values = {}, {}
        for name, instance, message_id, to, payload in readings:
            builder.delivery(consumer=name, instance=instance, message_id=message_id, to=to)
            payloads.setdefault((name, instance), []).append(payload)
            assert values.setdefault(message_id, payload) == payload
        report = check_all(builder.history(plans=[self.system.plan]))
        assert not report.violations, "\n".join(str(one.witness) for one in report.violations)
        assert not unheld(report)
        for payload, to, receipt in self.sent:
            if isinstance(receipt.outcome, Appended):
                assert values[f"{to}:{receipt.outcome.offset}"] == payload
        for reading in payloads.values():
            assert max(collections.Counter(reading).values()) == 1


def delivered(consumer, name, instance):
    return [
        (name, instance, f"{batch.log.label}:{record.offset}", batch.to, record.value)
        for batch in consumer.until_end(timeout=PATIENCE_S)
        for record in batch.records
    ]
