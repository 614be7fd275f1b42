"""Bugs to plant into a copy of the source, one or two lines each, and the hunt for them.

The tests that must find a bug are named here, or in its entry. Each patch must match its file
exactly once.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
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


def planted_bugs(patches):
    """Give the bugs of a file of patches."""
    entries = tomllib.loads((Path(__file__).parent / patches).read_text())["bug"]
    return [PlantedBug(**entry) for entry in entries]


def bug_id(bug):
    return bug.name.replace(" ", "-")


def copied_source(folder):
    """Copy what the tests need into an empty folder."""
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


def hunt(bug, copy):
    """Plant a bug into the copy, fail unless a test finds it, and take it out again."""
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


OF_THE_RULE = planted_bugs("rule.toml")
AT_NODES = planted_bugs("nodes.toml")
AT_READERS = planted_bugs("readers.toml")
