"""Which tests are the campaign's: a file or a folder in `tests/parts.toml`, or a mark at the test.

`-m "not campaign"` does not even import the files that belong to the campaign whole. With
`AMCAST_CAMPAIGN=NAME` only the tests of that part take part; with `NAME:K/N` of these every N-th
file, from the K-th on (counted from 0).
"""

from __future__ import annotations

import functools
import os
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = tomllib.loads((TESTS / "parts.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Part:
    """Files that are the campaign's whole, and where else tests that bear the mark are its own."""

    name: str
    files: tuple[str, ...] = ()
    marked: tuple[str, ...] = ()

    def has_file(self, path: Path) -> bool:
        return any(path.is_relative_to(TESTS / file) for file in self.files)

    def has(self, path: Path) -> bool:
        return self.has_file(path) or any(path.is_relative_to(TESTS / at) for at in self.marked)


PARTS = [
    Part(name, tuple(row.get("files", ())), tuple(row.get("marked", ())))
    for name, row in TABLE["part"].items()
]


def named_in_vain() -> list[str]:
    """Give what the table names and what is not there."""
    names = [*TABLE["jvm"], *(name for part in PARTS for name in (*part.files, *part.marked))]
    return [name for name in names if not (TESTS / name).exists()]


@functools.cache
def part_of(path: Path) -> Part | None:
    """Give the part to which the campaign's tests of a file belong: the one that names it best."""
    by_file = [part for part in PARTS if part.has_file(path)]
    return (by_file or [part for part in PARTS if part.has(path)] or [None])[0]


def is_left_out(path: Path, expression: str) -> bool:
    """Whether a run with this `-m` need not import a file, as no test of it can take part."""
    part = part_of(path) if path.suffix == ".py" else None
    if "not campaign" in expression:
        return part is not None and part.has_file(path)
    name = os.environ.get("AMCAST_CAMPAIGN", "").partition(":")[0]
    return bool(name) and expression == "campaign" and path.name.startswith("test_") and (
        part is None or part.name != name
    )  # fmt: skip


def mark(items: list[pytest.Item]) -> None:
    """Mark what belongs to the campaign by its file, and drop what the run's share leaves out."""
    for item in items:
        part = part_of(item.path)
        if part is not None and part.has_file(item.path):
            item.add_marker(pytest.mark.campaign)
    name, _, share = os.environ.get("AMCAST_CAMPAIGN", "").partition(":")
    assert not name or name in {part.name for part in PARTS}, f"no part {name} of the campaign"
    if share:
        first, step = (int(number) for number in share.split("/"))
        files = sorted({item.path for item in items})
        kept = {file for number, file in enumerate(files) if number % step == first}
        items[:] = [item for item in items if item.path in kept]


def sample(values: Iterable, *, of: int) -> list:
    """Give the parameters of a test: the first few for `make test`, the others for the campaign."""
    listed = list(values)
    others = [pytest.param(value, marks=pytest.mark.campaign) for value in listed[of:]]
    return [*listed[:of], *others]
