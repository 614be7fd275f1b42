"""The commands of the how-to pages, run as they stand.

Each page has a list here with all of its commands in its order, so a command that a page gains or
changes must be run here, too. The page adopt is run by `tests/collectors/test_adopt.py`.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from multicast.local.broker import free_ports
from tests.helpers.system import PATIENCE_S, until
from tests.ordering_osn.helpers.configs import CRYPTO, FABRIC

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
COMMAND = re.compile(
    r"`((?:echo \w+ \| )?amcast [^`\n]+)`|^ *((?:echo \w+ \| )?amcast .+)$", re.MULTILINE
)
INTERESTS = """
topic = "{topic}"
partitions = ["P1", "P2", "P3"]
destinations = [["P1", "P2"]]

[[consumer]]
name = "C1"
interest = ["P1", "P2"]

[[consumer]]
name = "C2"
interest = {interest}
"""
CHANNEL = """
topic = "{topic}"
partitions = ["chain-a"]

[[consumer]]
name = "a"
interest = ["chain-a"]
"""
# Each page's commands in its order.
COMMANDS = {
    "deploy": [
        "amcast topology plan interests.toml --out plan.json",
        "amcast topology apply plan.json",
        "amcast collectors run",
        "amcast topology verify",
        "amcast doctor",
        "echo hello | amcast send --to P1 --ordered",
        "amcast generate",
        (
            "amcast generate systemd -b k1:9092,k2:9092 -t A --out /etc/systemd/system    "
            "# the same unit on each machine"
        ),
        (
            "amcast generate compose --out amcast-compose                                 "
            "# Containerfile, compose.yaml"
        ),
        "amcast generate helm -b k1:9092,k2:9092 -t A --image amcast:1.0 --out chart",
    ],
    "monitor": [
        "amcast doctor",
        "amcast collectors lag",
        "amcast collectors status",
        "amcast doctor",
        "amcast explain P1:17",
        "amcast receive --name C1 --history c1.jsonl",
        "amcast verify c1.jsonl",
        (
            "amcast generate prometheus-rules --out amcast-rules.yaml    "
            "# 24 alerts, each with its section in the runbook"
        ),
        (
            "amcast generate grafana --out amcast-dashboard.json         "
            "# import it: Dashboards, New, Import"
        ),
    ],
    "re-plan": [
        "amcast topology show --from-cluster",
        "amcast topology plan interests.toml --from-cluster --out next.json",
        "amcast topology apply next.json",
        "amcast topology history",
        "amcast doctor",
        "amcast topology apply next.json.rollback",
        "amcast topology rollback --to 1 --out back.json",
        "amcast topology apply back.json",
    ],
    "fail-over": [
        "amcast collectors run",
        "echo hello | amcast send --to P1 --ordered",
        "amcast collectors status",
        "amcast doctor",
        "amcast doctor",
        "amcast explain MESSAGE_ID",
        "amcast topology recover",
        "amcast receive --name C1 --exclusive    # as often as you like: one receives, and says so",
    ],
    "size": [
        "amcast topology plan interests.toml --from-cluster --window 60",
        "amcast topology plan interests.toml",
        "amcast topology apply",
        "amcast bench run WORKLOAD",
    ],
    "order-for-fabric": [
        "amcast collectors run",
        "amcast osn join --folder node1 --genesis-block chain-a.block",
        (
            "amcast osn run --folder node1 --msp MSP_FOLDER --msp-id OrdererMSP "
            "--listen 127.0.0.1:7050"
        ),
        "amcast osn inspect --folder node1",
    ],
}
ALERTS = int(re.search(r"# (\d+) alerts", "".join(COMMANDS["monitor"])).group(1))
ORDERER = CRYPTO / "ordererOrganizations/example.com/orderers/orderer.example.com"


def runs_commands(test):
    for mark in ("kafka", "slow", "campaign"):
        test = getattr(pytest.mark, mark)(test)
    return pytest.mark.timeout(1200)(test)


def commands(page):
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    return [block or inline for inline, block in COMMAND.findall(text)]


class Operator:
    """Somebody with a shell in a folder of its own."""

    def __init__(self, folder, bootstrap, interests=INTERESTS):
        self.folder = folder
        self.bootstrap = bootstrap
        self.interests = interests
        self.topic = f"A-{uuid.uuid4().hex[:8]}"
        self.stack = ExitStack()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "AMCAST_WEB_PORT": "0"}
        self.edit(["P2", "P3"])
        settings = f'bootstrap = "{bootstrap}"\ntopic = "{self.topic}"\n'
        (folder / "amcast.toml").write_text(settings)

    def edit(self, interest):
        text = self.interests.format(topic=self.topic, interest=str(interest).replace("'", '"'))
        (self.folder / "interests.toml").write_text(text)

    def runs(self, command, *codes):
        """Run a command to its end; it must end with one of the codes (0); give what it wrote."""
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.env, text=True, timeout=PATIENCE_S,
            capture_output=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode in (codes or (0,)), f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command):
        """Run a command until the block ends; it must end in order when it is asked to."""
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command.split(), cwd=self.folder, env=self.env, stdout=log, stderr=log
            )
        try:
            yield process
            process.send_signal(signal.SIGINT)
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait(PATIENCE_S)

    def log(self):
        """Give what the commands wrote that run until their block ends."""
        return (self.folder / "log").read_text(errors="replace")

    def starts(self, command):
        return self.stack.enter_context(self.running(command))


@pytest.fixture
def operator(kafka_cluster, tmp_path):
    someone = Operator(tmp_path, kafka_cluster.bootstrap)
    # A background job of a shell ignores Ctrl-C, and so would all that it starts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with someone.stack:
        yield someone
    signal.signal(signal.SIGINT, before)


def follows(page):
    return iter(COMMANDS[page])


def deploys(operator):
    step = follows("deploy")
    operator.runs(next(step))
    operator.runs(next(step))
    run = next(step)
    first, _ = operator.starts(run), operator.starts(run)
    operator.runs("amcast collectors status --wait healthy --timeout 60")
    for _ in range(3):
        operator.runs(next(step))
    operator.runs(next(step), 2)  # by itself it shows what it can write
    units = str(operator.folder / "units")  # not the machine's
    for command in step:
        operator.runs(command.replace("/etc/systemd/system", units))
    written = {file.name for file in operator.folder.glob("*/*")}
    assert {"compose.yaml", "Containerfile", "Chart.yaml"} <= written
    assert list((operator.folder / "units").iterdir())
    return run, first


def monitors(operator):
    step = follows("monitor")
    operator.runs("seq 20 | amcast send --to P1 --ordered")
    for _ in range(4):
        operator.runs(next(step))
    assert "P1:17" in operator.runs(next(step))
    history = operator.folder / "c1.jsonl"
    with operator.running(next(step)):
        until(lambda: history.exists() and history.read_text().count("\n") > 20, "a history")
    for command in step:
        operator.runs(command)
    rules = (operator.folder / "amcast-rules.yaml").read_text()
    assert rules.count("- alert:") == ALERTS
    assert (operator.folder / "amcast-dashboard.json").stat().st_size


def replans(operator):
    step = follows("re-plan")
    operator.runs(next(step))
    operator.edit(["P1", "P2", "P3"])
    for command in step:
        operator.runs(command)
    operator.runs("echo again | amcast send --to P1,P2 --ordered")


def fails_over(operator, run, first):
    step = follows("fail-over")
    assert next(step) == run
    first.kill()
    for command in step:
        ends = command.replace("--exclusive", "--exclusive --until-end")
        operator.runs(ends.replace("MESSAGE_ID", "P1:17"))


def sizes(operator):
    step = follows("size")
    by_rates, plan, _, bench = step  # the third one is named, for what it refuses
    operator.runs(by_rates.replace("--window 60", "--window 1"))
    assert "C1" in operator.runs(plan)
    small = "messages=40", "warm_up=10", "pairs=1", "load=100", '\'arms=["plain", "ordered"]\''
    workload = " --set ".join(("tenth", *small))
    assert "ordered / plain" in operator.runs(bench.replace("WORKLOAD", workload))


def orders_for_fabric(operator):
    _, join, run, inspect = follows("order-for-fabric")  # the plan of one channel has no collectors
    operator.runs("amcast topology plan interests.toml --out plan.json")
    operator.runs("amcast topology apply plan.json")
    shutil.copy(FABRIC / "chain-a.block", operator.folder)
    operator.runs(join)
    (port,) = free_ports(1)
    run = run.replace("MSP_FOLDER", str(ORDERER / "msp")).replace("7050", str(port))
    with operator.running(f"{run} --operations off"):
        until(lambda: f"127.0.0.1:{port}" in operator.log(), "a node that listens")
        assert "chain-a" in operator.runs(inspect)


def test_this_file_runs_the_commands_that_the_pages_have():
    found = {page.stem: commands(page.stem) for page in PAGES.glob("*.md")}
    assert {name: found[name] for name in found if found[name] and name != "adopt"} == COMMANDS


@runs_commands
def test_the_commands_of_the_pages_do_what_the_pages_say_one_after_the_other(operator):
    run, first = deploys(operator)
    monitors(operator)
    replans(operator)
    fails_over(operator, run, first)
    sizes(operator)
    # Nothing is lost on the way, and the order is right.
    operator.runs("amcast receive --name C1 --until-end --history all.jsonl")
    operator.runs("amcast verify all.jsonl")


@runs_commands
def test_a_node_of_the_ordering_service_runs_as_its_page_says(kafka_cluster, tmp_path):
    someone = Operator(tmp_path, kafka_cluster.bootstrap, CHANNEL)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        orders_for_fabric(someone)
    finally:
        signal.signal(signal.SIGINT, before)
