"""Bugs planted into a copy of the source, one line each: the simulator must find every one.

`planted/*.toml` has the patches. A patch must match its file exactly once, so that no switch for
tests lives in a core, and so that a patch that no longer fits is noticed.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("multicast", "collectors", "topology", "bench")
SEEDS = 400
VIOLATION = 3
READINGS = "tests/bench/test_ticket_rule.py::test_two_readings_of_version_2_agree_on_every_record"


@dataclass(frozen=True)
class Bug:
    name: str
    file: str
    old: str
    new: str
    seeds: int = SEEDS
    by: str = "simulator"
    scope: str = ""  # in which the exhaustive search must find it, too
    sample: bool = False  # `make test` has these, the campaign all


@dataclass(frozen=True)
class Hunt:
    succeeded: bool
    report: str


BUGS = [
    Bug(**entry)
    for file in sorted((Path(__file__).parent / "planted").glob("*.toml"))
    for entry in tomllib.loads(file.read_text())["bug"]
]


def plant(bug: Bug, folder: Path) -> None:
    for package in (*PACKAGES, *(["tests"] if bug.by == "readings" else [])):
        shutil.copytree(
            ROOT / package,
            folder / package,
            ignore=shutil.ignore_patterns("__pycache__", "kafka_jars", "fabric"),
        )
    patched = folder / bug.file
    text = patched.read_text()
    assert text.count(bug.old) == 1, f"the patch {bug.name!r} must match {bug.file} once"
    patched.write_text(text.replace(bug.old, bug.new))


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )


def hunt(bug: Bug, folder: Path) -> Hunt:
    """Run the bug's number of schedules, up to the first violation, or what must find it else."""
    plant(bug, folder)
    if bug.by == "readings":
        done = run(folder, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", READINGS)
        return Hunt(done.returncode == 1, done.stdout + done.stderr)
    done = run(folder, "-m", "bench.simulator", "--schedules", str(bug.seeds), "--no-shrink")
    assert done.returncode in (0, VIOLATION), done.stderr
    violated = re.search(r"violated: .*\n.*\nto repeat.*", done.stdout)
    return Hunt(done.returncode == VIOLATION, violated[0] if violated else done.stdout)


@pytest.fixture(scope="module")
def hunts(tmp_path_factory, request):
    """All selected hunts, two at a time: each bug's future by its name."""
    wanted = {
        item.callspec.params["bug"].name
        for item in request.session.items
        if item.module is request.module and item.originalname == "test_planted_bug_is_found"
    }
    with ThreadPoolExecutor(2) as pool:
        yield {
            bug.name: pool.submit(hunt, bug, tmp_path_factory.mktemp("planted"))
            for bug in BUGS
            if bug.name in wanted
        }


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "bug",
    [bug if bug.sample else pytest.param(bug, marks=pytest.mark.campaign) for bug in BUGS],
    ids=lambda bug: bug.name.replace(" ", "-"),
)
def test_planted_bug_is_found(bug, hunts):
    outcome = hunts[bug.name].result()
    assert outcome.succeeded, (
        f"{bug.name!r} was not found within {bug.seeds} seeds: {outcome.report}"
    )
    sys.stdout.write(f"{bug.name}: {outcome.report}\n")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))
def test_a_patch_matches_its_file_once(bug):
    assert (ROOT / bug.file).read_text().count(bug.old) == 1


def test_there_are_enough_planted_bugs_and_each_has_one_name():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 15
