"""The nemesis itself: the violations that it finds, and that it leaves no process behind.

`make nemesis` runs it.
"""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from bench.nemesis import report
from bench.nemesis.network import obstacle
from bench.nemesis.run import InjectedFault, RunOutcome, judge
from bench.nemesis.schedule import Planned
from bench.nemesis.waits import FaultTime
from tests.helpers.plans import poster
from tests.helpers.system import amcast, until

# Where no namespaces can be made, the faults of the network are left out.
WHERE = [] if obstacle() is None else ["--loopback"]


def write(folder, name, lines):
    (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))


def produced(folder, calls):
    lines = [{"producer": "p1", "instance": "0", "ns": 1}]
    for number, (to, message_id) in enumerate(calls):
        lines.append({"begun": number, "to": to, "ns": 10 + number})
        accepted = {"call": number, "outcome": "accepted", "message_id": message_id}
        lines.append({**accepted, "ns": 20 + number})
    write(folder, "produce-p1.0.jsonl", [*lines, {"end": True, "ns": 99}])


def consumed(folder, name, delivered, pause_ns=1):
    interest = next(list(one.interest) for one in poster().consumers if one.name == name)
    who = {"consumer": name, "instance": "0"}
    lines = [{**who, "interest": interest, "from": "1/K1/0/0/0", "ns": 2}]
    for number, (to, message_id) in enumerate(delivered):
        delivery = {"sequence": number, "message_id": message_id, "to": to, "epoch": 1}
        lines.append({**who, **delivery, "ns": 50 + number * pause_ns})
    write(folder, f"consume-{name}.0.jsonl", [*lines, {**who, "end": True, "ns": 99}])


ONE, BOTH, TWO = (["P1"], "P1:0"), (["P1", "P3"], "P1+P3:0"), (["P3"], "P3:0")


# -- the judgement ----------------------------------------------------------------------------


def judged(folder):
    outcome = RunOutcome()
    judge(outcome, folder, [poster()], {("K1", "P3"): 2})
    return outcome


@pytest.mark.parametrize(
    ("guarantee", "second"),
    [
        (None, [BOTH, TWO]),
        ("validity", [TWO]),
        ("uniform prefix order", [TWO, BOTH]),
        ("uniform integrity", [BOTH, TWO, TWO]),
    ],
)
def test_what_was_lost_reordered_or_doubled_is_a_violation(tmp_path, guarantee, second):
    produced(tmp_path, [ONE, BOTH, TWO])
    consumed(tmp_path, "C1", [ONE, BOTH, TWO])
    consumed(tmp_path, "C2", second)
    outcome = judged(tmp_path)
    if guarantee is None:
        assert (outcome.violated, outcome.counts.accepted, outcome.counts.deliveries) == (
            False,
            3,
            5,
        )
        return
    assert outcome.violated
    assert guarantee in [verdict.guarantee for verdict in outcome.report.violations]
    document = report.document(outcome, seed=1, rate=2.0, folder="here", arguments=["--seed", "1"])
    assert document["totals"]["violations"] == len(outcome.report.violations) + len(
        outcome.findings
    )
    printed = io.StringIO()
    report.tell(document, Console(file=printed, width=200))
    assert re.search(rf"{guarantee} +violated\n    \S", printed.getvalue())


def test_a_message_that_waits_too_long_is_a_violation_and_its_kind_of_fault_shows_the_waits(
    tmp_path,
):
    produced(tmp_path, [ONE, BOTH, TWO])
    consumed(tmp_path, "C1", [ONE, BOTH, TWO], pause_ns=3 * 10**9)
    consumed(tmp_path, "C2", [BOTH, TWO])
    outcome = RunOutcome()
    refused = InjectedFault(Planned(0, 0.0, "bulk-refused", 1, 1.0, 1.0))
    refused.incident = FaultTime("bulk-refused", 5, 6, excused=False)
    outcome.injected.append(refused)
    judge(outcome, tmp_path, [poster()], {("K1", "P3"): 2})
    assert [finding.kind for finding in outcome.findings] == ["waited"] * 2
    assert outcome.violated
    printed = io.StringIO()
    document = report.document(outcome, seed=1, rate=2.0, folder=None, arguments=[])
    report.tell(document, Console(file=printed, width=200))
    assert re.search(r"bulk-refused .* 0 / 6000 / 6000", printed.getvalue())


# -- the command --------------------------------------------------------------------------------


def test_the_command_shows_what_a_seed_plans_and_refuses_what_it_does_not_know():
    shown = [amcast("bench", "nemesis", "--show", "--seed", "7").stdout for _ in range(2)]
    assert shown[0] == shown[1]
    assert len(shown[0].splitlines()) > 60
    done = amcast("bench", "nemesis", "--loopback", "--kinds", "collector-killed,meteor")
    assert (done.returncode, "there is no kind of fault meteor" in done.stderr) == (2, True)


def naming(text):
    """Return the processes whose command line contains a text."""
    names = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    names.append(int(entry.name))
            except OSError:
                pass
    return names


@pytest.mark.kafka
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_whatever_ends_a_run_nothing_of_it_goes_on(tmp_path, number):
    folder = tmp_path / "kept"
    flags = ["--faults", "50", "--kinds", "consumer-frozen", "--rate", "20", "--keep", str(folder)]
    command = [sys.executable, "-m", "multicast", "bench", "nemesis", *WHERE, *flags]
    with (tmp_path / "said").open("wb") as said:
        desk = subprocess.Popen(command, stdout=said, stderr=said)
    try:
        histories = folder / "consume-C1.0.jsonl"
        until(histories.exists, "the start of its clients")
        assert len(naming(str(folder))) > 5
        desk.send_signal(number)
        desk.wait(240)
    finally:
        desk.kill()
        desk.wait(30)
    until(lambda: not naming(str(folder)), "the end of all that it started")
