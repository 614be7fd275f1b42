"""Exclusive consumers on real brokers: killed, frozen, cut off, and their coordinator killed."""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from statistics import quantiles

import pytest

from multicast import Producer
from multicast.consuming.cursor import Cursor
from multicast.control import control_partition
from multicast.drivers import open_driver
from multicast.drivers.kafka.group_member import find_coordinator
from multicast.errors import AmcastError
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, until
from tests.multicast.consuming.exclusive_program import GROUP, SESSION_S, TABLES, opened
from tests.multicast.drivers.doors import Door

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(3000)]
TIMES = int(os.environ.get("TIMES", "2"))  # each kind of disturbance comes so often
SETS = [{"P1"}, {"P3"}, {"P1", "P3"}]


class Member:
    """A process, behind a door to each broker."""

    def __init__(self, members):
        self.places = {}
        self.doors = [Door(address, self.places) for address in members.brokers]
        numbers = enumerate(self.doors, 1)
        self.places.update({number: door.place for number, door in numbers})
        bootstrap = ",".join(door.address for door in self.doors)
        program = "tests.multicast.consuming.exclusive_program"
        place = [bootstrap, members.system.topic, str(members.file)]
        command = [sys.executable, "-m", program, *place]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def close(self):
        self.process.kill()
        self.process.communicate()
        for door in self.doors:
            door.close()


class Members:
    """Two processes of one group, and what they did; one that has ended is replaced."""

    def __init__(self, system, cluster, folder):
        self.system, self.cluster, self.file = system, cluster, folder / "effects.db"
        self.brokers = cluster.bootstrap.split(",")
        self.group = f"amcast.{system.topic}.{GROUP}"
        self.handovers = defaultdict(list)  # by kind: from the disturbance to the next activation
        self.database = opened(self.file)
        self.database.executescript(TABLES)
        self.pair = [Member(self), Member(self)]
        self.active = 0  # its fence

    def events(self, kind):
        asked = "SELECT fence, began, process FROM events WHERE kind = ? ORDER BY began"
        return self.database.execute(asked, (kind,)).fetchall()

    def next_active(self):
        """Wait for a later fence, and a commit under it; give when it was active."""

        def begun():
            self.revive()
            fence = (self.events("active") or [(0,)])[-1][0]
            return fence > self.active and fence in {of for of, _, _ in self.events("committed")}

        until(begun, "another one")
        self.active, began, _ = self.events("active")[-1]
        return began

    def revive(self):
        """Replace a process that was stopped for longer than its session, or had no broker."""
        for each in [each for each in self.pair if each.process.poll() in (4, 5)]:
            self.replace(each)

    def whose(self):
        """Give the process that is active."""
        found = []

        def known():
            self.revive()
            self.active, _, process = self.events("active")[-1]
            found[:] = [each for each in self.pair if each.process.pid == process]
            return found

        until(known, "an active one")
        return found[0]

    def replace(self, member):
        """Have a process that ends, or is killed, followed by another one; give its exit code."""
        code = member.process.wait(PATIENCE_S)
        member.close()
        self.pair[self.pair.index(member)] = Member(self)
        return code

    def stop(self, member):
        """Stop a process outside its transactions: it would keep the database's lock."""
        self.database.execute("BEGIN IMMEDIATE")
        member.process.send_signal(signal.SIGSTOP)
        state = Path(f"/proc/{member.process.pid}/stat")
        until(lambda: state.read_text().rpartition(") ")[2][0] == "T", "a stop")
        self.database.execute("COMMIT")

    def disturb(self, kind):
        member, began = self.whose(), time.monotonic()

        def handed_over():
            self.handovers[kind].append(self.next_active() - began)

        match kind:
            case "end":
                member.process.send_signal(signal.SIGTERM)
                handed_over()
                assert self.replace(member) in (0, 5)
            case "kill":
                member.process.kill()
                handed_over()
                assert self.replace(member) == -signal.SIGKILL
            case "freeze":
                self.stop(member)
                handed_over()
                member.process.send_signal(signal.SIGCONT)
                assert self.replace(member) == 5
            case "pause":
                self.stop(member)
                threading.Event().wait(SESSION_S / 3)
                member.process.send_signal(signal.SIGCONT)
            case "cut":
                for door in member.doors:
                    door.silent = True
                handed_over()
                for door in member.doors:
                    door.silent = False
                assert self.replace(member) == 5
            case "coordinator":
                broker = self.coordinator()
                self.cluster.kill(broker)
                self.wait_commits()
                self.cluster.start()
        self.wait_commits()

    def wait_commits(self):
        before = len(self.events("committed"))

        def more():
            self.revive()
            return len(self.events("committed")) > before + 2

        until(more, "commits")

    def coordinator(self):
        with contextlib.closing(open_driver("kafka-python", self.system.bootstrap)) as driver:
            return driver._connection.run(find_coordinator, driver._connection, self.group)

    def close(self):
        for each in self.pair:
            each.close()
        self.database.close()


