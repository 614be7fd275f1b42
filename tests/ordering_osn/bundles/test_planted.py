"""Bugs planted into a copy of the source, one or two lines each: the tests named here find all.

`planted.toml` has the patches of the rule and of the core, `planted_at_nodes.toml` those of what a
node does with bundles. Each must match its file exactly once.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
COPIED = ("multicast", "topology", "ordering_osn", "bench", "tests", "pyproject.toml")
FINDERS = (
    "test_rule",
    "test_rule_properties",
    "test_bundle",
    "test_parts",
    "test_saved",
    "test_intake",
    "../chain/test_set_records",
    "../chain/test_restarts",
)


@dataclass(frozen=True)
class PlantedBug:
    name: str
    file: str
    old: str
    new: str
    also: tuple[str, str] | None = None
    by: tuple[str, ...] = FINDERS

    @property
    def patches(self):
        return [(self.old, self.new), *([tuple(self.also)] if self.also else [])]


BUGS = [
    PlantedBug(**entry)
    for patches in ("planted.toml", "planted_at_nodes.toml")
    for entry in tomllib.loads((HERE / patches).read_text())["bug"]
]
of_each_bug = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name.replace(" ", "-"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    ignored = shutil.ignore_patterns("__pycache__", "kafka_jars", "benchmarks")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


def failures(folder, *files):
    tests = [f"tests/ordering_osn/bundles/{name}.py" for name in files]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("FAILED")]


@pytest.mark.campaign
@pytest.mark.slow
@of_each_bug
def test_a_planted_bug_is_found(bug, copy):
    patched = copy / bug.file
    text = patched.read_text()
    try:
        planted = text
        for old, new in bug.patches:
            planted = planted.replace(old, new)
        patched.write_text(planted)
        found = next((each for name in bug.by if (each := failures(copy, name))), [])
    finally:
        patched.write_text(text)
    assert found, f"{bug.name!r} was not found"
    sys.stdout.write(f"{bug.name}: {found[0]}\n")


@of_each_bug
def test_a_patch_matches_its_file_once(bug):
    text = (ROOT / bug.file).read_text()
    for old, _ in bug.patches:
        assert text.count(old) == 1, old


def test_each_bug_has_one_name():
    assert len({bug.name for bug in BUGS}) == len(BUGS)
