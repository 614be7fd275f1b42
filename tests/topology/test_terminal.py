"""What others wrote reaches a terminal as text only; pipes get it as it is."""

import os
import subprocess
import sys

import pytest

from tests.helpers.system import amcast
from topology.files import printable, shown

TITLE = "\x1b]0;owned\x07"
PLAIN = "\x1b[0m"


@pytest.mark.parametrize(
    ("text", "terminal"),
    [
        ("a\tb\n", "a\tb\n"),
        ("╙── P1 · …\n", "╙── P1 · …\n"),
        (f"x{TITLE}\n", "x\\x1b]0;owned\\x07\n"),
        ("x\x1b[2J\x1b[1A\n", "x\\x1b[2J\\x1b[1A\n"),
        ("x\rwarn\n", "x\\rwarn\n"),
        ("x\u202e\x9b2J\x7f\udc80", "x\\u202e\\x9b2J\\x7f\\udc80"),
        ("\x1b[8mhidden\nnext\n", f"\x1b[8mhidden{PLAIN}\nnext{PLAIN}\n"),
    ],
)
def test_a_terminal_obeys_colours_and_line_ends_only(text, terminal):
    assert shown(text) == terminal


def test_a_name_is_one_line_without_colours():
    assert printable("a\n\x1b[31mb\tc") == "a\\n\\x1b[31mb\\tc"


def test_stdout_is_guarded_if_it_is_a_terminal():
    code = f"from topology.files import guard; guard(); print({f'x{TITLE}'!r})"
    ours, theirs = os.openpty()
    for out in (theirs, subprocess.PIPE):
        done = subprocess.run([sys.executable, "-c", code], stdout=out, timeout=240, check=True)
    seen = os.read(ours, 1 << 16)
    os.close(theirs)
    os.close(ours)
    assert (seen, done.stdout) == (b"x\\x1b]0;owned\\x07\r\n", f"x{TITLE}\n".encode())


def test_an_error_says_a_name_as_text():
    done = amcast("topology", "show", f"no{TITLE}such.json")
    assert done.returncode == 2
    assert "\x1b" not in done.stderr
    assert "no\\x1b]0;owned\\x07such.json" in done.stderr
