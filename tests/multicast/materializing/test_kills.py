"""A copier on a real broker: killed at any moment, frozen, and taken over by another one."""

import contextlib
import random
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from multicast import Fenced
from multicast.consuming.cursor import Cursor
from multicast.drivers.librdkafka_reader.transactions import LibrdkafkaTransactions
from multicast.drivers.protocol import Record, TopicPartition
from tests.helpers.driver_worlds import whole
from tests.helpers.hosting import hosting
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, until
from tests.running.commands import amcast
from tests.system.clients import installed

pytestmark = pytest.mark.timeout(900)
SETS = [{"P1"}, {"P3"}, {"P1", "P3"}, {"P2", "P3", "P4"}, {"P5"}]


class Copying:
    """Copiers of a system's consumer C1."""

    def __init__(self, system):
        self.system = system
        self.target = TopicPartition(f"{system.topic}.copies", 0)
        self.arguments = ["C1", "--to", self.target.topic, *system.common()]

    @contextlib.contextmanager
    def copier(self):
        """Run a copier as a process; at the end it is killed."""
        command = [sys.executable, "-m", "multicast", "materialize", *self.arguments]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def end(self):
        return self.system.driver.high_watermarks([self.target])[self.target]

    def is_open(self):
        """Whether a transaction is open in the target."""
        return self.stable_end() < self.end()

    def stable_end(self):
        return self.system.driver.last_stable_offsets([self.target])[self.target]

    def copies(self):
        """Read the committed copies: of each its ID, value, destination set and cursor."""
        rows = []
        for record in whole(self.system.driver, self.target):
            headers = {name: value.decode() for name, value in record.headers}
            cursor = Cursor.parse(headers["amcast.cursor"])
            named = headers["amcast.id"], headers["amcast.to"], cursor
            rows.append((record.value.decode(), *named))
        return rows

    def killed(self, kills):
        """Kill so many copiers, by turns while a transaction is open and once one is committed."""
        drawn = random.Random(kills)
        for kill in range(kills):
            with self.copier() as process:
                until(lambda: self.system.driver.topic_ids([self.target.topic]), "the target")
                if kill % 2:
                    self.wait_copied(drawn.randrange(1, 60))
                    until(self.is_open, "an open transaction", pause=0.001)
                else:  # behind a transaction, or in a later one
                    goal = self.stable_end() + drawn.randrange(1, 60)
                    until(lambda goal=goal: self.stable_end() > goal, "committed copies")
                assert process.poll() is None

    def wait_copied(self, records):
        goal = self.end() + records
        until(lambda: self.end() > goal, "copies")

    def all_copied(self):
        """Copy what is left; give what `amcast receive` gives."""
        done = amcast("materialize", *self.arguments, "--until-end")
        assert done.returncode == 0, done.stderr
        return self.system.receive("--name", "C1", "--until-end")


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.campaign)])
def test_each_message_is_copied_once_in_order_however_often_the_copier_is_killed(
    kafka_cluster, tmp_path, kills
):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        copying = Copying(system)
        with system.load(SETS):
            # Init.
            copying.killed(kills)
            # Test: one that is frozen, maybe inside a transaction, and another takes over.
            with copying.copier() as frozen:
                copying.wait_copied(30)
                frozen.send_signal(signal.SIGSTOP)
                with copying.copier() as other:
                    copying.wait_copied(30)
                    frozen.send_signal(signal.SIGCONT)
                    # Check: the zombie ends.
                    _, said = frozen.communicate(timeout=PATIENCE_S)
                    assert frozen.returncode == 5, said
                    assert "another process has taken over" in said
                    other.send_signal(signal.SIGTERM)
                    _, said = other.communicate(timeout=PATIENCE_S)
                    assert other.returncode == 143, said
        expected = [
            (row["payload"], row["message_id"], ",".join(row["to"]), Cursor.parse(row["cursor"]))
            for row in copying.all_copied()
        ]
        assert copying.copies() == expected


def states(host):
    """Give the exit codes of a process's copiers; "elsewhere" where it runs none."""
    rows = host.status().get("copiers", [])
    return [str(row["ended"]) if row["pid"] else "elsewhere" for row in rows]


