"""docs/source-rows.md: each row has an answer, and each test that it names exists."""

import re

from tests.ordering_osn.contract.test_page import names_below
from tests.system.test_docs import ROOT

PAGE = ROOT / "docs" / "source-rows.md"
ROW = re.compile(r"^\| (\d\.\d+) \| (.+?) \| (.*?) \| (.*?) \|$", re.MULTILINE)
TEST = re.compile(r"`(?:(test_\w+)|([\w/]+\.py))`")
CHAPTERS = {3: 20, 4: 30}  # rows of each chapter of the sources
ANSWERS = {"built", "inherited", "declined"}


def rows():
    return ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_each_row_of_the_sources_stands_on_the_page_once_in_order():
    expected = [
        f"{chapter}.{row}" for chapter, count in CHAPTERS.items() for row in range(1, count + 1)
    ]
    assert [number for number, *_ in rows()] == expected


def test_each_row_is_built_or_inherited_with_a_test_or_declined_with_a_reason():
    for number, _, answer, where in rows():
        assert answer in ANSWERS, number
        if answer == "declined":
            assert len(where.split()) > 10, f"{number} gives no reason"
        else:
            assert TEST.search(where) or "the same test" in where, number


def test_each_test_that_the_page_names_exists():
    named = [test for *_, where in rows() for test in TEST.findall(where)]
    assert len(named) > 50
    there = names_below(".")
    for test, file in named:
        assert not test or test in there, test
        assert not file or (ROOT / "tests" / file).exists(), file
