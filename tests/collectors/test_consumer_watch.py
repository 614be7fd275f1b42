"""What is seen of consumers by their commits alone: who moves, who stands, who never committed."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack

import pytest

from bench.harness.processes import end
from collectors.consumer_watch import ConsumerWatch
from collectors.deploy.files import DeploymentSettings, generate
from collectors.live.observer import Observer
from multicast import Consumer, Producer
from multicast.control import StatusPage, control_partition, log_partition
from multicast.drivers.memory.driver import MemoryDriver, MemoryLog
from multicast.messages import skip_header
from tests.helpers.plans import chain, poster
from tests.helpers.scraped import samples
from tests.helpers.small import Small, until
from tests.helpers.system import PATIENCE_S, System
from tests.helpers.system import until as system_until

PLAN = chain()
P1 = log_partition(PLAN.log("P1"))


@pytest.fixture
def system():
    with Small(PLAN) as made:
        made.run_all()
        yield made


@pytest.fixture
def watch(system):
    made = ConsumerWatch(system.driver, system.topic, lambda prefix: [f"{prefix}C1"])
    yield made
    made.close()


def send(system, count, to="P1"):
    with Producer(topic=system.topic, driver=system.driver) as producer:
        for _ in range(count):
            producer.multicast(b"x", to={to}).ordered(60)


def deliver(system, count):
    with Consumer(topic=system.topic, name="C1", driver=system.driver) as consumer:
        for number, _ in enumerate(consumer, 1):
            consumer.commit()
            if number == count:
                return


def rows(watch):
    watch.look()
    assert watch.error == ""
    return {row["consumer"]: row for row in watch.status()}


def test_a_consumer_that_stands_is_told_from_one_that_moves_and_one_that_never_commits(
    system, watch
):
    # Init: of five messages C1 has taken two.
    others = {entry.name for entry in PLAN.consumers} - {"C1"}
    assert set(rows(watch)) == others | {"C1"}
    assert all(row["never"] for row in rows(watch).values())
    send(system, 5)
    deliver(system, 2)

    # Test and check: it stands since its last commit, however often one looks.
    first, second = rows(watch)["C1"], rows(watch)["C1"]
    assert (first["never"], first["lag"], first["problem"]) == (False, 3, None)
    assert first["committed_at"] == second["committed_at"]
    assert 0 <= first["stands_seconds"] <= second["stands_seconds"]
    assert first["lag_seconds"] >= first["stands_seconds"]  # the message is older than the commit
    deliver(system, 1)
    after = rows(watch)["C1"]
    assert (after["lag"], after["committed_at"] >= first["committed_at"]) == (2, True)
    deliver(system, 2)
    done = rows(watch)["C1"]
    assert (done["lag"], done["lag_seconds"], done["stands_seconds"]) == (0, 0.0, 0.0)


def test_a_skip_at_the_end_is_no_message_that_waits_until_one_follows(system, watch):
    # Init.
    send(system, 1)
    deliver(system, 1)

    # Test and check.
    system.log.write(P1, b"", headers=(skip_header("P1"),))
    until(lambda: system.driver.last_stable_offsets([P1])[P1] == 2)
    assert (rows(watch)["C1"]["lag"], rows(watch)["C1"]["stands_seconds"]) == (0, 0.0)
    send(system, 1)
    assert rows(watch)["C1"]["lag"] == 1


def test_a_commit_that_is_no_cursor_is_a_problem_of_its_consumer(system, watch):
    system.driver.commit("amcast.A.C1", {control_partition("A"): (0, "7/K1/0/0/0")})
    assert "is not valid" in rows(watch)["C1"]["problem"]


def test_a_process_is_down_when_it_is_refused_or_misses_three_answers_in_a_row():
    # Init: a page that has answered.
    page = StatusPage("127.0.0.1", 1, b"1" * 8)
    answered = {page: {"nodes": []}}
    late = {page: "http://127.0.0.1:1/status cannot be read (timed out)"}
    refused = {page: f"it cannot be read ({os.strerror(errno.ECONNREFUSED)})"}
    observer = Observer(MemoryDriver(MemoryLog({})), "A")

    def pages_after(*answers):
        observer._missed = {}
        for each in answers:
            observer._pages = observer._without_slips(each)
        return observer._pages

    # Test and check.
    try:
        assert pages_after(answered, late, late) == answered
        assert pages_after(answered, late, late, late) == late
        assert pages_after(answered, late, answered, late, late) == answered
        assert pages_after(answered, refused) == refused
    finally:
        observer.close()


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_what_the_alert_reads_of_a_frozen_and_a_dead_consumer_passes_its_threshold(
    kafka_cluster, tmp_path
):
    # Init: three consumers have committed; then one is frozen, and one dies.
    rules = generate("prometheus-rules", DeploymentSettings(bootstrap="b:9092", topic="A"))
    reads = re.search(r"amcast_group_stands_seconds{\S+}\) > (\d+)", rules["amcast-rules.yaml"])
    threshold_s, names = float(reads[1]), ("C1", "C2", "C3")
    with System(kafka_cluster.bootstrap, poster(), tmp_path) as system, ExitStack() as stack:
        host = system.order()
        command = [sys.executable, "-m", "multicast", "receive", *system.common(), "--name"]
        receivers = [
            subprocess.Popen([*command, name, "--group", name], stdout=subprocess.DEVNULL)
            for name in names
        ]
        for process in receivers:
            stack.callback(end, process)
            stack.callback(process.kill)
        producer = stack.enter_context(Producer(topic=system.topic, driver=system.driver))

        def of_groups(metric):
            page = samples(host.page("/metrics").decode())
            return [page.get((f"amcast_group_{metric}", (name,)), 0.0) for name in names]

        producer.multicast(b"first", to={"P3"}).ordered(PATIENCE_S)
        system_until(lambda: all(of_groups("committed_timestamp_seconds")), "commits")
        receivers[0].send_signal(signal.SIGSTOP)
        receivers[1].kill()
        producer.multicast(b"second", to={"P3"}).ordered(PATIENCE_S)
        since = time.time()

        # Test and check: at the threshold by our clock, not before; the one that lives never.
        system_until(
            lambda: min(of_groups("stands_seconds")[:2]) > threshold_s, "alerts", pause=1.0
        )
        sys.stderr.write(f"{time.time() - since:.0f} s after the message\n")
        assert time.time() - since >= threshold_s - 1.0
        assert of_groups("stands_seconds")[2] < threshold_s
