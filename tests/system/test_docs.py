"""Every file, function, page and heading that the pages name exists."""

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "spec").glob("*.md")),
    *sorted((ROOT / "bench").rglob("*.md")),
]
ROOMS = (
    "amcast",
    "topology",
    "multicast",
    "collectors",
    "ordering_osn",
    "bench",
    "tests",
    "docs",
    "spec",
    "examples",
)
PATH = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w/.-]*)")
SOURCE = re.compile(r"`([\w/]+\.(?:py|pml))`")
FUNCTION = re.compile(r"`([\w/]+\.py):([A-Za-z_][\w.]*)`")
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")
CODE_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)

of_each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def text_of(page):
    return page.read_text(encoding="utf-8")


@cache
def sources():
    """All Python and Promela files of the repository, as paths below its root."""
    return [
        file.relative_to(ROOT).as_posix()
        for room in ROOMS
        for suffix in ("py", "pml")
        for file in (ROOT / room).rglob(f"*.{suffix}")
    ]


@cache
def names_in(file):
    """Functions, classes, and "Class.method" of a file."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {
                f"{node.name}.{member.name}" for member in node.body if hasattr(member, "name")
            }
        elif hasattr(node, "name"):
            names.add(node.name)
    return names


@cache
def anchors_in(page):
    """The anchors that GitHub gives the headings of a page."""
    anchors, seen = set(), Counter()
    for heading in HEADING.findall(CODE_BLOCK.sub("", text_of(page))):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        anchors.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return anchors


def wrong_links(page):
    wrong = []
    for target, anchor in LINK.findall(CODE_BLOCK.sub("", text_of(page))):
        file = page.parent / target if target else page
        if not file.exists() or (anchor and anchor not in anchors_in(file)):
            wrong.append(f"{target}#{anchor}" if anchor else target)
    return wrong


def wrong_functions(page):
    return [
        f"{file}:{name}"
        for file, name in FUNCTION.findall(text_of(page))
        if not (ROOT / file).exists() or name not in names_in(ROOT / file)
    ]


def wrong_sources(page):
    """Files that a page names by the end of their path, such as `segments.py`."""
    return [
        name
        for name in SOURCE.findall(text_of(page))
        if not any(f"/{file}".endswith(f"/{name}") for file in sources())
    ]


@of_each_page
def test_every_path_that_a_page_names_exists(page):
    paths = {path for path in PATH.findall(text_of(page)) if "*" not in path}
    wrong = [path for path in paths if not (ROOT / path).exists()]
    # The contract of the ordering service names its tests below `tests/`.
    assert not [path for path in wrong if not (ROOT / "tests" / path).exists()], wrong


@of_each_page
def test_every_source_file_that_a_page_names_exists(page):
    assert not wrong_sources(page)


@of_each_page
def test_every_function_that_a_page_names_exists(page):
    assert not wrong_functions(page)


@of_each_page
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    assert not wrong_links(page)


def test_the_architecture_names_functions():
    assert len(FUNCTION.findall(text_of(ROOT / "docs" / "ARCHITECTURE.md"))) >= 25


def test_the_testing_page_counts_the_planted_bugs():
    planted = ROOT / "tests" / "simulation" / "planted"
    bugs = sum(text_of(file).count("[[bug]]") for file in planted.glob("*.toml"))
    assert f"): {bugs} one-line defects" in text_of(ROOT / "docs" / "testing.md")


def test_whatever_amcast_lacks_beside_other_clients_has_a_reason():
    text = (ROOT / "docs" / "compared.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("| ")]
    short = [cell for cell in rows if cell.startswith(("lacks", "partly"))]
    notes = "¹²³⁴⁵⁶⁷⁸⁹"
    assert short
    for cell in short:
        marks = [notes.index(mark) + 1 for mark in cell if mark in notes]
        assert marks or "](" in cell or ":" in cell, cell
        assert all(f"\n{mark}. " in text for mark in marks), cell
