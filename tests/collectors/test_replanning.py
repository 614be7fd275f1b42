"""Changes of a running topic's tree under load, on a real broker: nothing is lost."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace

import pytest

from collectors.reconfiguration import apply as apply_module
from collectors.reconfiguration import drain
from collectors.reconfiguration.apply import apply
from multicast import Consumer, Producer
from multicast.consuming.subscription import SubscriptionRequest
from multicast.control import ControlReader
from multicast.drivers.kafka import Admin
from multicast.errors import AmcastError, Conflict
from multicast.properties import check_all
from multicast.verification.from_cluster import replayed
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, amcast, until
from topology.changes import with_kept_names, with_running_logs
from topology.interests import from_document
from topology.planner.solver import plan as solve

pytestmark = pytest.mark.timeout(900)

WIDER = {
    "partitions": ["P1", "P2", "P3", "P4", "P5", "P6"],
    "destinations": [["P1", "P3"], ["P2", "P3", "P4"], ["P5", "P6"]],
    "consumer": [
        {"name": "C1", "interest": ["P1", "P2", "P3"]},
        {"name": "C2", "interest": ["P2", "P3", "P4"]},
        {"name": "C3", "interest": ["P3", "P4", "P5"]},
        {"name": "C4", "interest": ["P1", "P5", "P6"]},
    ],
}


def planned(running):
    """Make the next plan for other interests, as the planner does for a running topic."""
    interests = with_running_logs(from_document({"topic": running.topic, **WIDER}), running)
    made = solve(interests, base_epoch=running.epoch, cluster_id=running.cluster_id)
    return with_kept_names(running, made)


class Load:
    """A producer that does not know the new plan, and consumers that read all the time."""

    SETS = ({"P1"}, {"P2"}, {"P3"}, {"P4"}, {"P5"}, {"P1", "P3"}, {"P2", "P3", "P4"})

    def __init__(self, system, names):
        self.sent = 0
        self._stop_sending = threading.Event()
        self._stop = threading.Event()
        self._system = system
        self.received = {name: [] for name in names}
        self.errors = []
        self.counts = []
        self._threads = [threading.Thread(target=self._send, daemon=True)]
        self._threads += [
            threading.Thread(target=self._read, args=(name,), daemon=True) for name in names
        ]
        for thread in self._threads:
            thread.start()

    def _send(self):
        system, receipts = self._system, []
        try:
            with Producer(topic=system.topic, driver=system.driver) as producer:
                while not self._stop_sending.wait(0.01):
                    to = self.SETS[self.sent % len(self.SETS)]
                    receipts.append(producer.multicast(b"%d" % self.sent, to=to))
                    self.sent += 1
                for receipt in receipts:  # whatever was not stored is the sender's error
                    receipt.accepted(PATIENCE_S)
        except AmcastError as error:
            self.errors.append(error)

    def _read(self, name):
        system = self._system
        try:
            with Consumer(topic=system.topic, name=name, driver=system.driver) as consumer:
                while not self._stop.is_set():
                    self._take(name, consumer.poll(0.1))
                for batch in consumer.until_end():
                    self._take(name, [batch])
                self.counts.append(consumer.counts())
        except AmcastError as error:
            self.errors.append(error)

    def _take(self, name, batches):
        for batch in batches:
            self.received[name] += [
                (batch.epoch, int(record.value))
                for record in batch.records
                if record.value != b"new"
            ]

    def epochs(self):
        return [messages[-1][0] if messages else 0 for messages in self.received.values()]

    def end(self):
        """Stop, let all finish, and compare the deliveries with what was sent."""
        # The consumers must stop at an end after the last message.
        for stop, threads in (
            (self._stop_sending, self._threads[:1]),
            (self._stop, self._threads[1:]),
        ):
            stop.set()
            for thread in threads:
                thread.join(PATIENCE_S)
                assert not thread.is_alive()
        assert not self.errors
        interests = {entry.name: set(entry.interest) for entry in poster().consumers}
        for name, messages in self.received.items():
            met = [bool(to & interests[name]) for to in self.SETS]
            assert sorted(number for _, number in messages) == [
                number for number in range(self.sent) if met[number % len(met)]
            ]
            epochs = [epoch for epoch, _ in messages]
            assert epochs == sorted(epochs)


def judged(system, *names):
    seats = [SubscriptionRequest.of(name, None) for name in names]
    report = check_all(replayed(system.driver, system.topic, seats))
    assert not report.violations, [str(violation.witness) for violation in report.violations]
    return report


def applied(system, plan, **options):
    with Admin(system.bootstrap) as admin:
        options = {"add_partitions": True, **options}
        return apply(system.driver, admin, plan, timeout_s=PATIENCE_S, **options).plan


def test_everybody_follows_into_a_tree_with_new_partitions_sets_and_consumers(system, monkeypatch):
    monkeypatch.setattr(drain, "_HELP_S", PATIENCE_S)  # the old epoch ends without help
    host = system.order()
    load = Load(system, ["C1", "C2", "C3"])
    until(lambda: all(len(messages) > 50 for messages in load.received.values()), "a start")
    early = Producer(topic=system.topic, driver=system.driver)
    steps = []
    after = applied(system, planned(system.plan), say=steps.append)
    assert after.epoch == 2
    assert steps[-1] == "epoch 1 has ended"
    assert not any("did not freeze" in step for step in steps)
    until(lambda: load.epochs() == [2, 2, 2], "epoch 2")
    with early as producer:  # it reads the new plan when a new set is used, every few seconds
        until(lambda: producer.declares({"P5", "P6"}), "the new plan")
        receipt = producer.multicast(b"new", to={"P5", "P6"})
        assert str(receipt.ordered(PATIENCE_S)).startswith("P5+P6:")
    load.end()
    for messages in load.received.values():
        assert messages[0][0] == 1
    assert judged(system, "C1", "C2", "C3", "C4").deliveries > 150
    # Each collector that changed shows how long it stood, and so does each consumer.
    before = {node.name for node in system.plan.collectors}
    nodes = [node for node in host.status()["nodes"] if node["epoch"] == 2]
    pauses = {node["node"]: node["replanning_seconds"] for node in nodes}
    assert before & pauses.keys()
    assert {name for name, pause in pauses.items() if pause is not None} == before & pauses.keys()
    assert all(0 <= pauses[name] < PATIENCE_S for name in before & pauses.keys())
    assert all(0 <= counts.replanning_s < PATIENCE_S for counts in load.counts)


def advertised(system):
    """Run all collectors in one process; return once the control topic names its page for each."""
    host = system.order()
    names = {node.name for node in system.plan.collectors}
    with closing(ControlReader(system.driver, system.topic)) as control:
        until(lambda: names <= control.refresh().advertised.collectors_open(1), "all statements")
    return host


@pytest.mark.campaign
def test_collectors_that_are_stalled_during_the_drain_are_waited_for(system, monkeypatch):
    # Init: the collectors' process is stopped, as on a machine that has no time for it.
    monkeypatch.setattr(apply_module, "_OPENING_S", PATIENCE_S)
    host = advertised(system)
    os.kill(host.pid, signal.SIGSTOP)

    # Test: the drain ends the epoch for it; it goes on after the first look whether it is ready.
    steps, looks, really = [], [], apply_module.not_opened

    def not_opened(state):
        looks.append(really(state))
        if len(looks) == 2:
            os.kill(host.pid, signal.SIGCONT)
        return looks[-1]

    monkeypatch.setattr(apply_module, "not_opened", not_opened)
    with Admin(system.bootstrap) as admin:
        done = apply(
            system.driver, admin, planned(system.plan), timeout_s=PATIENCE_S, add_partitions=True,
            say=steps.append,
        )  # fmt: skip

    # Check.
    assert any("did not freeze in time" in step for step in steps)
    assert looks[0]
    assert done.not_running == ()


@pytest.mark.campaign
def test_collectors_that_have_ended_are_not_waited_for(system, monkeypatch):
    monkeypatch.setattr(apply_module, "_OPENING_S", 2 * 900.0)  # it would outlast the test
    host = advertised(system)
    os.kill(host.pid, signal.SIGKILL)
    with Admin(system.bootstrap) as admin:
        after = planned(system.plan)
        done = apply(system.driver, admin, after, timeout_s=PATIENCE_S, add_partitions=True)
    assert set(done.not_running) == {node.name for node in done.plan.collectors}


def test_a_drain_that_nobody_helps_is_finished_by_apply_itself(system):
    with Producer(topic=system.topic, driver=system.driver) as producer:
        for number in range(20):
            producer.multicast(b"%d" % number, to={"P3"}).accepted(PATIENCE_S)
    steps = []
    after = applied(system, planned(system.plan), say=steps.append)
    assert any("did not freeze in time" in step for step in steps)
    system.plan = after
    system.order()
    with Producer(topic=system.topic, driver=system.driver) as producer:
        producer.multicast(b"20", to={"P3"}).ordered(PATIENCE_S)
    with Consumer(topic=system.topic, name="C2", driver=system.driver) as consumer:
        received = [(b.epoch, int(r.value)) for b in consumer.until_end() for r in b.records]
    assert [number for _, number in received] == list(range(21))
    assert received[-1][0] == 2
    assert applied(system, after).epoch == 2


class Killed(Exception):
    """The end of an operator's process in the middle of its work."""


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("is in the control topic", marks=pytest.mark.campaign),
        "freeze",
        pytest.param("did not freeze", marks=pytest.mark.campaign),
    ],
)
def test_an_apply_that_was_killed_at_any_step_is_finished_by_the_next(system, step):
    plan = planned(system.plan)

    def die(sentence):
        if step in sentence:
            raise Killed

    with pytest.raises(Killed):
        applied(system, plan, say=die)
    third = replace(plan, epoch=3, base_epoch=2)
    with pytest.raises(Conflict, match="has not begun yet"):
        applied(system, third)
    assert applied(system, plan).epoch == 2
    system.plan = applied(system, third)
    assert system.plan.epoch == 3
    # A consumer that was stopped during both changes reads all three epochs.
    system.order()
    with Producer(topic=system.topic, driver=system.driver) as producer:
        producer.multicast(b"3", to={"P1", "P3"}).ordered(PATIENCE_S)
    judged(system, "C1", "C2", "C3", "C4")


