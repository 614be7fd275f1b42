"""Signals end a benchmark as Ctrl-C does: what it made is removed."""

import signal
import subprocess
import sys

import pytest

from tests.helpers.system import PATIENCE_S

PROGRAM = """
import os, signal, sys, tempfile
from bench.harness.interrupts import end_at_signals
end_at_signals()
with tempfile.TemporaryDirectory(dir=sys.argv[1]):
    try:
        print("ready", flush=True)
        sys.stdin.readline()
    finally:
        os.kill(os.getpid(), signal.SIGHUP)  # a terminal that is closed sends it twice
"""


def program(folder, sighup=signal.SIG_DFL):
    """Start the program with a disposition of SIGHUP; the tests may run under nohup themselves."""
    command = [sys.executable, "-c", PROGRAM, folder]
    pipe = subprocess.PIPE
    previous = signal.signal(signal.SIGHUP, sighup)
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    finally:
        signal.signal(signal.SIGHUP, previous)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_command_which_removes_its_folders(tmp_path, sent):
    with program(tmp_path) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(sent)
        assert process.wait(PATIENCE_S) == -signal.SIGINT
    assert not list(tmp_path.iterdir())


def test_under_nohup_sighup_stays_ignored(tmp_path):
    with program(tmp_path, signal.SIG_IGN) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGHUP)
        process.stdin.write("end\n")
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 0
    assert not list(tmp_path.iterdir())
