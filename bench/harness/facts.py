"""Facts that every result records: the machine, the versions, the state of the source."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_PACKAGES = (
    "amcast",
    "confluent-kafka",
    "kafka-python",
    "crc32c",
    "hdrhistogram",
    "grpcio",
    "protobuf",
    "cryptography",
)


@cache
def at_start() -> Mapping[str, Any]:
    """Return `machine` and `source` as of the first call; so call it before measuring."""
    return {"machine": machine(), "source": source()}


def machine() -> dict[str, Any]:
    """Describe the machine, without its host name."""
    return {
        "cpus": os.cpu_count(),
        "cpu_model": _entry("/proc/cpuinfo", "model name"),
        "memory": _entry("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
    }


def versions(kafka: str) -> dict[str, str]:
    """Return the versions of all programs and packages; `kafka` is the brokers' version."""
    by_program = {"python": platform.python_version(), "kafka": kafka}
    for package in _PACKAGES:
        try:
            by_program[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            by_program[package] = "absent"
    return by_program


def source() -> dict[str, Any]:
    """Return the commit, and whether files differ from it; both None outside a repository."""
    commit = _git("rev-parse", "HEAD")
    changes = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _git(*arguments: str) -> str | None:
    program = shutil.which("git")
    if program is None:
        return None
    folder = Path(__file__).resolve().parent
    done = subprocess.run(
        [program, "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=10,
    )
    return done.stdout.strip() if done.returncode == 0 else None


def _entry(file: str, name: str) -> str | None:
    try:
        lines = Path(file).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)
