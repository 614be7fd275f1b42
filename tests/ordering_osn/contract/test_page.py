"""docs/orderer-contract.md names tests that exist, and a test shows each row of the contract."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs" / "orderer-contract.md"
NAMED = re.compile(r"`(test_\w+)`")
BEARS = re.compile(r"test_((?:(?:bc|d|k|s)\d+_)+)")

ROWS = [
    *(f"BC{number}" for number in (1, 2, 3, 4, 5, 6, 7, 14, 17, 18)),
    *(f"D{number}" for number in range(1, 17) if number != 9),
    *(f"K{number}" for number in range(1, 36) if number not in (28, 29)),
    *(f"S{number}" for number in range(1, 10)),
    *(f"defect {number}" for number in range(1, 7)),
]
# Rows that no test can show, or none does; the page says why.
WITHOUT_A_TEST = ["500"]


@cache
def rows():
    """The page's tables: each row as (ID, requirement, tests that show it)."""
    table_rows = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and cells[0] != "row" and not cells[0].startswith("---"):
            assert len(cells) == 3, line
            table_rows.append(tuple(cells))
    return table_rows


@cache
def names_below(room):
    """The names of all tests of a folder below `tests`."""
    return {
        node.name
        for file in (TESTS / room).rglob("test_*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def rows_of(test):
    """The rows whose IDs a test bears in its name."""
    match = BEARS.match(test)
    return match[1].strip("_").upper().split("_") if match else []


@cache
def borne():
    """The rows that a test bears in its name."""
    return {row for test in names_below("ordering_osn") for row in rows_of(test)}


@pytest.mark.parametrize("row", ROWS)
def test_a_test_shows_each_row_of_the_contract(row):
    on_page = [shown for name, _, shown in rows() if name == row]
    assert len(on_page) <= 1
    if not on_page or on_page[0].startswith("by name"):
        assert row in borne()
    else:
        assert NAMED.search(on_page[0]) or on_page[0].removeprefix("as ") in ROWS


def test_every_test_that_the_page_names_is_there():
    named = {test for _, _, shown in rows() for test in NAMED.findall(shown)}
    assert not named - names_below(".")


def test_every_row_is_shown_or_is_said_to_be_without_a_test():
    shows = re.compile(r"`test_\w+`|by name|as \w+$")
    without = [name for name, _, shown in rows() if not shows.search(shown)]
    assert without == WITHOUT_A_TEST
    assert all(demanded and shown for _, demanded, shown in rows())


def test_a_row_that_a_test_bears_in_its_name_is_a_row_of_the_contract():
    assert not borne() - set(ROWS)
