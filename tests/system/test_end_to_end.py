"""The whole path on a real broker: plan, collectors, multicast, delivery in one agreed order."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from kafka import KafkaProducer

from multicast import Consumer, Producer
from multicast.errors import UncoveredInterest, UndeclaredDestination, UsageError
from multicast.local.broker import free_ports
from tests.helpers.plans import poster
from tests.helpers.system import PATIENCE_S, System, amcast, judge, unheld, until
from topology.tree import Plan

pytestmark = [pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(900)]
PLAN = poster()
SETS = [["P1"], ["P2"], ["P3"], ["P4"], ["P5"], ["P1", "P3"], ["P2", "P3", "P4"], ["P2", "P4"]]


@pytest.fixture
def system(kafka_cluster, tmp_path):
    with System(kafka_cluster.bootstrap, PLAN, tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def running(kafka_cluster, tmp_path_factory):
    """A system that runs; each test of it looks at its own messages only."""
    with System(kafka_cluster.bootstrap, PLAN, tmp_path_factory.mktemp("running")) as made:
        made.order()
        yield made


@pytest.fixture(scope="module")
def busy(kafka_cluster, tmp_path_factory):
    """A system that runs and has 1,000 messages; no test of it sends more."""
    with System(kafka_cluster.bootstrap, PLAN, tmp_path_factory.mktemp("busy")) as made:
        made.order()
        sent = amcast("send", *made.common(), stdin=lines(1000))
        assert sent.returncode == 0, sent.stderr
        yield made


def lines(count, seed=1, start=0):
    """JSON lines for `amcast send`: numbered messages to random destination sets."""
    rng = random.Random(seed)
    return "".join(
        json.dumps({"to": rng.choice(SETS), "payload": f"m{start + number}"}) + "\n"
        for number in range(count)
    )


def test_equal_interests_deliver_equal_sequences_and_all_agree_on_one_order(system, tmp_path):
    # Init: one instance of every collector, and 3,000 messages.
    system.order()
    sent = amcast("send", *system.common(), "--history", str(tmp_path / "sent"), stdin=lines(3000))
    assert sent.returncode == 0, sent.stderr

    # Test: three consumers in processes of their own; meanwhile others with the same interests
    # read here, one after the other.
    def receive(name, instance):
        words = ["-n", name, "--until-end", "--timeout", str(PATIENCE_S), "--instance", instance]
        history = str(tmp_path / f"{name}-{instance}")
        return ["receive", *system.common(), *words, "--history", history]

    names = ("C1", "C2", "C3")
    with contextlib.ExitStack() as ending:
        running = []
        for name in names:
            command = [sys.executable, "-m", "multicast", *receive(name, "a")]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            running.append(ending.enter_context(process))
            ending.callback(process.kill)
        here = [amcast(*receive(name, "b")) for name in names]
        there = [process.communicate(timeout=PATIENCE_S)[0].splitlines() for process in running]
    assert [done.returncode for done in (*running, *here)] == [0] * 6

    # Check: instances agree to the line; every guarantee that histories tell of holds.
    for first, second in zip(there, here, strict=True):
        assert first == second.stdout.splitlines()
        assert len(first) > 1000
    files = [tmp_path / f"{name}-{i}" for name in names for i in ("a", "b")]
    found = judge(system.plan, tmp_path / "sent", *files)
    assert not unheld(found, "replay")


@pytest.fixture(scope="module")
def whole(busy):
    """All that C1 is to deliver."""
    return busy.receive("-n", "C1", "--until-end")


def test_a_group_goes_on_where_it_committed(busy, whole):
    first = busy.receive("-n", "C1", "--max", "50", "--group", "g")
    second = busy.receive("-n", "C1", "--until-end", "--group", "g")
    assert len(first) == 50
    assert [*first, *second] == whole


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.campaign)])
def test_two_instances_of_every_collector_and_kills_under_load_break_nothing(
    system, tmp_path, kills
):
    # Init: two instances of every collector, of which one has a process of its own.
    one = system.collectors()
    system.order()
    one.wait_healthy(PATIENCE_S)
    numbers = itertools.count()
    command = [sys.executable, "-m", "multicast", "send", *system.common()]
    command += ["--timeout", str(PATIENCE_S), "--history", str(tmp_path / "sent")]
    # Without tickets the collectors have most to write.
    env = {**os.environ, "AMCAST_TICKETS": "off"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=env) as sender:

        def send():
            number = next(numbers)
            sender.stdin.write(lines(50, seed=number, start=50 * number))
            sender.stdin.flush()

        def competed():
            send()
            return system.void() > 0

        # Test: kill an instance so many times, with -9, while messages come.
        for name in itertools.islice(itertools.cycle(one.names), kills):
            send()
            one.kill(name)
            one.start(name)
            send()
            until(lambda: one.status(name), f"{name} again", pause=0.05)  # noqa: B023
        until(competed, "a record of two instances of which one is void")
        sender.stdin.close()
        assert sender.wait(PATIENCE_S) == 0

    # Check: nothing lost, doubled or reordered.
    files = []
    for name in ("C1", "C2", "C3"):
        files.append(tmp_path / name)
        system.receive("-n", name, "--until-end", "--history", str(files[-1]))
    found = judge(system.plan, tmp_path / "sent", *files)
    assert not unheld(found, "replay")


def test_messages_of_plain_kafka_producers_are_ordered_like_others(running):
    # Test: a plain producer of one partition and of sets of two, and ours.
    values = [f"plain {number}" for number in range(20)]
    plain = KafkaProducer(bootstrap_servers=running.bootstrap)
    for value in values:
        plain.send(running.topic, f"{value} alone".encode(), partition=2).get(PATIENCE_S)
        plain.send(f"{running.topic}.groups", value.encode(), key=value.encode()).get(PATIENCE_S)
    plain.close()
    amcast("send", *running.common(), "--to", "P3", stdin="plain ours\n")

    # Check: all of them, in one order at consumers of different interests.
    found = [
        [one for one in running.receive("-n", name, "--until-end") if "plain" in one["payload"]]
        for name in ("C1", "C3")
    ]
    for received in found:
        payloads = [message["payload"] for message in received]
        alone = [f"{value} alone" for value in values]
        assert [payload for payload in payloads if "alone" in payload] == alone
        assert sorted(payloads) == sorted([*alone, *values, "plain ours"])
    first, third = [[message["message_id"] for message in received] for received in found]
    assert first == third


def test_what_cannot_be_covered_is_refused_with_the_command_that_mends_it(busy):
    with Producer(busy.bootstrap, topic=busy.topic) as producer:
        with pytest.raises(UndeclaredDestination, match=r"P1\+P5.*destinations"):
            producer.multicast(b"", to={"P1", "P5"})
        with pytest.raises(UsageError, match="P9 does not exist"):
            producer.multicast(b"", to={"P9"})
        with pytest.raises(UsageError, match="not a str"):
            producer.multicast(b"", to="P1")
    with pytest.raises(UncoveredInterest, match="topology plan"):
        Consumer(busy.bootstrap, topic=busy.topic, interest={"P1", "P5"})
    with pytest.raises(UncoveredInterest, match="C9"):
        Consumer(busy.bootstrap, topic=busy.topic, name="C9")


def test_a_bad_line_is_named_and_what_came_before_it_is_sent(running):
    good = json.dumps({"to": ["P2"], "payload": "good"})
    done = amcast("send", *running.common(), stdin=f"{good}\n{{oops\n")
    assert done.returncode == 2
    assert "standard input:2" in done.stderr
    assert "1 accepted" in done.stderr
    received = [message["payload"] for message in running.receive("-n", "C2", "--until-end")]
    assert received.count("good") == 1


def test_what_is_accepted_and_not_ordered_is_counted_and_in_the_history(
    system, tmp_path, monkeypatch
):
    monkeypatch.setenv("AMCAST_TICKETS", "off")  # so only a collector could order it
    history = tmp_path / "sent"
    words = ("--to", "P2", "--ordered", "--timeout", "10", "--history", str(history))
    done = amcast("send", *system.common(), *words, stdin="x\n")
    assert done.returncode == 4
    assert "sent 1: 1 accepted" in done.stderr
    assert "message P2:0 was accepted, but not ordered in time" in done.stderr
    assert '"P2:0"' in history.read_text()


def test_the_faust_command_hosts_the_same_collectors_and_answers(system):
    env = {
        **os.environ,
        "AMCAST_BOOTSTRAP": system.bootstrap,
        "AMCAST_TOPIC": system.topic,
        "AMCAST_WEB_PORT": "0",
    }
    command = [sys.executable, "-m", "faust", "-A", "collectors.app", "worker", "-l", "warn"]
    log = system.folder / "faust.log"
    with log.open("w") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out)
    try:
        amcast("send", *system.common(), "--to", "P2,P3,P4", "--ordered", stdin="x\n")
        assert [m["payload"] for m in system.receive("-n", "C3", "--until-end")] == ["x"]
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0, log.read_text()


def test_a_stopped_broker_is_one_sentence_and_exit_code_4():
    (port,) = free_ports(1)
    bootstrap = f"127.0.0.1:{port}"
    commands = (
        ["send", "--to", "P1", "--timeout", "5"],
        ["receive", "-n", "C1"],
        ["collectors", "status"],
        ["doctor", "-t", "A"],
        ["adopt", "orders"],
    )
    # Each waits long for an answer: all at once.
    with ThreadPoolExecutor() as beside:
        ended = beside.map(lambda words: amcast(*words, "-b", bootstrap, stdin="x\n"), commands)
        for done in ended:
            assert done.returncode == 4, done.stderr
            assert len(done.stderr.splitlines()) == 1, done.stderr
            assert bootstrap in done.stderr


def test_a_topic_without_a_plan_says_how_to_make_one(kafka_cluster):
    for verb in (["collectors", "status"], ["send", "--to", "P1"], ["receive", "-n", "C1"]):
        done = amcast(*verb, "-b", kafka_cluster.bootstrap, "-t", "nothing-here", stdin="x\n")
        assert done.returncode == 2, done.stderr
        assert "amcast topology apply" in done.stderr


def test_a_running_tree_that_stays_is_applied_without_a_new_epoch(busy, tmp_path):
    file, out = tmp_path / "interests.toml", tmp_path / "next.json"
    tables = "".join(
        f'[[consumer]]\nname = "{entry.name}"\ninterest = {json.dumps(entry.interest)}\n'
        for entry in busy.plan.consumers
    )
    file.write_text(
        f'topic = "{busy.topic}"\npartitions = {json.dumps(busy.plan.partitions)}\n'
        f'destinations = [["P1", "P3"], ["P2", "P3", "P4"]]\n{tables}'
    )
    done = amcast(
        "topology", "plan", str(file), "--from-cluster", "--window", "0.1", "--margin", "100",
        "--out", str(out), "-b", busy.bootstrap, "--detailed-exitcode",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the running tree stays" in done.stdout
    assert "nothing moves" in done.stdout
    assert Plan.parse(out.read_bytes()).epoch == 1
    applied = amcast("topology", "apply", str(out), "-b", busy.bootstrap, "-o", "json")
    assert applied.returncode == 0, applied.stderr
    assert json.loads(applied.stdout)["changed"] is False