def is_over(process):
    """Whether a process has ended, also if nobody has asked how."""
    status = process / "status"
    return not status.exists() or "State:\tZ" in status.read_text()


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
def test_of_several_processes_of_collectors_one_copies_and_the_next_takes_over(
    kafka_cluster, tmp_path
):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system, ExitStack() as stack:
        copying = Copying(system)
        # The second one is refused: this topic cannot be a target.
        flags = [f"--materialize=C1={to}" for to in (copying.target.topic, system.topic)]
        place = system.bootstrap, system.topic, system.driver_name
        hosts = []
        for name in "ab":
            (tmp_path / name).mkdir()
            hosts.append(stack.enter_context(hosting(*place, tmp_path / name, options=flags)))
        done, waits = ["None", "2"], ["elsewhere"] * 2
        with system.load(SETS):
            until(lambda: sorted(map(states, hosts)) == sorted([done, waits]), "one that copies")
            first, other = sorted(hosts, key=states)
            orphan = Path(f"/proc/{first.status()['copiers'][0]['pid']}")
            copying.wait_copied(30)
            first.kill()
            until(lambda: states(other) == done, "the other one")
            until(lambda: is_over(orphan), "the end of the copier without a host")
            copying.wait_copied(30)
        expected = [row["message_id"] for row in copying.all_copied()]
        assert [message_id for _, message_id, _, _ in copying.copies()] == expected


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.needs("jdk", "npm")
def test_clients_in_java_and_javascript_read_each_message_once_in_the_agreed_order(
    kafka_cluster, tmp_path
):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        system.order()
        copying = Copying(system)
        with system.load(SETS):
            copying.killed(5)
        rows = [f"{row['payload']} {row['message_id']}" for row in copying.all_copied()]
        place = (system.bootstrap, copying.target.topic)
        assert installed.kafka_clients(*place) == rows
        last = rows[-1].split()[1]
        assert installed.kafkajs(*place, f"{system.topic}-js", last) == rows


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
def test_a_copier_that_stands_still_holds_readers_up_for_the_transaction_time_out(
    kafka_cluster, tmp_path
):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        target = TopicPartition(system.topic, 0)
        known = {"topic": target.topic, "partition": 0, "group": system.topic}
        stalled = LibrdkafkaTransactions(system.bootstrap, {}, **known, timeout_s=2.0)
        with contextlib.closing(stalled):
            stalled.fence()
            stalled.begin()
            stalled.copy([Record(0, b"x")], [[]])
            assert stalled.stored() == 0
            assert system.driver.last_stable_offsets([target]) == {target: 0}
            # The brokers look for transactions that are too old every 10 s.
            until(lambda: system.driver.last_stable_offsets([target])[target] == 2, "the abort")
            with pytest.raises(Fenced):
                stalled.commit(system.topic, {target: (1, "")})


@pytest.mark.kafka
@pytest.mark.slow
def test_whichever_call_meets_it_a_fenced_copier_ends_with_the_named_error(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system:
        known = {"topic": system.topic, "partition": 0, "group": system.topic, "timeout_s": 60.0}
        first, second = (LibrdkafkaTransactions(system.bootstrap, {}, **known) for _ in range(2))
        with contextlib.closing(first), contextlib.closing(second):
            first.fence()
            first.begin()
            first.copy([Record(0, b"x")], [[]])
            first.stored()
            place = TopicPartition(system.topic, 0)
            first.commit(system.topic, {place: (1, "text")})
            # What either client reads is what was committed, once it is stable.
            assert first.committed(system.topic, [place]) == {place: (1, "text")}
            assert system.driver.committed(system.topic, [place]) == {place: (1, "text")}
            first.begin()
            second.fence()
            first.copy([Record(0, b"x")], [[]])
            for call in (
                lambda: first.stored() < 0 and first.commit(system.topic, {place: (1, "")}),
                lambda: first.copy([Record(0, b"x")], [[]]),
                lambda: first.commit(system.topic, {place: (1, "")}),
                first.begin,
            ):
                with pytest.raises(Fenced):
                    call()
