"""Processes share the collectors among themselves, and take over from each other."""

import json
import socket
import subprocess
import sys
import urllib.request
from collections import Counter

import pytest

from collectors.engine.ended_processes import EndedProcesses, place_of, this_machine
from collectors.placement import share_out
from multicast import Producer
from multicast.control import MACHINE_BYTES, PROCESS_BYTES, StatusPage, running_record
from multicast.control.documents import page_of
from tests.collectors.deploy.shared import Instances
from tests.collectors.test_replanning import judged
from tests.helpers.plans import chain
from tests.helpers.small import Small
from tests.helpers.small import until as soon
from tests.helpers.system import PATIENCE_S, amcast, until
from topology.documents import NotReadable

ENDLESS_S = 1e9  # a patience that no test uses up


@pytest.mark.parametrize("count", range(9))
def test_every_node_has_a_primary_and_a_standby_and_every_member_its_share(count):
    nodes = [f"K{number}" for number in range(count)]
    for some in range(1, 6):
        members = [f"m{number}" for number in range(some)]
        places = share_out(nodes, members)
        assert places == share_out(nodes[::-1], members[::-1])
        assert sorted(places) == nodes
        primaries = Counter(place.primary for place in places.values())
        assert all(count // some <= primaries[member] <= -(-count // some) for member in members)
        for place in places.values():
            assert (place.standby is None) == (some == 1)
            assert place.standby != place.primary


def test_where_a_member_goes_most_nodes_stay():
    nodes = [f"K{number}" for number in range(40)]
    members = [f"m{number}" for number in range(8)]
    before, after = share_out(nodes, members), share_out(nodes, members[1:])
    stay = [n for n in nodes if before[n].primary == after[n].primary]
    assert len(stay) >= 24  # 5 must move; by chance alone 35 would


# -- standby ----------------------------------------------------------------------------------


def test_a_standby_waits_for_its_patience_acts_and_steps_back_for_another_writer():
    log = Instances(2, patience_s=1.0)
    log.ends(1)
    assert not log.turn(1, now=10.0)  # due, from now on
    assert not log.turn(1, now=10.9)
    assert log.turn(0, now=10.95)
    assert not log.turn(1, now=11.5)  # somebody ordered it
    log.ends(2)
    assert not log.turn(1, now=20.0)
    assert log.turn(1, now=21.0)
    assert not log.turn(1, now=21.005)  # nothing is due
    log.ends(3)
    assert log.turn(1, now=21.01)  # it goes on without waiting
    log.ends(4)
    assert log.turn(0, now=21.02)  # the primary is there again: it read on, and wins
    log.ends(5)
    assert not log.turn(1, now=21.03)
    assert log.roles[1].takeovers == 1
    assert log.turn(0, now=21.04)
    assert [core.own.state.positions[0] for core in log.cores] == [4, 4]
    assert not log.cores[0].void


def test_a_standby_that_waits_is_not_set_back_by_what_others_state():
    log = Instances(2, patience_s=1.0)
    log.ends(1)
    for now in (10.0, 10.5, 11.0):
        assert not log.roles[1].acting
        log.roles[1].step_back()  # at each change of the control topics
        log.turn(1, now)
    assert log.roles[1].acting


@pytest.mark.parametrize("advertised", [False, True])
def test_the_successor_of_one_that_has_ended_acts_at_once_until_another_has_advertised_itself(
    advertised,
):
    log = Instances(2, patience_s=1.0)
    log.ends(1)
    assert not log.turn(1, now=1.0)
    log.roles[1].holder_ended()
    assert log.turn(1, now=1.0)
    log.ends(2)
    assert log.turn(0, now=1.1)
    log.ends(3)
    assert not log.turn(1, now=1.2)  # it reads what the other one has written
    if advertised:
        log.roles[1].step_back()
    assert bool(log.turn(1, now=1.3)) is not advertised


def test_a_standby_that_was_a_primary_in_between_waits_as_others_do():
    log = Instances(2, patience_s=1.0)
    log.ends(1)
    assert not log.turn(1, now=1.0)
    log.roles[1].holder_ended()
    assert log.turn(1, now=1.0)
    log.roles[1].primary = True  # the process that has ended is no member any more
    log.ends(2)
    assert log.turn(1, now=1.1)
    log.roles[1].primary = False  # another process has joined
    log.ends(3)
    assert log.turn(0, now=1.2)
    log.ends(4)
    assert not log.turn(1, now=1.3)  # it stops
    assert not log.turn(1, now=1.4)  # due, from now on
    assert log.turn(1, now=2.4)


def test_only_a_process_that_has_ended_refuses_a_connection():
    ended, process = EndedProcesses(), bytes(PROCESS_BYTES)
    with socket.create_server(("127.0.0.1", 0), backlog=1) as server:
        page = StatusPage(*server.getsockname(), process, this_machine())
        for _ in range(5):  # more than wait to be accepted: nobody is refused
            assert not EndedProcesses().has_ended(place_of(page))
    assert not ended.is_known(place_of(page))
    assert ended.has_ended(place_of(page))
    assert ended.is_known(place_of(page))
    for other in (page._replace(machine=b""), page._replace(machine=b"elsewhere"[:8])):
        assert place_of(other) is None, "on this machine the port is another process's"
    assert place_of(page._replace(host="localhost")) is None
    remote = page._replace(host="192.0.2.1", machine=b"")
    assert place_of(remote) == ("192.0.2.1", page.port)


def test_a_status_page_without_or_with_a_machine_is_read_from_the_control_topic():
    page = StatusPage("127.0.0.1", 1, bytes(PROCESS_BYTES), this_machine())
    for each in (page, page._replace(machine=b"")):
        _, value = running_record(1, "K1", each)
        assert page_of(json.loads(value)) == each
    assert len(this_machine()) == MACHINE_BYTES
    with pytest.raises(NotReadable):
        page_of({"web": {"host": "h", "port": 1, "process": "00" * 8, "machine": "00"}})


def test_a_primary_that_is_one_no_more_goes_on_until_its_successor_counts():
    log = Instances(2, patience_s=1.0)
    log.roles[0].primary, log.roles[1].primary = False, True
    log.ends(1)
    assert log.turn(0, now=1.0)
    log.ends(2)
    assert log.turn(1, now=1.1)
    log.ends(3)
    assert not log.turn(0, now=1.2)
    assert log.turn(1, now=1.3)


@pytest.mark.slow
def test_a_standby_appends_nothing_beside_a_primary_and_all_when_that_is_gone():
    process, plan = bytes(PROCESS_BYTES), chain()
    server = socket.create_server(("127.0.0.1", 0))
    page = StatusPage(*server.getsockname(), process, this_machine())
    with Small(plan) as system, system.producer(tickets=False) as producer:
        first, thread = system.run("K1", page=page)
        soon(lambda: first.begun)
        # A patience that no slow machine uses up; but the end of the primary's process is noticed.
        other = page._replace(port=1)
        second, _ = system.run("K1", page=other, standby=True, patience_s=ENDLESS_S)
        for number in range(50):
            producer.multicast(b"%d" % number, to={"P1"}).ordered(60)
        assert second.status()["appended_here"] == 0
        first.stop()
        thread.join(60)
        server.close()
        for number in range(50, 100):
            producer.multicast(b"%d" % number, to={"P1"}).ordered(60)
        assert second.status()["role"] == "standby"
        assert second.status()["takeovers"] >= 1
        assert len(system.all("C1")) == 100


# -- processes --------------------------------------------------------------------------------


class Processes:
    """Processes of `amcast collectors run`, by name; a context manager that ends them."""

    def __init__(self, system):
        self._system = system
        self._processes = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.wait(PATIENCE_S)

    def start(self, *names, flags=()):
        command = [sys.executable, "-m", "multicast", "collectors", "run", *self._system.common()]
        for name in names:
            with (self._system.folder / f"{name}.log").open("w") as out:
                self._processes[name] = subprocess.Popen(
                    [*command, "--web-port", "0", *flags], stdout=out, stderr=out
                )

    def kill(self, name):
        self._processes[name].kill()
        self._processes.pop(name).wait(PATIENCE_S)

    def stop(self, name):
        self._processes[name].terminate()
        assert self._processes.pop(name).wait(PATIENCE_S) == 0

    def pages(self, name):
        log = (self._system.folder / f"{name}.log").read_text()
        address = next((word for word in log.split() if word.startswith("http://127.0.0.1:")), None)
        try:
            with urllib.request.urlopen(address or "http://127.0.0.1:1", timeout=30) as answer:
                return {"members": [], **json.load(answer)}
        except OSError:
            return {"members": [], "nodes": []}

    def roles(self, name, role):
        return {
            node["node"]
            for node in self.pages(name)["nodes"]
            if node["role"] == role and node["state"] == "running" and node.get("begun")
        }

    def takeovers(self, name):
        return [node["takeovers"] > 0 for node in self.pages(name)["nodes"]]

    def shared(self, *names):
        """Whether exactly these share all collectors, each with a standby on another one."""
        documents = [self.pages(name) for name in names]
        if any(len(document["members"]) != len(names) for document in documents):
            return False
        nodes = sorted(node.name for node in self._system.plan.collectors)
        primaries = [self.roles(name, "primary") for name in names]
        standbys = sorted(node for name in names for node in self.roles(name, "standby"))
        share = -(-len(nodes) // len(names))
        return (
            sorted(node for some in primaries for node in some) == nodes
            and all(len(some) in (share, share - 1) for some in primaries)
            and (standbys == nodes or len(names) == 1)
        )


SETS = ({"P1"}, {"P2"}, {"P3"}, {"P5"}, {"P1", "P3"}, {"P2", "P3", "P4"})


def send(system, count):
    with Producer(topic=system.topic, driver=system.driver) as producer:
        receipts = [
            producer.multicast(b"%d" % number, to=SETS[number % len(SETS)])
            for number in range(count)
        ]
        return [receipt.ordered(PATIENCE_S) for receipt in receipts]


@pytest.mark.timeout(900)
def test_instances_share_out_all_nodes_and_move_them_when_one_joins_dies_or_leaves(system):
    with Processes(system) as instances:
        instances.start("a", "b")
        until(lambda: instances.shared("a", "b"), "a share for each of two")
        send(system, 60)
        instances.start("c")
        until(lambda: instances.shared("a", "b", "c"), "a share for each of three")
        send(system, 60)
        instances.kill("a")
        send(system, 60)
        until(lambda: instances.shared("b", "c"), "all nodes on the two that are left")
        instances.stop("b")
        send(system, 60)
        until(lambda: instances.shared("c"), "all nodes on the last one")
        assert judged(system, "C1", "C2", "C3").messages == 240


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_primaries_that_share_and_pinned_ones_at_once_break_nothing(system):
    names = [node.name for node in system.plan.collectors]
    with Processes(system) as instances:
        instances.start("shared")
        instances.start("pinned", flags=[flag for name in names for flag in ("--node", name)])
        instances.start("standby", flags=["--node", names[0], "--standby"])
        until(lambda: instances.roles("pinned", "primary") == set(names), "the pinned")
        until(lambda: instances.roles("shared", "primary") == set(names), "the shared")
        until(lambda: instances.roles("standby", "standby") == {names[0]}, "the standby")
        until(lambda: len(instances.pages("shared")["members"]) == 1, "one that shares")
        send(system, 600)
        instances.kill("pinned")
        instances.kill("shared")
        # Without a ticket, so that a collector has to order it.
        with Producer(topic=system.topic, driver=system.driver, tickets=False) as producer:
            top = {log for name in names[:1] for log in system.plan.own_logs(name)}
            to = next(to for to in SETS if "+".join(sorted(to)) in top)
            producer.multicast(b"600", to=to).ordered(PATIENCE_S)
        until(lambda: instances.takeovers("standby") == [True], "a standby that took over")
        assert instances.roles("standby", "standby") == {names[0]}
        instances.start("shared")
        until(lambda: instances.shared("shared"), "all nodes again")
        assert judged(system, "C1", "C2", "C3").messages == 601


def test_standing_by_for_a_share_is_refused():
    done = amcast("collectors", "run", "--standby", "-b", "127.0.0.1:1")
    assert (done.returncode, "--standby goes with --node" in done.stderr) == (2, True)
