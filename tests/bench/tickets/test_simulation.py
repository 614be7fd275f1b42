"""The ticket rule under random schedules, and the simulation itself on planted bugs."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bench.tickets.simulation import simulate

ROOT = Path(__file__).parents[3]
BUGS = tomllib.loads((Path(__file__).parent / "planted.toml").read_text())["bug"]
SEEDS = 400
VIOLATION = 3
READINGS = "tests/bench/test_ticket_rule.py::test_two_readings_of_version_2_agree_on_every_record"


def names(bug):
    return bug["name"].replace(" ", "-")


def planted(bug, folder):
    """Copy the source, and plant the bug into the copy."""
    tests = ["tests"] if "by" in bug else []
    for package in ("bench", "multicast", "collectors", "topology", *tests):
        ignored = shutil.ignore_patterns("__pycache__", "kafka_jars", "fabric")
        shutil.copytree(ROOT / package, folder / package, ignore=ignored)
    patched = folder / bug["file"]
    text = patched.read_text()
    assert text.count(bug["old"]) == 1
    patched.write_text(text.replace(bug["old"], bug["new"]))


def hunt(bug, folder, seeds=SEEDS):
    """Run schedules, or the independent reading of the rule, with the bug planted."""
    planted(bug, folder)
    command = [sys.executable, "-m", "bench.tickets", "simulate", "--schedules", str(seeds)]
    if "by" in bug:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", READINGS]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )


def test_no_schedule_violates_a_guarantee():
    totals = simulate(0, 60)
    assert totals.violation == ""
    assert totals.schedules == 60
    assert min(totals.faults.values()) > 10
    assert {"foreign", "frozen", "gap", "known"} <= set(totals.uncounted)
    assert totals.uncounted["false"] <= totals.faults["false checkpoint"]
    assert totals.restored > 0
    assert totals.removed > 0
    assert totals.checkpoints > totals.epochs
    assert totals.epochs > totals.schedules
    assert totals.corrections > 0
    assert totals.skips > 0


def test_one_seed_gives_one_run():
    assert simulate(3, 4) == simulate(3, 4)


@pytest.mark.parametrize("bug", BUGS, ids=names)
def test_a_patch_matches_its_file_once(bug):
    assert (ROOT / bug["file"]).read_text().count(bug["old"]) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "bug",
    [bug if "sample" in bug else pytest.param(bug, marks=pytest.mark.campaign) for bug in BUGS],
    ids=names,
)
def test_a_planted_bug_is_found(bug, tmp_path):
    done = hunt(bug, tmp_path, bug.get("seeds", SEEDS))
    assert done.returncode == (1 if "by" in bug else VIOLATION), done.stdout + done.stderr
    sys.stdout.write(f"{bug['name']}: {done.stdout}\n")
