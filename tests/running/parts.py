"""Which tests are the campaign's: a file or a folder in `tests/parts.toml`, or a mark at the test.

`-m "not campaign"` does not even import the files that belong to the campaign whole. With
`AMCAST_CAMPAIGN=NAME`, `-m campaign` has only the tests of that part.
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
    names = [
        *TABLE["jvm"],
        *TABLE["long"],
        *(name for part in PARTS for name in (*part.files, *part.marked)),
    ]
    return [name for name in names if not (TESTS / name).exists()]


@functools.cache
def part_of(path: Path) -> Part | None:
    """Give the part to which the campaign's tests of a file belong: the one that names it best."""
    by_file = [part for part in PARTS if part.has_file(path)]
    return (by_file or [part for part in PARTS if part.has(path)] or [None])[0]


def is_left_out(path: Path, expression: str) -> bool:
    """Whether a run with this `-m` need not import a file, as no test of it can take part."""
    if not path.name.startswith("test_"):
        return False
    part, name = part_of(path), os.environ.get("AMCAST_CAMPAIGN")
    if "not campaign" in expression:
        return part is not None and part.has_file(path)
    return bool(name) and expression == "campaign" and (part is None or part.name != name)


def mark(items: list[pytest.Item]) -> None:
    """Mark what belongs to the campaign by its file."""
    name = os.environ.get("AMCAST_CAMPAIGN")
    assert not name or name in {part.name for part in PARTS}, f"the campaign has no part {name}"
    for item in items:
        part = part_of(item.path)
        if part is not None and part.has_file(item.path):
            item.add_marker(pytest.mark.campaign)


def out_of_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """Give the planted bugs that are hunted in another turn: with `AMCAST_TURN=NUMBER/TURNS`.

    Each bug has its turn once in as many numbers as there are turns.
    """
    turn = os.environ.get("AMCAST_TURN")
    if not turn:
        return []
    number, turns = map(int, turn.split("/"))
    hunts = [item for item in items if "planted_bug" in item.name]
    return [hunt for place, hunt in enumerate(hunts) if (place - number) % turns]


def sample(values: Iterable, *, of: int) -> list:
    """Give the parameters of a test: the first few for `make test`, the others for the campaign."""
    listed = list(values)
    others = [pytest.param(value, marks=pytest.mark.campaign) for value in listed[of:]]
    return [*listed[:of], *others]
