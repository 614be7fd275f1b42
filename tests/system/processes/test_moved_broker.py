"""The only broker goes away and comes back elsewhere: no process has to be started anew."""

import contextlib
import itertools
import json
import sys
import time
import types
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import pytest

from multicast import Consumer, Producer
from multicast.errors import AmcastError
from tests.helpers.system import PATIENCE_S, until
from tests.multicast.drivers.doors import Door
from tests.ordering_osn.helpers.small import chains_plan, quick, transaction
from tests.ordering_osn.node.test_cluster import network

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]
DRIVERS = ("kafka-python", "librdkafka")
CHAINS = ("chain-a", "chain-b")


def health(host):
    """What a process of collectors says of itself."""
    try:
        return json.loads(host.page("/healthz"))
    except urllib.error.HTTPError as error:
        return json.load(error)


class Clients:
    """A node, and of each driver a producer and a consumer, with what each has to do in time."""

    def __init__(self, net, stack):
        self._net = net
        place = {"bootstrap": net.system.bootstrap, "topic": net.system.topic}
        opened = stack.enter_context
        self._producers = {
            name: opened(Producer(**place, driver=name, request_timeout_s=5.0)) for name in DRIVERS
        }
        interest = {*CHAINS, "p"}
        self._consumers = {
            name: opened(Consumer(**place, interest=interest, driver=name)) for name in DRIVERS
        }
        self._read = {name: set() for name in DRIVERS}

    def _send(self, name, payload):
        self._producers[name].multicast(payload, to={"p"}).ordered(timeout=5.0)
        return True

    def _sees(self, name, payloads):
        for batch in self._consumers[name].poll(0.5):
            self._read[name].update(record.value for record in batch.records)
        return payloads <= self._read[name]

    def _orders(self, envelope):
        return self._net.send(0, envelope) == [200]

    def work(self):
        """Have all work until each has succeeded; give the seconds that each has taken."""
        sent = {name: f"{name} {time.time_ns()}".encode() for name in DRIVERS}
        envelope = transaction(CHAINS[0])
        calls = {f"producer, {name}": lambda n=name: self._send(n, sent[n]) for name in DRIVERS}
        calls["node, broadcast"] = lambda: self._orders(envelope)
        calls["node, deliver"] = lambda: envelope in self._net.ordered(CHAINS[0])
        for name in DRIVERS:
            calls[f"consumer, {name}"] = lambda n=name: self._sees(n, {*sent.values()})
        began = time.monotonic()
        with ThreadPoolExecutor(len(calls)) as pool:
            took = pool.map(lambda call: (call[0], _seconds(*call, began)), calls.items())
            return dict(took)


def _seconds(name, call, began):
    def succeeds():
        with contextlib.suppress(AmcastError):
            return call()

    until(succeeds, name)
    return round(time.monotonic() - began, 1)


def test_all_go_on_and_meanwhile_say_that_no_broker_is_reached(kafka_cluster, tmp_path):
    plan = chains_plan(*CHAINS, "p", spanning=[CHAINS], readers=[(*CHAINS, "p")])
    blocks = [quick(name, timeout="50ms") for name in CHAINS]
    places = {}
    with contextlib.ExitStack() as stack:
        service, *homes = (Door(kafka_cluster.bootstrap, places) for _ in range(4))
        for door in (service, *homes):
            stack.callback(door.close)
        places[1] = homes[0].place
        cluster = types.SimpleNamespace(bootstrap=service.address)
        settings = {"nodes": 1, "waits": False, "collectors": False}
        net = stack.enter_context(network(cluster, tmp_path, plan, *blocks, **settings))
        host = net.system.order()
        until(lambda: net.nodes.healthy(0), "the node")
        clients = Clients(net, stack)
        clients.work()
        for number, (before, after) in enumerate(itertools.pairwise(homes)):
            service.silent = before.silent = True
            if number == 0:  # the next one is silent, as where a host is gone without a word
                before.close()
            until(lambda: "no broker reached for " in str(health(host)["why"]), "the collectors")
            assert not health(host)["healthy"]
            until(lambda: not net.nodes.healthy(0), "the node's trouble")

            places[1] = after.place
            service.silent = False
            sys.stderr.write(f"seconds: {clients.work()}\n")
            until(lambda: health(host) == {"healthy": True, "why": None}, "the collectors' health")
            until(lambda: net.nodes.healthy(0), "the node's health", PATIENCE_S)
