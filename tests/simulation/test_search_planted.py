"""The exhaustive search on planted bugs: it must find each one in the named scope."""

import os
import subprocess
import sys

import pytest

from tests.simulation.test_planted_bugs import BUGS, VIOLATION, plant


@pytest.mark.campaign
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.scope], ids=lambda bug: bug.name.replace(" ", "-")
)
def test_the_search_finds_a_planted_bug(bug, tmp_path):
    plant(bug, tmp_path)
    command = [sys.executable, "-m", "bench.search"]
    done = subprocess.run(
        [*command, "--scope", bug.scope],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )
    assert done.returncode == VIOLATION, done.stdout + done.stderr
    assert "violated: " in done.stdout
    sys.stdout.write(f"{bug.name}: {done.stdout}\n")
