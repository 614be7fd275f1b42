"""The suite: runs every workload that the targets and the report's plots need.

Each entry writes one file NAME.json into the folder. Existing documents are kept, so an interrupted
suite continues where it stopped. A failure is recorded as a document with its error, and the next
run repeats it.

    entry     a packaged workload with changed settings; its name is the one that `targets.py` uses
    quick     further changes, for a run of two minutes; it leaves out entries without any, and all
              small ones
    command   the command that repeats one entry
    small     a benchmark that is not a workload: a program of `bench/micro` that prints a document
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench.cli import read_workload
from bench.comparison.run import SCHEMA_VERSION, Brokers, measure, own_broker

_SIZES = {"100B": 100, "1kB": 1000, "10kB": 10_000, "100kB": 100_000, "1MB": 1_000_000}
_QUICK = ("pairs=2", "messages=100", "warm_up=20")  # two pairs: the fewest that show a spread
# Settings of entries that only the plots need: 3 pairs show a spread, and no target judges them.
_PLOTTED = ("pairs=3", "messages=300", "warm_up=50")
_TOPOLOGY_SIZES = (1, 2, 4, 8, 16, 32)
# The poster's data sets that this project measures: a name, messages, bytes of a message.
_DATA_SETS = (
    ("100x10kB", 100, 10_000),
    ("1000x10kB", 1000, 10_000),
    ("10000x10kB", 10_000, 10_000),
    ("100x100kB", 100, 100_000),
    ("1000x100kB", 1000, 100_000),
    ("100x1MB", 100, 1_000_000),
    ("100x10MB", 100, 10_000_000),
)
# The document's name, and the module that prints it; a quick run takes none.
SMALL = {"collector-cpu": "bench.micro.collector_cpu"}
# A small benchmark that hangs is ended after this time.
_SMALL_TIMEOUT_S = 1200.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One document of the suite; `changes` are settings as for `amcast bench run --set`."""

    name: str
    workload: str
    changes: tuple[str, ...] = ()
    quick: tuple[str, ...] | None = None

    def all_changes(self, *, quick: bool) -> tuple[str, ...]:
        """List the changes; for a quick run, also those of `quick`."""
        return (*self.changes, *(self.quick or ())) if quick else self.changes

    def command(self, *, quick: bool) -> str:
        """Return the command that repeats this entry."""
        words = ["amcast", "bench", "run", self.workload]
        for change in self.all_changes(quick=quick):
            words += ["--set", change]
        return shlex.join(words)


def _arms(*names: str) -> str:
    return f"arms={json.dumps(names)}"


def _latency() -> list[Entry]:
    entries = []
    arms = ("plain", "ordered", "ordered-plain")
    for size, many in (("100B", 4000), ("1kB", 4000), ("10kB", 3000)):
        sized = f"message_bytes={_SIZES[size]}"
        slow = ["algorithm1"] if size != "1kB" else []
        at_200 = (sized, "messages=500", "warm_up=50", _arms(*arms, *slow))
        quick = _QUICK if size == "100B" else None
        entries.append(Entry(f"latency-{size}-200", "one-small", at_200, quick))
        at_2000 = (sized, f"messages={many}", "warm_up=500", _arms(*arms))
        entries.append(Entry(f"latency-{size}-2000", "one-fast", at_2000))
    large = ("messages=40", "warm_up=5", _arms(*arms, "algorithm1"))
    return [*entries, Entry("latency-1MB-20", "one-large", large)]


def _tenth() -> list[Entry]:
    counts = {"100B": (100_000, 5000), "1kB": (50_000, 3000), "10kB": (5000, 300), "1MB": (30, 4)}
    return [
        Entry(
            f"tenth-{size}",
            "tenth",
            (f"message_bytes={_SIZES[size]}", f"messages={messages}", f"warm_up={warm_up}"),
            ("pairs=2", "messages=10000", "warm_up=1000") if size == "100B" else None,
        )
        for size, (messages, warm_up) in counts.items()
    ]


def _backlog() -> list[Entry]:
    counts = {"100B": 400_000, "1kB": 250_000, "10kB": 40_000, "100kB": 4000, "1MB": 400}
    return [
        Entry(
            f"backlog-{size}",
            "backlog",
            (f"message_bytes={_SIZES[size]}", f"messages={messages}", f"warm_up={messages // 4}"),
            ("pairs=2", "messages=20000", "warm_up=5000") if size == "1kB" else None,
        )
        for size, messages in counts.items()
    ]


def _against() -> list[Entry]:
    return [
        Entry(
            "algorithm1-saturate",
            "algorithm1-saturate",
            ("pairs=7", "messages=100000", "warm_up=20000"),
            ("pairs=2", "messages=10000", "warm_up=2000"),
        ),
        Entry(
            "algorithm1-backlog",
            "backlog",
            (
                "message_bytes=100",
                "messages=80000",
                "warm_up=20000",
                _arms("algorithm1", "ordered", "plain"),
            ),
        ),
        Entry("thirds", "thirds", ("messages=180000",), ("pairs=2", "messages=12000", "warm_up=0")),
    ]


