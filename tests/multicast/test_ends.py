"""When a consumer has read everything: over epochs, sets and interests that later plans added.

The cores decide it on the in-memory log; the last tests check the commands on a real broker.
"""

import contextlib
import json
import os
import subprocess
import sys

import pytest

from multicast.control import log_partition
from multicast.history import HistoryBuilder
from multicast.properties import check_all
from multicast.subscription import End, logs_wanted, missing
from multicast.verification.audit import AuditCollector
from tests.helpers.stage import ALL, Stage
from tests.helpers.system import PATIENCE_S, amcast

LOGS = ["P1", "P2"]
SET = ["P1", "P2", "P1+P2"]
C1 = {"C1": (("P1", "P2"), "K1")}


def end_of(stage):
    state = stage.control()
    positions = {log.name: stage.end(log_partition(log)) for log in logs_wanted(state, None)}
    return End(state.epoch, state.begun_epoch, positions)


def waits_for(stage, consumer, end):
    return missing(stage.control(), consumer.wanted, consumer.delivery, end)


def order(stage):
    """Let the newest epoch's collectors order all there is."""
    plan = stage.control().plan()
    names = [f"{node.name}.{plan.epoch}" for node in plan.collectors]
    for name in names:
        if name not in stage.nodes:
            stage.node(name, epoch=stage.control().first_epoch(plan.epoch, name.split(".")[0]))
    stage.settle(*names)


def replanned(stage, logs, bag, consumers, *, finished=True):
    """Plan the next epoch with one collector, and (unless it stops half-way) end the one before."""
    order(stage)
    old = [name for name in stage.nodes if name.endswith(f".{stage.control().epoch}")]
    collectors = {"K1": (bag, None)} if bag else {}
    stage.plan(logs, collectors, consumers, streams={"K1": stage.control().epoch})
    if finished:
        finish(stage, old)


def finish(stage, old):
    stage.mark()
    stage.settle(*old)
    assert stage.finish() is not None


def test_the_end_has_a_set_that_a_later_epoch_added():
    stage = Stage()
    stage.plan(LOGS, {"K1": (LOGS, None)}, C1)
    first = stage.multicast("P1")
    replanned(stage, SET, SET, C1)
    second = stage.multicast("P1+P2")
    end = end_of(stage)
    consumer = stage.consumer("C1")
    assert "log P1 is ordered up to" in waits_for(stage, consumer, end)
    consumer.read_order()
    consumer.read_payloads()
    assert consumer.deliver() == [first]
    assert "epoch 1 is not delivered to its end" in waits_for(stage, consumer, end)
    consumer.drink()
    assert "log P1+P2 is ordered up to 0 of 1" in waits_for(stage, consumer, end)
    order(stage)
    consumer.drink()
    assert waits_for(stage, consumer, end) is None
    assert consumer.delivered == [first, second]


def test_the_end_follows_an_interest_through_any_number_of_epochs():
    # The consumer reads a single log, then a stream, then a wider one, then a single log again.
    stage = Stage()
    steps = [
        (LOGS, [], {"C1": (("P1",), None)}, "P1"),
        (SET, SET, C1, "P1+P2"),
        (SET, SET, C1, "P2"),
        (
            [*SET, "P3"],
            [*SET, "P3"],
            {"C1": (("P1", "P2", "P3"), "K1"), "C2": (("P1", "P3"), "K1")},
            "P3",
        ),
        ([*SET, "P3"], [], {"C1": (("P3",), None)}, "P3"),
    ]
    logs, _, consumers, to = steps[0]
    stage.plan(logs, {}, consumers)
    sent = [stage.multicast(to)]
    for logs, bag, consumers, to in steps[1:]:
        replanned(stage, logs, bag, consumers)
        sent.append(stage.multicast(to))
    end = end_of(stage)
    consumer = stage.consumer("C1")
    assert waits_for(stage, consumer, end) is not None
    order(stage)
    consumer.drink()
    assert waits_for(stage, consumer, end) is None
    assert consumer.delivered == sent
    assert consumer.delivery.plan.epoch == len(steps)


