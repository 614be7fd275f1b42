"""The sizes of the rooms: lines of Python, and bytes of pages.

python -m tests.running.sizes     prints them beside their ceilings
"""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = "tests/ceilings.toml"


def ceilings() -> dict[str, int]:
    """Give the largest size that each sum may have."""
    return tomllib.loads((ROOT / CEILINGS).read_text(encoding="utf-8"))["most"]


def sizes() -> dict[str, int]:
    """Give the size of each sum that has a ceiling, of the files that git knows."""
    sums = tomllib.loads((ROOT / CEILINGS).read_text(encoding="utf-8"))["of"]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()]
    return {
        what: sum(
            _size(ROOT / name)
            for name in names
            if name in places or name.startswith(tuple(f"{place}/" for place in places))
        )
        for what, places in sums.items()
    }


def _size(file: Path) -> int:
    if file.suffix == ".py":
        return file.read_bytes().count(b"\n")
    return file.stat().st_size if file.suffix == ".md" else 0


def line() -> str:
    """Say all sizes in a line."""
    most = ceilings()
    return "sizes: " + ", ".join(
        f"{what} {size:,} of {most[what]:,}" for what, size in sizes().items()
    )


if __name__ == "__main__":
    print(line())