def _topologies() -> list[Entry]:
    """Trees and bottlenecks, in growing sizes."""
    entries = [
        Entry(f"tree-{size}", "tree", (f"size={size}", "messages=500", "warm_up=50"), quick)
        for size, quick in ((2, _QUICK), (4, None))
    ]
    for size in _TOPOLOGY_SIZES:
        # Each collector on the path spends CPU on a message: 16 of them cannot order 200/s here.
        slow = ("load=20", "messages=40", "warm_up=10") if size >= 16 else ()
        changes = (f"size={size}", *_PLOTTED, *slow)
        two = _arms("plain", "ordered")
        if size not in (2, 4):
            entries.append(Entry(f"tree-{size}", "tree", (*changes, two)))
        quick = _QUICK if size == 2 else None
        entries.append(Entry(f"bottleneck-{size}", "bottleneck", changes, quick))
    return entries


def _poster() -> list[Entry]:
    return [
        Entry(
            f"poster-{name}",
            "poster",
            (f"messages={messages}", f"message_bytes={size}", f"warm_up={messages // 10}"),
            ("pairs=2",) if name == "100x10kB" else None,
        )
        for name, messages, size in _DATA_SETS
    ]


# Saturating workloads come first: they warm up the broker, whose Java code is compiled as it runs.
ENTRIES = (*_against(), *_latency(), *_tenth(), *_backlog(), *_topologies(), *_poster())


def chosen(only: Sequence[str], *, quick: bool) -> tuple[list[Entry], list[str]]:
    """Pick entries and small benchmarks by names or patterns; all if none is given."""
    names = [name for given in only for name in given.split(",")] or ["*"]

    def wanted(what: str) -> bool:
        return any(fnmatchcase(what, name) for name in names)

    entries = [entry for entry in ENTRIES if wanted(entry.name)]
    small = [name for name in SMALL if wanted(name)]
    if quick:
        entries = [entry for entry in entries if entry.quick is not None]
        small = []
    return entries, small


def run_suite(
    entries: Sequence[Entry],
    small: Sequence[str],
    folder: Path,
    *,
    quick: bool,
    progress: Callable[[str], None],
) -> list[str]:
    """Measure what has no document: small benchmarks, then entries on a new broker.

    Returns the names of failed ones. After a failure the next entry gets a new broker. Raises
    `AmcastError` if no broker starts.
    """
    failed = []
    names = [*small, *(entry.name for entry in entries)]
    by_name = {entry.name: entry for entry in entries}
    with ExitStack() as stack:
        brokers: Brokers | None = None
        for number, name in enumerate(names, start=1):
            file = folder / f"{name}.json"
            prefix = f"[{number}/{len(names)}] {name}"
            if is_there(file, quick=quick):
                progress(f"{prefix}: skipped, its document exists")
                continue
            began = time.monotonic()
            if name in SMALL:
                progress(f"{prefix}: python -m {SMALL[name]}")
                document = _printed(name)
            else:
                brokers = brokers or stack.enter_context(own_broker(progress))
                entry = by_name[name]
                document = _measured(entry, brokers, quick=quick, progress=progress, prefix=prefix)
            write(file, document)
            if "error" in document:
                progress(f"{prefix}: FAILED: {document['error']}")
                failed.append(name)
                stack.pop_all().close()
                brokers = None
            else:
                progress(f"{prefix}: done in {time.monotonic() - began:.0f} s")
    return failed


def _printed(name: str) -> dict[str, Any]:
    """Return the document that a module prints, or one with the error."""
    command = [sys.executable, "-m", SMALL[name], "-o", "json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMALL_TIMEOUT_S, check=True
        )
        document: dict[str, Any] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        last_line = str(error.stderr).strip().rpartition("\n")[2]
        wrong = f"the program ended with exit code {error.returncode}: {last_line}"
    except (subprocess.TimeoutExpired, OSError, ValueError) as error:
        wrong = f"{type(error).__name__}: {error}"
    else:
        return document
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": name,
        "command": f"python -m {SMALL[name]} -o json",
        "error": wrong,
    }


def _measured(
    entry: Entry, brokers: Brokers, *, quick: bool, progress: Callable[[str], None], prefix: str
) -> dict[str, Any]:
    """Return the document of an entry, or one with the error."""
    workload = read_workload(
        entry.workload, [f"name={entry.name}", *entry.all_changes(quick=quick)]
    )
    about = {"command": entry.command(quick=quick), "quick": quick}
    try:
        document = measure(workload, brokers, progress=lambda what: progress(f"{prefix}: {what}"))
    except Exception as error:  # noqa: BLE001 - the remaining entries are still measured
        return {
            "schema_version": SCHEMA_VERSION,
            **about,
            "workload": asdict(workload),
            "error": f"{type(error).__name__}: {error}",
        }
    return {**document, **about}


def is_there(file: Path, *, quick: bool) -> bool:
    """Whether the file holds a document without an error; a quick one does not serve a full run."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if not isinstance(document, dict) or "error" in document:
        return False
    return quick or not document.get("quick")


def write(file: Path, document: dict[str, Any]) -> None:
    """Write a document by a rename, so that a file under that name is always complete."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
