"""Bugs planted into a copy of the source, one clause of the rule each: the tests find all."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HERE = "tests/multicast/conditional"
BUGS = tomllib.loads((ROOT / HERE / "planted.toml").read_text())["bug"]
COPIED = ("multicast", "topology", "collectors", "bench", "tests")


def patches(bug):
    return [bug, *bug.get("also", [])]


def names(bug):
    return bug["name"].replace(" ", "-")


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the source, in which one bug at a time is planted."""
    folder = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "kafka_jars", "fabric", "benchmarks")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", BUGS, ids=names)
def test_a_planted_bug_is_found(bug, copy):
    patched = copy / bug["file"]
    text = patched.read_text()
    planted = text
    for patch in patches(bug):
        planted = planted.replace(patch["old"], patch["new"])
    tests = [f"{HERE}/{name}.py" for name in bug.get("by", ["test_judge"])]
    try:
        patched.write_text(planted)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy)},
            capture_output=True,
            text=True,
            check=False,
            timeout=800,
        )
    finally:
        patched.write_text(text)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert done.returncode == 1, f"{bug['name']!r} was not found: {done.stdout}{done.stderr}"
    assert failed
    sys.stdout.write(f"{bug['name']}: {failed[0]}\n")


@pytest.mark.parametrize("bug", BUGS, ids=names)
def test_a_patch_matches_its_file_once(bug):
    text = (ROOT / bug["file"]).read_text()
    for patch in patches(bug):
        assert text.count(patch["old"]) == 1, patch["old"]


def test_each_bug_has_one_name():
    assert len({bug["name"] for bug in BUGS}) == len(BUGS)
