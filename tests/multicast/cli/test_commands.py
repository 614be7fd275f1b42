"""What `amcast` lists is what its verbs say, and listing it imports none of them."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from multicast.cli.commands import GROUPS, NOUNS, PARTS, build

CALLS = [
    ["--version"],
    ["--help"],
    ["topology", "--help"],
    ["topolgy"],
    ["topology", "aply"],
    ["send", "--help"],
]
COMPLETED = {
    "amcast topol": "topology",
    "amcast topology ap": "apply",
    "amcast send --hist": "--history",
}
HEAVY = {
    *("asyncio", "kafka", "confluent_kafka", "faust", "grpc", "highspy", "networkx", "numpy"),
    *("prometheus_client", "pulp", "pydantic", "pyspark", "rich"),
    *("bench", "collectors", "ordering_osn", "topology.cli"),
}
ABSENT = {
    "collectors": ["faust", "mode"],
    "osn": ["cryptography", "fabric_protos", "grpc"],
    "planner": ["networkx", "pulp"],
}
TOLD = sorted({*HEAVY, "typer", "multicast.consuming.consumer"})
PROGRAM = f"""
import json, os, sys
from amcast.__main__ import main

def call(words):
    sys.argv = ["amcast", *words]
    try:
        main()
    except SystemExit as ended:
        loaded = [name for name in {TOLD} if name in sys.modules]
        print(json.dumps([ended.code, loaded]), file=sys.stderr)

for words in {CALLS}:
    call(words)
for text in {list(COMPLETED)}:
    os.environ |= {{
        "_AMCAST_COMPLETE": "complete_bash",
        "COMP_WORDS": text,
        "COMP_CWORD": str(text.count(" ")),
    }}
    call([])
"""


def test_help_a_typing_error_and_completion_import_no_room_and_no_client():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, check=False
    )
    ended = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert [code for code, _ in ended] == [0, 0, 0, 2, 2, 0, 0, 0, 0], done.stderr
    loaded = dict(zip([*map(tuple, CALLS), *COMPLETED], [set(m) for _, m in ended], strict=True))
    loaded["amcast send --hist"].remove("pydantic")  # by which typer checks values
    assert {words: modules & HEAVY for words, modules in loaded.items() if modules & HEAVY} == {}
    assert "typer" not in loaded["--version",]
    assert "multicast.consuming.consumer" not in loaded["topology", "aply"]
    assert "Did you mean 'topology'" in done.stderr
    assert "Did you mean 'apply'" in done.stderr
    assert done.stdout.splitlines()[-3:] == list(COMPLETED.values())


@pytest.mark.parametrize("noun", ["", *NOUNS])
def test_the_table_says_what_the_verbs_say(noun):
    listed = typer.main.get_command(build(["--help"]))
    if noun:
        listed = listed.commands[noun]
    real, helps = {}, []
    for part in PARTS:
        if part.noun == noun:
            root = typer.Typer()
            root.add_typer(part.load(noun), name=noun or "none")
            loaded = typer.main.get_command(root).commands[noun or "none"]
            assert list(loaded.commands) == list(part.verbs)
            real |= loaded.commands
            helps.append(loaded.help)
    assert set(listed.commands) - NOUNS.keys() == real.keys()
    for verb, command in real.items():
        for columns in range(30, 80):  # what has no place is left out, so the table may be shorter
            told = listed.commands[verb].get_short_help_str(columns)
            assert told == command.get_short_help_str(columns)
    if noun:
        assert listed.help == helps[0]


EXAMPLES = [(verb, text) for part in PARTS for verb, text in part.examples.items()]


@pytest.mark.parametrize(("verb", "example"), EXAMPLES, ids=lambda text: text[:50])
def test_the_example_in_the_help_of_each_verb_parses(verb, example):
    words = shlex.split(example.split("$(")[-1].split("|")[-1].removesuffix(")"))
    assert words[0] == "amcast"
    command = typer.main.get_command(build(words[1:]))
    context = command.make_context("amcast", words[1:])
    while hasattr(command, "commands"):
        name, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        context = command.make_context(name, rest, parent=context)
    assert name == verb
    assert command.epilog == f"Example: {example}"


def test_each_verb_has_an_example_a_group_and_its_whole_sentence(capsys):
    assert all(part.examples.keys() == part.verbs.keys() for part in PARTS)
    grouped = [name for names in GROUPS.values() for name in names]
    first = [verb for part in PARTS if not part.noun for verb in part.verbs]
    assert sorted(grouped) == sorted([*NOUNS, *first])
    with pytest.raises(SystemExit):
        build(["--help"])(["--help"], prog_name="amcast")
    told = capsys.readouterr().out
    assert told.count("...") == 1, "of the usage"
    assert all(f"\n{title}:\n" in told for title in GROUPS)


def test_no_option_that_names_a_file_to_write_wants_to_read_it():
    checked = 0
    for part in PARTS:
        root = typer.Typer()
        root.add_typer(part.load(part.noun), name="all")
        for command in typer.main.get_command(root).commands["all"].commands.values():
            for option in command.params:
                if {"--out", "--history"} & set(option.opts):
                    chosen = option.type_descriptor
                    is_file = chosen.annotation is Path
                    assert not (is_file and chosen.parameter_info.readable), command.name
                    checked += is_file
    assert checked > 10


@pytest.mark.parametrize("end", ["", " --oth"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_reads_the_words_of_each_shell(monkeypatch, capsys, shell, end):
    text = f"amcast verify{end}"
    monkeypatch.setenv("_AMCAST_COMPLETE", f"complete_{shell}")
    if shell == "bash":
        monkeypatch.setenv("COMP_WORDS", text.replace(" ", "\n"))
        monkeypatch.setenv("COMP_CWORD", str(text.count(" ")))
    else:
        monkeypatch.setenv("_TYPER_COMPLETE_ARGS", text)
        monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    with pytest.raises(SystemExit):
        build([])(prog_name="amcast")
    assert ("--other-producers" if end else "verify") in capsys.readouterr().out


@pytest.mark.parametrize("extra", ["collectors", "osn", "planner"])
def test_what_the_table_says_of_needs_decides_whether_the_verbs_load(extra):
    program = f"""
import sys
for name in {ABSENT[extra]}:
    sys.modules[name] = None
from multicast.cli.commands import PARTS, NotInstalled
def loads(part):
    try:
        part.load("it")
    except NotInstalled:
        return False
    return True
print([part.module for part in PARTS if loads(part) != part.is_installed()])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
