"""Every block of the README runs as it is written there, and prints what is shown below it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multicast.cli.commands import EXTRA_OF, PARTS
from tests.system.test_names import packages_of

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = FENCE.findall(README)
PICTURE, INSTALL, *QUICK_START, TWO_COMMANDS = BLOCKS


def steps():
    """The blocks of the quick start that run, each with the output that is shown, or None."""
    pairs = zip(QUICK_START, [*QUICK_START[1:], ("", "")], strict=True)
    return [
        (*block, after if shown == "text" else None)
        for block, (shown, after) in pairs
        if block[0] != "text"
    ]


def is_as_shown(shown, printed):
    """Whether the output is the one shown; "…" stands for a part of a line, or for any lines."""
    parts = [".*\n" if line == "…\n" else re.escape(line) for line in shown.splitlines(True)]
    pattern = "".join(f"(?:{part})*" if part == ".*\n" else part for part in parts)
    return re.fullmatch(pattern.replace("…", ".*"), printed) is not None


@pytest.mark.kafka
@pytest.mark.timeout(900)
def test_the_quick_start_prints_what_is_shown(tmp_path):
    # Init: each step writes a file, also what it leaves in the background.
    script = ""
    for number, (language, text, _) in enumerate(steps()):
        if language == "python":
            assert "`python quick.py`" in README
            (tmp_path / "quick.py").write_text(text, encoding="utf-8")
        run = "python quick.py\n" if language == "python" else text
        script += f"exec >{number} 2>&1\n{run}"
    assert script.rstrip().endswith("amcast local down --wipe")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMCAST_")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env["PYTHONUNBUFFERED"] = "1"

    # Test.
    shell = subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script], cwd=tmp_path, env=env, start_new_session=True
    )
    try:
        code = shell.wait(800)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(60)
        subprocess.run(
            ["amcast", "local", "down", "--wipe"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            timeout=240,
            check=False,
        )

    # Check.
    printed = [file.read_text() for file in sorted(tmp_path.glob("[0-9]"))]
    assert code == 0, printed[-1]
    for (_, _, shown), text in zip(steps(), printed, strict=True):
        assert shown is None or is_as_shown(shown, text), f"shown:\n{shown}\nprinted:\n{text}"


def test_each_block_of_the_readme_runs_or_is_known():
    assert "A.Msg-TO" in PICTURE[1]
    assert "make install TO=~/amcast-env EXTRAS=all " in INSTALL[1]
    assert {language for language, _ in QUICK_START} == {"bash", "python", "text"}
    assert [shown is not None for _, _, shown in steps()] == [False, True, True, True, False]
    assert TWO_COMMANDS == ("", "make demo\nmake test\n")


def test_each_installation_that_the_readme_names_has_what_the_quick_start_needs():
    verbs = {verb for _, text, _ in steps() for verb in re.findall(r"\bamcast (\w+)", text)}
    parts = [part for part in PARTS if verbs & {part.noun, *part.verbs}]
    assert {part.noun for part in parts} >= {"local", "topology", "collectors"}
    needed = set().union(*(packages_of(EXTRA_OF[part.room]) for part in parts))
    named = re.findall(r"(?:EXTRAS=|; )([\w,]+)", INSTALL[1])
    assert named == ["all", "planner,collectors"]
    for extras in named:
        assert needed <= set().union(*map(packages_of, extras.split(",")))


def test_the_two_commands_are_the_makefile_s():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in TWO_COMMANDS[1].splitlines():
        assert f"\n{command.removeprefix('make ')}:" in makefile


def test_the_readme_is_read_in_ten_minutes():
    assert len(README.encode()) - len(PICTURE[1].encode()) <= 10_240
