"""Processes of our own: told from others by number and token, and ended with their owner."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multicast.local.process import (
    ProcessId,
    argument_of,
    carriers,
    identify,
    kill_carriers,
    reap,
    send,
    spawn,
    state_of,
    wait_ended,
)
from tests.helpers.system import until

ROOT = Path(__file__).parents[3]
PATIENCE_S = 120.0  # stops a hang, no more
# It runs until it is killed. Where a test fails to do that, it ends soon after that test's waits.
IDLE = [sys.executable, "-c", f"import signal; signal.alarm({4 * PATIENCE_S:.0f}); signal.pause()"]


@pytest.fixture
def idle():
    """A process of ours that carries a token."""
    token = os.urandom(8).hex()
    process = identify(spawn([*IDLE, argument_of(token)]))
    yield process, token
    kill_carriers(token)
    wait_ended([process], token=token, timeout_s=PATIENCE_S)
    reap(process)


def test_a_number_that_another_process_has_now_is_not_signalled(idle):
    process, token = idle
    earlier = ProcessId(process.pid, process.started - 1)
    assert state_of(earlier, token=token) == "ended"
    assert not send(earlier, signal.SIGKILL, token=token)
    until(lambda: carriers(token) == [process.pid], "the process with its token")
    assert not send(process, signal.SIGKILL, token="another run's")
    assert state_of(process, token=token) == "running"


def test_a_paused_process_is_seen_and_an_ended_one_is_reaped(idle):
    process, token = idle
    until(lambda: carriers(token) == [process.pid], "the process with its token")
    assert send(process, signal.SIGSTOP, token=token)
    until(lambda: state_of(process, token=token) == "paused", "the pause")
    assert wait_ended([process], token=token, timeout_s=0.05) == []
    assert send(process, signal.SIGKILL, token=token)
    assert wait_ended([process], token=token, timeout_s=PATIENCE_S) == [process]
    assert state_of(process, token=token) == "ended"
    assert reap(process) == -signal.SIGKILL
    assert reap(process) is None


def test_the_guard_ends_what_its_owner_left_behind(tmp_path):
    token = os.urandom(8).hex()
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    owner = (
        "import os, signal, sys; from pathlib import Path\n"
        "from multicast.local.process import Guard, spawn\n"
        f"guard = Guard({token!r}, remove=Path({os.fspath(doomed)!r}))\n"
        f"spawn({[*IDLE, argument_of(token)]!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", owner], cwd=ROOT, timeout=PATIENCE_S, check=False)
    until(lambda: not carriers(token) and not doomed.exists(), "the end of all")
