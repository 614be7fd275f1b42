"""The commands of the README run as they are written there."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks_to_run() -> list[tuple[str, str]]:
    """The fenced blocks that the README says are tested, each with its language before it."""
    return re.findall(
        r"<!-- tests/system/test_readme.py runs this block[^>]*-->\n```(\w+)\n(.*?)```",
        README,
        re.DOTALL,
    )


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_quick_start_runs_as_it_stands(tmp_path):
    # The Python block runs while the collectors of the first shell block do.
    (_, begin), (language, python), (_, end) = blocks_to_run()
    assert language == "python"
    (tmp_path / "quick.py").write_text(python, encoding="utf-8")
    script = f"{begin}\npython quick.py\n{end}"
    assert script.rstrip().endswith("amcast local down --wipe")
    env = {name: value for name, value in os.environ.items() if not name.startswith("AMCAST_")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    # Files, not pipes: the collectors in the background would hold these open if the script failed.
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as stdout, err.open("w") as stderr:
        shell = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=env,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
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
    assert code == 0, err.read_text()
    printed = out.read_text()
    received = [line for line in printed.splitlines() if line.startswith('{"message_id"')]
    payloads = [re.search(r'"payload": "([^"]*)"', line)[1] for line in received]
    assert sorted(payloads[:3]) == ["credit 5", "debit 5", "restock"]
    assert payloads[:3] == payloads[3:]
    assert "('P1', 'P3') b'debit 5'" in printed


def test_the_two_commands_are_the_makefile_s():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = README.split("## The two commands")[1].split("```")[1].split("\n")
    for command in filter(None, commands):
        assert f"\n{command.removeprefix('make ')}:" in makefile


def test_every_local_link_of_the_readme_leads_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target
