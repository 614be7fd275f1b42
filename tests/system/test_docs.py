"""The pages name files, functions and pages that there are."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FILE = re.compile(r"`((?:topology|multicast|collectors|ordering_osn|bench|tests)/[\w/.]*)")
NAMED = re.compile(r"`([\w/]+\.py):([A-Za-z_][\w.]*)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def names_in(file):
    """Functions, classes, and "Class.method" of a file."""
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names |= {f"{node.name}.{one.name}" for one in node.body if hasattr(one, "name")}
        elif hasattr(node, "name"):
            names.add(node.name)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    files = set(FILE.findall(page.read_text(encoding="utf-8")))
    wrong = [file for file in files if not (ROOT / file).exists() and "*" not in file]
    # Tables of tests name them below their room.
    assert not [file for file in wrong if not (ROOT / "tests" / file).exists()], wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_function_that_a_page_names_exists(page):
    wrong = [
        f"{file}:{name}"
        for file, name in NAMED.findall(page.read_text(encoding="utf-8"))
        if (ROOT / file).exists() and name not in names_in(ROOT / file)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_of_a_page_leads_to_a_file(page):
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]


def test_the_architecture_names_functions():
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(NAMED.findall(text)) >= 25
