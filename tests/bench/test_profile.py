"""The profile of a workload: its sums, and one small run on a real broker."""

import json
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.cli import read_workload
from bench.comparison import profile as profiling
from bench.comparison.profile import Spent, main, table
from bench.harness.threads import Account

DOCS = Path(__file__).resolve().parents[2] / "docs"
ROLES = {"producers", "collectors", "consumers", "brokers"}


def arm(**pids):
    return SimpleNamespace(pids=pids)


def test_what_threads_of_one_name_spend_meanwhile_is_added_up_by_role(monkeypatch):
    costs = {
        1: [Account(1, "python", 1.0, 0.5), Account(2, "rdk:broker1", 2.0, 0.0)],
        2: [Account(3, "rdk:broker22", 0.0, 0.0)],
    }
    monkeypatch.setattr(profiling, "accounts", lambda pid: iter(costs[pid]))
    spent = Spent()
    with spent.counted(arm(brokers=[1], consumers=[2])):
        costs[1] = [Account(1, "python", 1.5, 0.5), Account(2, "rdk:broker1", 2.1, 0.2)]
        costs[2] = [Account(3, "rdk:broker22", 0.3, 0.1), Account(4, "rdk:broker5", 0.1, 0.0)]
    threads = spent.by_message(1000)
    assert list(threads) == ["consumers", "brokers"]
    assert threads["brokers"] == {
        "cpu": pytest.approx(600),
        "queued": pytest.approx(200),
        "threads": {
            "python": [pytest.approx(500), 0],
            "rdk:brokerN": [pytest.approx(100), pytest.approx(200)],
        },
    }
    # A thread that started meanwhile counts from 0.
    assert threads["consumers"]["threads"] == {
        "rdk:brokerN": [pytest.approx(400), pytest.approx(100)]
    }


def test_each_missed_mark_has_a_profile_whose_command_is_valid():
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    limits = text.partition("## What limits")[2].partition("\n## ")[0]
    commands = re.findall(r"^\| [^|`]+ \| [^|]+ \| `([^`]+)` \|$", limits, re.MULTILINE)
    assert len(commands) == 6
    for command in commands:
        workload, *options = shlex.split(command)
        assert set(options[::2]) == {"--set"}
        assert read_workload(workload, options[1::2]).pairs == 3


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.campaign
def test_a_small_run_tells_stages_processors_and_functions(capsys):
    arguments = ["one-small", "--set", "messages=60", "--set", "warm_up=10", "--set", "pairs=1"]
    if os.geteuid() == 0:  # py-spy looks into other processes
        arguments.append("--functions")
    assert main([*arguments, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    plain, ordered = document["figures"]["plain"], document["figures"]["ordered"]
    assert set(plain["us_a_message"]) == ROLES - {"collectors"}
    assert set(ordered["us_a_message"]) == ROLES
    assert list(plain["stages_ms"]) == ["sent", "accepted", "delivered"]
    assert list(ordered["stages_ms"]) == ["sent", "accepted", "ordered", "delivered"]
    for found in (plain, ordered):
        assert 0 < found["stages_ms"]["sent"]["p50"] <= found["stages_ms"]["accepted"]["p50"]
        assert 0 < found["busy_cores"] <= os.cpu_count() + 0.1
        for role, spent in found["us_a_message"].items():
            assert spent["cpu"] > 0, role
    if "--functions" in arguments:
        shares = ordered["functions"]["collectors"]
        assert 0 < sum(shares.values()) <= 1.01
    text = "\n".join(table(document["figures"]))
    assert "ordered: " in text
    assert "collectors" in text
