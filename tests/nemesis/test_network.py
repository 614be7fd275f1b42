"""The virtual network: each fault and its healing; no process outlives the network.

Each situation is a program (netns_program.py) that runs in a new network namespace.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.nemesis.network import in_own_namespace
from tests.helpers.system import until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def desk(tmp_path):
    """Run a situation to its end; return its exit code and the JSON lines that it printed."""

    def run(situation):
        done = subprocess.run(
            in_own_namespace(
                [sys.executable, "-m", "tests.helpers.netns_program", situation, str(tmp_path)]
            ),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            timeout=280,
            check=False,
        )
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]

    return run


def is_gone(pid):
    """Whether a process has ended; an orphan may still wait to be reaped."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return text.rpartition(")")[2].split()[0] in "ZX"


@pytest.mark.parametrize(
    "situation",
    ["one_direction_is_cut", "a_host_is_isolated", "a_link_is_slow", "connections_are_reset"],
)
def test_in_a_namespace_of_its_own(desk, situation):
    assert desk(situation)[0] == 0


def test_all_on_the_hosts_dies_with_a_desk_that_is_killed(desk):
    code, [printed] = desk("the_desk_is_killed")
    assert code == -signal.SIGKILL
    # Two hosts: each has a holder and four programs, of which two are stopped and one an orphan.
    assert len(printed["pids"]) == 10
    until(lambda: all(map(is_gone, printed["pids"])), "the end of all processes")
