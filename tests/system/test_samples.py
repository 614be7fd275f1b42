"""What the pages show is there: Python compiles and imports; commands and options exist."""

import ast
import importlib
import re
import shlex
from functools import cache

import pytest
import typer

from multicast.cli.commands import build
from tests.system.test_docs import PAGES, ROOT, text_of

PAGES = [*PAGES, *sorted((ROOT / "examples").rglob("README.md"))]
OURS = ("amcast", "bench", "collectors", "multicast", "ordering_osn", "topology")
BLOCK = re.compile(r"^```([\w{}-]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# A command in a page's text or table, in backticks.
INLINE = re.compile(r"`(amcast [^`\n]+)`")
# Texts that digests begin with, no commands (docs/protocol.md).
NO_VERBS = {"anchor", "genesis"}
# What ends the words of a command in a shell's line.
END = re.compile(r"[|;&>()#]|<(?!\w)|\s\.\.\.|…")

of_each_page = pytest.mark.parametrize(
    "page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix()
)


def wrong_python(text):
    """Blocks of Python that do not compile, and names of ours that they import in vain."""
    wrong = []
    for language, block in BLOCK.findall(text):
        if language != "python":
            continue
        try:
            tree = compile(
                block, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
        except SyntaxError as error:
            wrong.append(str(error))
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
                module = importlib.import_module(node.module)
                wrong += [
                    f"{node.module}.{name.name}"
                    for name in node.names
                    if not hasattr(module, name.name)
                ]
    return wrong


def commands_in(text):
    """The words of each `amcast` in the blocks and in the text of a page."""
    lines = INLINE.findall(BLOCK.sub("", text))
    for language, block in BLOCK.findall(text):
        if language in ("", "bash", "sh", "console"):
            joined = block.replace("\\\n", " ")
            lines += re.findall(r"^(?:\$ )?(?:\w+ +\| +)?(amcast .*)", joined, re.MULTILINE)
            lines += re.findall(r"(?:\| *|\$\()(amcast .*)", joined)
    for line in lines:
        try:
            words = shlex.split(END.split(line)[0])[1:]
        except ValueError:  # a quotation that goes on in the next line
            continue
        if words and words[0] not in NO_VERBS:
            yield words


@cache
def command_of(*first_words):
    """The command that these words call, or that all of them together hold: hundreds ask for it."""
    return typer.main.get_command(build(first_words))


def wrong_command(words):
    """What an `amcast` with these words does not know; None if it knows all."""
    verbs = [word for word in words if not word.startswith("-")]
    command = command_of(*words[:2])
    for verb in verbs:
        if not hasattr(command, "commands"):
            break
        # A page may name the verbs of a noun as `amcast topology …`, or a placeholder in capitals.
        if verb not in command.commands:
            return None if verb.isupper() else f"no verb {verb}"
        command = command.commands[verb]
    known = {option for parameter in command.params for option in parameter.opts}
    known |= {option for parameter in command.params for option in parameter.secondary_opts}
    known.add("--help")
    asked = {word.split("=")[0].rstrip(",.:)") for word in words if re.match(r"--?[a-z]", word)}
    unknown = sorted(asked - known)
    if unknown:
        return f"no option {unknown[0]}"
    no_file = words[:2] == ["topology", "plan"] and words[2:] and words[2].startswith("-")
    no_file = no_file and "--chains" not in asked
    return "no file" if no_file and "--from-cluster" in asked else None


def wrong_commands(text):
    wrong = []
    for words in commands_in(text):
        why = wrong_command(words)
        if why is not None:
            wrong.append(f"amcast {shlex.join(words)}: {why}")
    return wrong


@of_each_page
def test_the_python_of_a_page_compiles_and_imports_names_that_exist(page):
    assert not wrong_python(text_of(page))


@of_each_page
def test_the_commands_of_a_page_and_their_options_exist(page):
    assert not wrong_commands(text_of(page))
