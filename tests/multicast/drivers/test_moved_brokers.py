"""Brokers that come back under other addresses: no client has to be opened anew."""

import contextlib
import itertools
import socket
import ssl
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from multicast.drivers import open_driver
from multicast.drivers.kafka import Admin, TopicSpec
from multicast.drivers.kafka.group_member import Membership
from multicast.drivers.protocol import Appended, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable, TimedOut
from tests.helpers.certificates import certificate
from tests.helpers.driver_worlds import append_all, values
from tests.helpers.system import until
from tests.multicast.drivers.doors import Door

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
NAMES = ("kafka-python", "librdkafka")


def again_and_again(named):
    """Call until it gives something true; brokers may be unreachable meanwhile."""
    name, call = named

    def succeeds():
        with contextlib.suppress(ClusterUnreachable, TimedOut):
            return call()

    until(succeeds, name)


class Party:
    """Every kind of client, by the bootstrap address that stays."""

    def __init__(self, name, bootstrap, client, opened):
        group = f"g-{uuid.uuid4().hex[:8]}"
        self.partition = TopicPartition(f"t-{uuid.uuid4().hex[:8]}", 0)
        self.admin = opened(Admin(bootstrap, client))
        self.admin.create_topics({self.partition.topic: TopicSpec(1)})
        self.driver = opened(open_driver(name, bootstrap, client))
        self.appender = opened(self.driver.appender())
        self.reader = opened(self.driver.reader({self.partition: 0}))
        self.watcher = opened(self.driver.watcher({self.partition: 0}))
        self.member = opened(
            Membership(bootstrap, client, group=group, topics=[self.partition.topic])
        )

    def calls(self):
        """Give what each client does; all of it succeeds at last."""
        at, value = self.partition, uuid.uuid4().bytes
        return {
            "append": lambda: isinstance(append_all(self.appender, at, [value])[0], Appended),
            "read": lambda: any(value in values(some.records) for some in self.reader.poll(0.5)),
            "watch": lambda: self.watcher.poll(0.5),
            "ask": lambda: self.driver.last_stable_offsets([at]),
            "commit": lambda: self.driver.commit("g", {at: (1, "")}) or True,
            "member": self.member.step,
            "admin": lambda: self.admin.partitions([at.topic]),
        }


def at_once(parties):
    """Have all clients work until each has succeeded."""
    calls = [call for party in parties for call in party.calls().items()]
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(again_and_again, calls))


@contextlib.contextmanager
def opened_parties(bootstrap, client, *names):
    with contextlib.ExitStack() as stack:
        opened = lambda thing: stack.enter_context(contextlib.closing(thing))  # noqa: E731
        yield [Party(name, bootstrap, client, opened) for name in names or NAMES]


def tls_files(folder):
    """Write an authority and a broker's certificate; give a client's settings and our context."""
    authority, _, authority_pem = certificate("authority")
    _, key, made = certificate("broker", authority)
    (folder / "ca.pem").write_bytes(authority_pem)
    (folder / "broker.pem").write_bytes(key + made)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "broker.pem")
    return {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem")}, context


CAMPAIGN = pytest.mark.campaign


@pytest.mark.parametrize(
    ("how", "tls"),
    [
        ("closed", False),
        pytest.param("silent", False, marks=CAMPAIGN),
        pytest.param("closed", True, marks=CAMPAIGN),
        pytest.param("silent", True, marks=CAMPAIGN),
    ],
)
def test_the_only_broker_is_found_where_it_is_now(kafka_cluster, tmp_path, how, tls):
    client, context = tls_files(tmp_path) if tls else ({}, None)
    places = {}
    doors = [Door(kafka_cluster.bootstrap, places, tls=context) for _ in range(4)]
    service, *homes = doors
    places[1] = homes[0].place
    with contextlib.ExitStack() as stack:
        for door in doors:
            stack.callback(door.close)
        with opened_parties(service.address, client) as parties:
            at_once(parties)
            for before, after in itertools.pairwise(homes):
                before.silent = how == "silent"
                if how == "closed":
                    before.close()
                places[1] = after.place
                at_once(parties)


@CAMPAIGN
def test_three_brokers_move_one_by_one_and_all_at_once(kafka_cluster_of_three):
    cluster = kafka_cluster_of_three
    cluster.start()
    brokers = dict(enumerate(cluster.bootstrap.split(","), 1))
    places, doors = {}, {}

    def move(*numbers):
        for number in numbers:
            if number in doors:
                doors[number].close()
            doors[number] = stack.enter_context(
                contextlib.closing(Door(brokers[number], places, host=f"127.0.0.{number}"))
            )
            places[number] = doors[number].place

    with contextlib.ExitStack() as stack:
        move(*brokers)
        service = stack.enter_context(contextlib.closing(Door(brokers[1], places)))
        with opened_parties(service.address, {}) as parties:
            at_once(parties)
            for numbers in [[number] for number in brokers] + [list(brokers)]:
                move(*numbers)
                at_once(parties)


def goes_where_a_name_leads(driver, bootstrap, lead):
    """Have a broker's name, `broker.test`, lead to one address and then to another."""
    places = {}
    lead("127.0.0.1")
    with contextlib.closing(Door(bootstrap, places)) as before:
        port = before.place[1]
        places[1] = ("broker.test", port)
        with (
            contextlib.closing(Door(bootstrap, places, host="127.0.0.2", port=port)),
            opened_parties(f"broker.test:{port}", {}, driver) as parties,
        ):
            at_once(parties)
            before.silent = True
            lead("127.0.0.2")
            at_once(parties)


@CAMPAIGN
def test_a_name_that_leads_elsewhere_is_looked_up_again(kafka_cluster, monkeypatch):
    look_up, at = socket.getaddrinfo, []

    def looked_up(host, *arguments, **settings):
        return look_up(at[-1] if host == "broker.test" else host, *arguments, **settings)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    goes_where_a_name_leads(NAMES[0], kafka_cluster.bootstrap, at.append)


OF_ITS_OWN = f"""
import sys
from pathlib import Path
from {__name__} import goes_where_a_name_leads
hosts = Path("/etc/hosts")
goes_where_a_name_leads(*sys.argv[1:], lambda at: hosts.write_text(f"{{at}} broker.test\\n"))
"""


@CAMPAIGN
@pytest.mark.needs("networks")
def test_librdkafka_looks_a_name_up_again_by_itself(kafka_cluster, tmp_path):
    hosts = tmp_path / "hosts"
    hosts.write_text("")
    run = [sys.executable, "-c", OF_ITS_OWN, NAMES[1], kafka_cluster.bootstrap]
    under = 'mount --bind "$0" /etc/hosts && exec "$@"'  # seen by this process alone
    subprocess.run(["unshare", "--mount", "sh", "-c", under, hosts, *run], check=True, timeout=300)


def test_a_broker_that_is_silent_in_the_handshake_is_given_up(tmp_path):
    client, context = tls_files(tmp_path)
    with contextlib.closing(Door("127.0.0.1:9", {}, tls=context)) as door:
        door.silent = True
        with pytest.raises(AmcastError, match="No broker"):
            open_driver(NAMES[0], door.address, client, request_timeout_s=0.5)
