"""What an installation weighs: packages, size on disk, and how long imports take.

    python -m bench.micro.install [EXTRA ...]

Builds the wheel from a copy of the checkout, makes an empty environment, installs the wheel with
the extras there (pip fetches what it requires), and prints a table. An import's time is the median
of RUNS new processes, less the median of a process that imports nothing. Blocks for about a minute.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from multicast.errors import AmcastError, UsageError

ROOT = Path(__file__).resolve().parents[2]
RUNS = 15
TIMEOUT_S = 600
IMPORTS = (
    "import amcast",
    "from amcast import Consumer, Producer",
    "from amcast import aio",
    "import multicast",
)
NOT_COPIED = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__", "tests")


def _run(*command: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise AmcastError(f"{command[0]} failed in {folder}: {(done.stderr or done.stdout)[-500:]}")
    return done.stdout


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 1e6


def _seconds(python: Path, statement: str, folder: Path) -> float:
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        _run(python, "-c", statement, folder=folder)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(extras: list[str], folder: Path) -> list[str]:
    """Install into `folder` and return the lines of the table."""
    shutil.copytree(ROOT, folder / "source", ignore=NOT_COPIED)
    build = "from setuptools import build_meta; build_meta.build_wheel('..')"
    _run(sys.executable, "-c", build, folder=folder / "source")
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "environment", with_pip=False)
    python = folder / "environment" / "bin" / "python"
    wanted = f"{wheel}[{','.join(extras)}]" if extras else str(wheel)
    pip = (sys.executable, "-m", "pip", "--python", python)
    _run(*pip, "install", "--quiet", wanted, folder=folder)
    listed = json.loads(_run(*pip, "list", "--format", "json", folder=folder))
    others = [f"{p['name']} {p['version']}" for p in listed if p["name"] != "amcast"]
    (packages,) = (folder / "environment").glob("lib/python*/site-packages")
    nothing = _seconds(python, "pass", folder)
    return [
        f"wheel                {wheel.stat().st_size / 1e6:.2f} MB",
        f"packages required    {len(others)}: {', '.join(others)}",
        f"installed            {_megabytes(packages):.1f} MB, with compiled bytecode",
        *(
            f"{statement:<38} {_seconds(python, statement, folder) - nothing:.3f} s"
            for statement in IMPORTS
        ),
    ]


def main() -> None:
    """Print the table."""
    extras = sys.argv[1:]
    try:
        if any(not extra.isidentifier() for extra in extras):
            raise UsageError("give names of extras, such as: python -m bench.micro.install cli osn")
        with tempfile.TemporaryDirectory() as folder:
            lines = measure(extras, Path(folder))
    except AmcastError as error:
        sys.stderr.write(f"amcast: {error}\n")
        sys.exit(error.exit_code)
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
