"""Bugs planted into a copy of the source, one line each: the simulator must find every one.

`planted/*.toml` has the patches (`tests/running/planted.py`). `by = "waits"`: the schedules of
steady traffic must find it; `by = "readings"`: the independent reading of the rule must disagree.
"""

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import pytest

from tests.running.planted import TABLES, bugs, copied_source, planted, run

BUGS = [bug for table in TABLES if table.startswith("simulation/planted/") for bug in bugs(table)]
VIOLATION = 3
READINGS = "tests/bench/test_ticket_rule.py::test_two_readings_agree_on_every_record"


def hunt(bug, copies):
    """Run the bug's number of schedules, or what must find it; give whether, and the report."""
    readings = bug.by == ("readings",)
    if readings:
        words = ["pytest", "-q", "-x", "-p", "no:cacheprovider", READINGS]
    else:
        words = ["bench.simulator", *(["--waits"] if bug.by == ("waits",) else []), "--no-shrink"]
        words += ["--first-seed", str(bug.first_seed), "--schedules", str(bug.seeds)]
    folder = copies.get()
    try:
        with planted(bug, folder):
            # It compiles into no file: the next bug's text may have this one's size and time.
            done = run(folder, "-B", "-m", *words)
    finally:
        copies.put(folder)
    if readings:
        return done.returncode == 1, done.stdout + done.stderr
    assert done.returncode in (0, VIOLATION), done.stderr
    violated = re.search(r"violated: .*\n.*\nto repeat.*", done.stdout)
    return done.returncode == VIOLATION, violated[0] if violated else done.stdout


@pytest.fixture(scope="module")
def hunts(tmp_path_factory, request):
    """All selected hunts, two at a time: each bug's future by its name."""
    wanted = {
        item.callspec.params["bug"].name
        for item in request.session.items
        if item.module is request.module and item.originalname == "test_planted_bug_is_found"
    }
    copies = SimpleQueue()
    for _ in range(2):
        copies.put(copied_source(tmp_path_factory.mktemp("planted")))
    with ThreadPoolExecutor(2) as pool:
        yield {bug.name: pool.submit(hunt, bug, copies) for bug in BUGS if bug.name in wanted}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "bug",
    [bug if bug.sample else pytest.param(bug, marks=pytest.mark.campaign) for bug in BUGS],
    ids=str,
)
def test_planted_bug_is_found(bug, hunts):
    is_found, report = hunts[bug.name].result()
    assert is_found, f"{bug.name!r} was not found within {bug.seeds} seeds: {report}"
    sys.stdout.write(f"{bug.name}: {report}\n")


def test_there_are_enough_planted_bugs_and_each_has_one_name():
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 60


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.scope], ids=str)
def test_the_exhaustive_search_finds_a_planted_bug(bug, tmp_path):
    with planted(bug, copied_source(tmp_path)):
        done = run(tmp_path, "-m", "bench.search", "--scope", bug.scope)
    assert done.returncode == VIOLATION, done.stdout + done.stderr
    assert "violated: " in done.stdout
    sys.stdout.write(f"{bug.name}: {done.stdout}\n")
