"""The transcripts in the documents equal what the commands print.

`python -m tests.topology.test_transcript` writes them anew.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from topology.cli import app

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"
DOCUMENTS = [ROOT / "docs" / "topology.md"]
PROMPT = "$ amcast topology "
BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)


def refreshed(text: str) -> str:
    """Run each `amcast topology` command of the console blocks, and put its output below it."""

    def block(match: re.Match[str]) -> str:
        commands = [line for line in match[1].splitlines() if line.startswith("$ ")]
        if not all(line.startswith(PROMPT) for line in commands):
            return match[0]
        outputs = [line + "\n" + printed(line.removeprefix(PROMPT)) for line in commands]
        return "```console\n" + "\n".join(outputs) + "```"

    return BLOCK.sub(block, text)


def printed(command: str) -> str:
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code == 0, result.stderr
    return "\n".join(line.rstrip() for line in result.stdout.rstrip().splitlines()) + "\n"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_the_transcripts_are_what_the_commands_print(document, tmp_path, monkeypatch):
    monkeypatch.chdir(shutil.copytree(EXAMPLES, tmp_path / "examples"))
    text = document.read_text(encoding="utf-8")
    assert refreshed(text) == text


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(shutil.copytree(EXAMPLES, Path(directory) / "examples"))
        for path in DOCUMENTS:
            path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")