def answered(words, answer):
    """Call a command on a terminal, and answer what it asks; its exit code and stdout."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb") as typed, os.fdopen(theirs, "rb") as screen:
        typed.write(f"{answer}\n".encode())
        typed.flush()
        command = [sys.executable, "-m", "multicast", *words]
        done = subprocess.run(
            command, stdin=screen, stdout=subprocess.PIPE, stderr=screen, timeout=240, check=False
        )
    return done.returncode, done.stdout.decode()


@pytest.mark.campaign
def test_the_commands_change_the_tree_say_what_was_seen_and_lead_back(system, tmp_path):
    system.order()
    file = tmp_path / "next.json"
    file.write_text(json.dumps(planned(system.plan).to_json()))
    load = Load(system, ["C1"])
    until(lambda: all(len(messages) > 50 for messages in load.received.values()), "a start")
    flags = ["-b", system.bootstrap, "--driver", system.driver_name]
    limit = ["--timeout", str(PATIENCE_S)]
    refused = amcast("topology", "apply", str(file), *flags, *limit)
    assert (refused.returncode, "give --add-partitions" in refused.stderr) == (2, True)
    words = ("topology", "apply", str(file), *flags, *limit, "--add-partitions")
    dry = amcast(*words, "--dry-run", patiently=True)
    assert (dry.returncode, dry.stdout) == (0, "nothing was changed\n"), dry.stderr
    assert "join: consumers C4" in dry.stderr
    assert answered(words, "n") == (1, "nothing was changed\n")
    assert not (tmp_path / "next.json.rollback").exists()
    done = amcast(*words, patiently=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"epoch 2 of topic {system.topic} runs\n"
    assert "to roll back: amcast topology apply" in done.stderr
    assert amcast("topology", "apply", str(file), *flags).stdout.endswith("nothing changed\n")

    # The rollback plan that apply wrote first; 'rollback' writes one for any epoch on demand.
    back = tmp_path / "next.json.rollback"
    flags += ["--timeout", str(PATIENCE_S)]
    words = ("topology", "apply", str(back), *flags, "-o", "json", "--uncovered")
    again = amcast(*words, patiently=True)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["epoch"] == 3
    assert f"topology apply {tmp_path / 'next.json.forward'}" in again.stderr
    until(lambda: load.epochs() == [3], "epoch 3")
    load.end()
    assert judged(system, "C1", "C2", "C3").messages > 100

    common = system.common()
    listed = json.loads(amcast("topology", "history", *common, "-o", "json").stdout)["epochs"]
    assert [row["state"] for row in listed] == ["ended", "ended", "runs"]
    until(lambda: amcast("topology", "verify", *common).returncode == 0, "what was applied")
    stale = amcast("topology", "apply", str(file), *flags)
    assert (stale.returncode, "plan again" in stale.stderr) == (5, True)
    out = tmp_path / "two.json"
    assert amcast("topology", "rollback", "--out", str(out), "--to", "2", *common).returncode == 0
    assert json.loads(out.read_text())["epoch"] == 4
    assert amcast("topology", "rollback", "--out", str(out), "--to", "3", *common).returncode == 2
    # An existing file is kept, unless --force is given.
    kept = amcast("topology", "rollback", "--out", str(file), "--to", "2", *common)
    assert (kept.returncode, "exists already" in kept.stderr) == (2, True)
    assert json.loads(file.read_text())["epoch"] == 2
    forced = amcast("topology", "rollback", "--out", str(file), "--to", "2", "--force", *common)
    assert (forced.returncode, json.loads(file.read_text())["epoch"]) == (0, 4)
