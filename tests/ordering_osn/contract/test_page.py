"""docs/orderer-contract.md names only tests that exist, and has every row of the contract."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
PAGE = TESTS.parent / "docs" / "orderer-contract.md"
NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")

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
def names_in(file):
    """The names of a file's tests."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_contract_stands_on_the_page_once_and_names_a_test(row):
    (shown,) = [shown for name, _, shown in rows() if name == row]
    assert NAMED.search(shown)


def test_every_test_that_the_page_names_is_there():
    missing = [
        f"{name}: {file}::{test}"
        for name, _, shown in rows()
        for file, test in NAMED.findall(shown)
        if not (TESTS / file).exists() or test not in names_in(file)
    ]
    assert not missing, missing


def test_every_row_is_shown_or_is_said_to_be_without_a_test():
    assert [name for name, _, shown in rows() if not NAMED.search(shown)] == WITHOUT_A_TEST
    assert all(demanded and shown for _, demanded, shown in rows())


def test_a_test_that_bears_a_rows_name_is_named_on_the_page():
    """So that no test of a row is forgotten, or stands beside another row."""
    bears = re.compile(r"test_((?:(?:bc|d|k|s)\d+_)+)")
    named = {(file, test) for _, _, shown in rows() for file, test in NAMED.findall(shown)}
    shows = {name: set(NAMED.findall(shown)) for name, _, shown in rows()}
    wrong = []
    for path in sorted((TESTS / "ordering_osn").rglob("test_*.py")):
        for test in sorted(names_in(path.relative_to(TESTS).as_posix())):
            match = bears.match(test)
            here = (path.relative_to(TESTS).as_posix(), test)
            if match is not None:
                wrong += [here] if here not in named else []
                named_rows = match[1].strip("_").upper().split("_")
                wrong += [(row, here) for row in named_rows if here not in shows.get(row, {here})]
    assert not wrong, wrong
