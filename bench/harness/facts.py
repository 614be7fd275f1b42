"""What a result is worth nothing without: the machine, the versions, the state of the source."""

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
    """Return `machine` and `source` as they were at the first call: call it before measuring."""
    return {"machine": machine(), "source": source()}


def machine() -> dict[str, Any]:
    """Describe the machine, without its name."""
    return {
        "cpus": os.cpu_count(),
        "cpu_model": _entry("/proc/cpuinfo", "model name"),
        "memory": _entry("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "load_average_before": [round(one, 2) for one in os.getloadavg()],
    }


def versions(kafka: str) -> dict[str, str]:
    """Name the versions of all that takes part; `kafka` is the brokers'."""
    found = {"python": platform.python_version(), "kafka": kafka}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def source() -> dict[str, Any]:
    """Name the commit, and whether files differ from it; both None outside of a repository."""
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
