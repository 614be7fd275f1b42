"""The exhaustive search on planted bugs: it must find each one in the named scope."""

import sys

import pytest

from tests.running.planted import copied_source, planted, run
from tests.simulation.test_planted_bugs import BUGS, VIOLATION


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug.scope], ids=str)
def test_the_search_finds_a_planted_bug(bug, tmp_path):
    with planted(bug, copied_source(tmp_path)):
        done = run(tmp_path, "-m", "bench.search", "--scope", bug.scope)
    assert done.returncode == VIOLATION, done.stdout + done.stderr
    assert "violated: " in done.stdout
    sys.stdout.write(f"{bug.name}: {done.stdout}\n")