def test_the_end_waits_for_a_change_that_is_under_way_only_if_messages_depend_on_it():
    stage = Stage()
    stage.plan(LOGS, {"K1": (LOGS, None)}, C1)
    first = stage.multicast("P1")
    replanned(stage, SET, SET, C1, finished=False)
    consumer = stage.consumer("C1")
    consumer.drink()
    # Test: a producer that knows the plan already sends to the new set; nobody has begun it.
    before = end_of(stage)
    second = stage.multicast("P1+P2")
    after = end_of(stage)
    assert waits_for(stage, consumer, before) is None
    assert "epoch 2 has not begun" in waits_for(stage, consumer, after)
    finish(stage, ["K1.1"])
    order(stage)
    consumer.drink()
    assert waits_for(stage, consumer, after) is None
    assert consumer.delivered == [first, second]


def test_the_end_of_a_lone_reader_waits_at_the_marker_of_a_change_that_is_under_way():
    stage = Stage()
    stage.plan(LOGS, {}, {"C1": (("P1",), None)})
    replanned(stage, LOGS, LOGS, C1, finished=False)
    stage.mark()
    second = stage.multicast("P1")
    consumer = stage.consumer("C1")
    consumer.drink()
    end = end_of(stage)
    assert "epoch 2 has not begun" in waits_for(stage, consumer, end)
    stage.finish()
    order(stage)
    consumer.drink()
    assert waits_for(stage, consumer, end) is None
    assert consumer.delivered == [second]


def audit_of(stage, audit, *names):
    """Read with every consumer up to the audit's end, and check the audit's history."""
    for name in names:
        consumer = stage.consumer(name)
        audit.begins(name, consumer.wanted, consumer.delivery.position.epoch)
        while waits_for(stage, consumer, audit.end) is not None:
            consumer.read_order()
            consumer.read_payloads()
            batches = consumer.delivery.deliver(ALL)
            for batch in batches:
                audit.delivered(name, "1", batch)
            assert batches or consumer.turn_epoch() or waits_for(stage, consumer, audit.end) is None
        audit.ended(name, "1")
    state = stage.control()
    for log in state.plan(audit.end.epoch).logs:
        fetched = stage.log.read(log_partition(log), 0, ALL)
        audit.logged(state, log, fetched.records if fetched else ())
    report = check_all(audit.history(state))
    assert not report.violations, [str(verdict.witness) for verdict in report.violations]
    return report


def test_an_audit_owes_nobody_what_its_interest_had_not_yet_or_came_after_the_end():
    stage = Stage()
    both = {**C1, "C2": (("P2",), None)}
    stage.plan(LOGS, {"K1": (LOGS, None)}, both)
    for to in ("P1", "P2", "P1"):
        stage.multicast(to)
    replanned(stage, LOGS, LOGS, {**C1, "C2": (("P1", "P2"), "K1")})
    stage.multicast("P1")
    audit = AuditCollector(end_of(stage))
    stage.multicast("P1")
    order(stage)
    report = audit_of(stage, audit, "C1", "C2")
    assert report.deliveries == 4 + 2
    assert {verdict.guarantee for verdict in report.verdicts if verdict.verdict == "holds"} > {
        "validity",
        "uniform agreement",
        "uniform integrity",
    }


def test_an_audit_misses_what_a_grown_interest_should_have_delivered():
    stage = Stage()
    stage.plan(LOGS, {"K1": (LOGS, None)}, {**C1, "C2": (("P2",), None)})
    stage.multicast("P1")
    replanned(stage, LOGS, LOGS, {**C1, "C2": (("P1", "P2"), "K1")})
    lost = stage.multicast("P1")
    order(stage)
    audit = AuditCollector(end_of(stage))
    consumer = stage.consumer("C2")
    audit.begins("C2", consumer.wanted, 1)
    audit.ended("C2", "1")
    state = stage.control()
    audit.logged(
        state,
        state.plan().log("P1"),
        stage.log.read(log_partition(state.plan().log("P1")), 0, ALL).records,
    )
    (validity,) = check_all(audit.history(state)).violations
    assert f"{lost} was multicast to P1 and acknowledged, but C2" in str(validity.witness)


