"""The sizes of the rooms: lines of Python, and bytes of pages.

python -m tests.running.sizes     prints them beside their ceilings
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CEILINGS = "tests/ceilings.toml"
PAGES = "pages"  # a sum of bytes, not of lines


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
            _size(ROOT / name, what)
            for name in names
            if name in places or name.startswith(tuple(f"{place}/" for place in places))
        )
        for what, places in sums.items()
    }


def _size(file: Path, what: str) -> int:
    if what == PAGES:
        return file.stat().st_size if file.suffix == ".md" else 0
    return file.read_bytes().count(b"\n") if file.suffix == ".py" else 0


def line() -> str:
    """Say all sizes in a line."""
    most = ceilings()
    each = [f"{what} {size:,} of {most[what]:,}" for what, size in sizes().items()]
    return f"sizes: {', '.join(each)}"


if __name__ == "__main__":
    sys.stdout.write(f"{line()}\n")
