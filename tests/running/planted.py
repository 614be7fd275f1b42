"""Bugs planted into a copy of the source, one or two lines each, which tests must find.

A table (TOML) names for each bug the symbol, by its qualified name ("Delivery.deliver"), and the
old and the new text. So a patch stays right when a file moves; one that fits nowhere, or twice, is
noticed. `also` has more patches of the same bug, each with its own symbol or that of the bug.
"""

import ast
import functools
import os
import shutil
import subprocess
import sys
import tomllib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("multicast", "collectors", "topology", "ordering_osn", "bench")
# All that name bugs, relative to the folder of the tests.
TABLES = [
    file.relative_to(ROOT / "tests").as_posix()
    for pattern in ("planted/*.toml", "planted.toml", "mends.toml")
    for file in sorted((ROOT / "tests").rglob(pattern))
]
# What compiled files are being written; those of pytest, in the tests, hold the path that they had.
_IGNORED = ["*.pyc.*", "kafka_jars", "benchmarks"]


@dataclass(frozen=True)
class Patch:
    symbol: str
    old: str
    new: str

    def place(self):
        """Give the file, and where in its text the patch begins; there must be one place."""
        places = [
            (file, offset)
            for file, text in sources().items()
            if self.old in text
            for offset in self._places_in(text)
        ]
        assert len(places) == 1, f"{self.old!r} in {self.symbol}: {len(places)} places"
        return places[0]

    def _places_in(self, text):
        for first, last in definitions(text).get(self.symbol, ()):
            if text.count(self.old, first, last) == 1:
                yield text.index(self.old, first, last)


@dataclass(frozen=True)
class Bug:
    name: str
    patches: tuple[Patch, ...]
    by: tuple[str, ...] = ()  # who must find it
    sample: bool = False  # in `make test`; the others are in the campaign
    seeds: int = 1500
    first_seed: int = 0
    scope: str = ""  # of the exhaustive search that must find it, too

    def __str__(self):
        return self.name.replace(" ", "-")


def bugs(table):
    """Read the bugs of a table; its path is relative to the folder of all tests."""
    return [_bug(**entry) for entry in tomllib.loads((ROOT / "tests" / table).read_text())["bug"]]


def _bug(name, symbol, old, new, *, also=(), by=(), **others):
    patches = [Patch(**{"symbol": symbol, **one}) for one in ({"old": old, "new": new}, *also)]
    return Bug(name, tuple(patches), tuple([by] if isinstance(by, str) else by), **others)


@functools.cache
def sources():
    return {
        str(file.relative_to(ROOT)): file.read_text()
        for room in ROOMS
        for file in (ROOT / room).rglob("*.py")
    }


@functools.cache
def definitions(text):
    """Give by qualified name where functions, classes and assignments stand in the text."""
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    found = {}

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            names = ()
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names = (child.name,)
                visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                names = [one.id for one in targets if isinstance(one, ast.Name)]
            for name in names:
                place = (begins[child.lineno - 1], begins[child.end_lineno])
                found.setdefault(prefix + name, []).append(place)

    visit(ast.parse(text), "")
    return found


def copied_source(folder):
    """Copy the rooms and the tests into an empty folder, with what is compiled of the rooms."""
    for name in (*ROOMS, "tests"):
        ignored = [*_IGNORED, "__pycache__"] if name == "tests" else _IGNORED
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*ignored))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@contextmanager
def planted(bug, copy):
    """Plant a bug into a copy of the source, and take it out again."""
    texts = {}
    try:
        for patch in bug.patches:
            name, offset = patch.place()
            text = (copy / name).read_text()
            texts.setdefault(name, text)
            # An earlier patch of the same file may have moved the place: then it is the only one.
            at = offset if text == sources()[name] else text.index(patch.old)
            (copy / name).write_text(text[:at] + patch.new + text[at + len(patch.old) :])
        yield
    finally:
        for name, text in texts.items():
            (copy / name).write_text(text)


def run(copy, *words, **environment):
    """Run Python in the copy; give what became of it.

    Threads may call this while pytest goes on and changes the one name that is left out.
    """
    ours = {name: os.environ[name] for name in os.environ if name != "PYTEST_CURRENT_TEST"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=copy,
        env={**ours, "PYTHONPATH": str(copy), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )


def hunt_by_tests(bug, copy, folder, by):
    """Run the files of tests, in this order, until one finds the bug; fail if none does."""
    words = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not kafka"]
    with planted(bug, copy):
        for name in bug.by or by:
            done = run(copy, *words, f"tests/{folder}/{name}.py")
            assert done.returncode in {0, 1}, done.stdout + done.stderr
            told = ("FAILED", "ERROR")  # the latter in a set-up that tests share
            failed = [line for line in done.stdout.splitlines() if line.startswith(told)]
            if failed:
                sys.stdout.write(f"{bug.name}: {failed[0]}\n")
                return
    raise AssertionError(f"{bug.name!r} was not found")