def test_an_interest_that_a_history_gives_for_each_epoch_is_judged_in_each():
    def judged(*, lacks=()):
        builder = HistoryBuilder()
        builder.interest(consumer="C1", interest=["P1"])
        builder.interest(consumer="C1", interest=["P1", "P2"], epoch=2)
        builder.interest(consumer="C2", interest=["P2"], epoch=2)
        for name, to, epoch in (("P2:0", "P2", 1), ("P1:0", "P1", 1), ("P2:1", "P2", 2)):
            for consumer, wanted in (("C1", {1: "P1", 2: "P1P2"}), ("C2", {1: "", 2: "P2"})):
                if to in wanted[epoch] and name not in lacks:
                    builder.delivery(consumer=consumer, message_id=name, to=[to], epoch=epoch)
            builder.acknowledgement(
                producer="p", message_id=name, to=[to], outcome="accepted", epoch=epoch
            )
        builder.end(consumer="C1")
        builder.end(consumer="C2")
        return [str(verdict.witness) for verdict in check_all(builder.history()).violations]

    assert judged() == []
    assert any("P2:1 was multicast to P2" in witness for witness in judged(lacks=["P2:1"]))


# -- the commands, on a real broker ---------------------------------------------------------------

INTERESTS = """
topic = "{topic}"
partitions = {partitions}
destinations = {sets}
[[consumer]]
name = "C1"
interest = {first}
[[consumer]]
name = "C2"
interest = ["P1", "P2"]
"""
EPOCHS = [
    ((["P1", "P2"], [], ["P1"]), "P1"),
    ((["P1", "P2"], [["P1", "P2"]], ["P1", "P2"]), "P1,P2"),
    ((["P1", "P2", "P3"], [["P1", "P2"], ["P2", "P3"]], ["P1", "P2", "P3"]), "P2,P3"),
]


@contextlib.contextmanager
def collecting(environment):
    command = [sys.executable, "-m", "multicast", "collectors", "run", "--web-port", "0"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_until_end_and_verify_span_sets_interests_and_partitions_of_later_epochs(
    kafka_cluster, tmp_path
):
    topic = f"ends{os.getpid()}"
    environment = {
        **os.environ,
        "AMCAST_BOOTSTRAP": kafka_cluster.bootstrap,
        "AMCAST_TOPIC": topic,
    }

    def run(*arguments, stdin=None):
        done = amcast(*arguments, env=environment, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout

    # Init: three epochs, each with a message for what it added.
    with contextlib.ExitStack() as stack:
        for number, ((partitions, sets, first), to) in enumerate(EPOCHS, 1):
            file, plan = tmp_path / f"{number}.toml", tmp_path / f"{number}.json"
            file.write_text(
                INTERESTS.format(
                    topic=topic,
                    partitions=json.dumps(partitions),
                    sets=json.dumps(sets),
                    first=json.dumps(first),
                )
            )
            flags = ["--from-cluster", "--window", "0.1"] if number > 1 else []
            run("topology", "plan", str(file), *flags, "--out", str(plan))
            run(
                "topology",
                "apply",
                str(plan),
                "--timeout",
                str(PATIENCE_S),
                *(GROWS if number == 3 else ()),
            )
            if number == 1:
                stack.enter_context(collecting(environment))
                run("send", "--to", "P2", "--history", str(tmp_path / "s"), stdin="early\n")
            sent = ["--ordered", "--history", str(tmp_path / "s"), "--timeout", str(PATIENCE_S)]
            run("send", "--to", to, *sent, stdin=f"{to}\n")

        # Test: what each of the commands takes for the end.
        for name, expected in (
            ("C1", ["P1", "P1,P2", "P2,P3"]),
            ("C2", ["P1", "P1,P2", "P2,P3", "early"]),
        ):
            read = ["-n", name, "--until-end", "--timeout", str(PATIENCE_S)]
            lines = run("receive", *read, "--history", str(tmp_path / name)).splitlines()
            assert sorted(json.loads(line)["payload"] for line in lines) == sorted(expected)
        assert "violated: 0" in run("verify", "--name", "C1", "--name", "C2", "-i", "P2")
        files = [str(tmp_path / name) for name in ("s", "C1", "C2")]
        assert "violated: 0" in run("verify", *files)


GROWS = ("--add-partitions",)