@contextlib.contextmanager
def sent_and_watched(members):
    """Send, and read the group's position, again and again; give the places, in their order."""
    system, places, ends = members.system, [], threading.Event()
    control, sets = control_partition(system.topic), itertools.cycle(SETS)

    def work():
        with Producer(system.bootstrap, topic=system.topic) as producer:
            while not ends.wait(0.02):
                with contextlib.suppress(AmcastError):  # brokers are killed
                    producer.multicast(b"", to=next(sets))
                    stored = system.driver.committed(members.group, [control])
                    places.extend(Cursor.parse(text).rank for _, text in stored.values())

    working = threading.Thread(target=work, daemon=True)
    working.start()
    try:
        yield places
    finally:
        ends.set()
        working.join(PATIENCE_S)


def judge(members, places, expected):
    """Each message has its effect once and in order; no two are active; no commit goes back."""
    effects = members.database.execute("SELECT message FROM effects ORDER BY place").fetchall()
    assert [message for (message,) in effects] == expected
    assert places == sorted(places)
    first = {}
    for fence, began, _ in members.events("delivered"):
        first.setdefault(fence, began)
    for fence, began, _ in members.events("committed"):  # those that Kafka has stored
        for other, delivered in first.items():
            assert other <= fence or began < delivered, "two may commit at a time"
    assert sorted(first) == sorted(first, key=first.get)


def disturbed(cluster, folder, kinds):
    with (
        System(cluster.bootstrap, poster(), folder) as system,
        contextlib.closing(Members(system, cluster, folder)) as members,
    ):
        system.order()
        with sent_and_watched(members) as places:
            members.next_active()
            for kind in kinds:
                members.disturb(kind)
        expected = [row["message_id"] for row in system.receive("--name", "C1", "--until-end")]
        count = "SELECT count(*) FROM effects"
        until(lambda: members.database.execute(count).fetchone()[0] >= len(expected), "all effects")
        judge(members, places, expected)
        return members.handovers


def test_each_message_has_one_effect_whatever_happens_to_the_active_one(kafka_cluster, tmp_path):
    disturbed(kafka_cluster, tmp_path, ["end", "freeze"])


@pytest.mark.campaign
def test_disturbances_of_all_kinds_lose_and_double_nothing(kafka_cluster_of_three, tmp_path):
    drawn = random.Random(1)
    kinds = TIMES * ["end", "kill", "freeze", "pause", "cut", "coordinator"]
    drawn.shuffle(kinds)
    handovers = disturbed(kafka_cluster_of_three, tmp_path, kinds)
    for kind, waits in handovers.items():
        cuts = quantiles(waits, n=100, method="inclusive")
        sys.stdout.write(f"{kind}: handover p50 {cuts[49]:.2f} s, p99 {cuts[98]:.2f} s\n")
