#!/usr/bin/env python3
"""Run parts of what is too long for every change, by turns, until the time is over.

    .ci/turn.py UNTIL_S  begin no part that would not end within UNTIL_S seconds from now
    .ci/turn.py --list   the parts, in the order in which this commit has them

A part is a row of PARTS, or a part of the campaign (tests/parts.toml). First comes the part whose
files, and all that they import, the change touched most; then the circle of all, in which the count
of HEAD's commits says where to begin. The change is what was committed in the six hours before
HEAD's last commit. A part begins if its budget of processor time fits into the time that is left,
as quick as this machine is. None is cut off.
"""

from __future__ import annotations

import ast
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHANGE_S = 6 * 3600
CORES = 2
# Processor seconds of the loop below on the machine on which the budgets were measured.
LOOP_S = 0.65
LOOP_TURNS = 20_000_000


@dataclass(frozen=True)
class Part:
    """What it runs, the processor time that this may need, and where its files begin."""

    name: str
    command: tuple[str, ...]
    budget_s: int
    roots: tuple[str, ...]
    needs: str = ""


PARTS = [
    Part("nemesis", ("make", "nemesis", "FAULTS=30"), 1200, ("bench/nemesis/cli.py",)),
    Part("cuts", ("make", "cuts"), 900, ()),
    Part("simulator", ("make", "simulate", "SCHEDULES=5000"), 1200, ("bench/simulat",)),
    Part("fuzz", ("make", "fuzz"), 200, ("bench/fuzz/__main__.py",)),
    Part("model", ("make", "model"), 400, ("bench/search/__main__.py", "spec/"), needs="spin"),
    Part("docs", ("make", "docs"), 200, ("docs/", "README.md")),
    Part("dist", ("make", "dist", "sbom", "audit"), 80, ("pyproject.toml", "requirements.lock")),
    Part("helm", ("make", "helm"), 400, ("collectors/deploy/",), needs="go"),
]


def campaign() -> list[Part]:
    """Give the parts of the campaign."""
    table = tomllib.loads((ROOT / "tests/parts.toml").read_text(encoding="utf-8"))["part"]
    return [
        Part(
            f"campaign {name}",
            ("make", "campaign", f"PART={name}"),
            part["budget_s"],
            tuple(f"tests/{file}" for file in (*part.get("files", ()), *part.get("marked", ()))),
        )
        for name, part in table.items()
        if not part.get("always")
    ]


def git(*words: str) -> str:
    """Ask git, in the project."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def changed() -> set[str]:
    """Give the files that the change touched."""
    since = int(git("log", "-1", "--format=%ct")) - CHANGE_S
    names = git("log", f"--since={since}", "--name-only", "--format=", "-m", "--first-parent")
    return set(names.split("\n")) - {""}


def imported(file: str) -> set[str]:
    """Give the project's files that a Python file imports."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    paths = (name.replace(".", "/") for name in names)
    return {
        path
        for name in paths
        for path in (f"{name}.py", f"{name}/__init__.py")
        if (ROOT / path).is_file()
    }


def reached(roots: tuple[str, ...], files: list[str]) -> set[str]:
    """Give the files under the roots, and what those in Python import, directly or not."""
    found: set[str] = set()
    todo = [file for file in files if file.startswith(roots)]
    while todo:
        file = todo.pop()
        if file not in found:
            found.add(file)
            if file.endswith(".py"):
                todo += imported(file)
    return found


def in_turn() -> list[Part]:
    """Give all parts: the one that the change touched most, then the others from their place on."""
    parts = campaign() + PARTS
    at = int(git("rev-list", "--count", "HEAD")) % len(parts)
    circle = parts[at:] + parts[:at]
    files, touched = git("ls-files").split("\n"), changed()

    def share(part: Part) -> float:
        near = reached(part.roots, files)
        return len(near & touched) / max(1, len(near))

    first = max(circle, key=share)
    return [first, *(part for part in circle if part is not first)]


def spent() -> float:
    """Give the processor time of all children so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def slowness() -> float:
    """Give how many times slower this machine is than that of the budgets."""
    begun = time.process_time()
    for _ in range(LOOP_TURNS):
        pass
    return max(1.0, (time.process_time() - begun) / LOOP_S)


def run_until(until_s: float) -> int:
    """Run the parts; give the exit code."""
    slow, deadline, failed, left = slowness(), time.monotonic() + until_s, [], []
    print(f"this machine takes {slow:.1f} times the budgets", flush=True)
    for part in in_turn():
        if part.needs and not shutil.which(part.needs):
            left.append(f"{part.name} (no {part.needs})")
        elif time.monotonic() + part.budget_s * slow / CORES > deadline:
            left.append(part.name)
        elif not run(part, slow):
            failed.append(part.name)
    print(f"not in this turn: {', '.join(left) or 'nothing'}")
    print(f"failed: {', '.join(failed) or 'nothing'}", flush=True)
    return 1 if failed else 0


def run(part: Part, slow: float) -> bool:
    """Run a part, and say what it used; whether it passed."""
    print(f"--- {part.name}: {' '.join(part.command)}", flush=True)
    begun, used = time.monotonic(), spent()
    code = subprocess.run(part.command, cwd=ROOT, check=False).returncode
    print(
        f"--- {part.name}: {'passed' if code == 0 else f'exit code {code}'}, "
        f"{time.monotonic() - begun:.0f} s, {spent() - used:.0f} s of processor time "
        f"of {part.budget_s * slow:.0f}",
        flush=True,
    )
    return code == 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(part.name for part in in_turn()))
    else:
        sys.exit(run_until(float(sys.argv[1])))
