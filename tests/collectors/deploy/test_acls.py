"""What `amcast generate acls` prints is what test_rights.py holds on Kafka's own authorizer."""

import argparse
import json
import shlex

import pytest
from typer.testing import CliRunner

from multicast.cli.commands import build
from tests.helpers.authorized import RIGHTS, all_of, named, target
from topology.interests import from_document
from topology.planner.solver import plan as solve

TARGET = ("--target", target("money.in"))
CONSUMERS = [{"name": "C1", "interest": ["P1", "P2"]}, {"name": "C2", "interest": ["P2"]}]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Give a function that prints the commands for a plan with these sets."""
    folder = tmp_path_factory.mktemp("plan")

    def output(*arguments, sets=(["P1", "P2"],)):
        document = {"topic": "money.in", "partitions": ["P1", "P2"], "consumer": CONSUMERS}
        plan = solve(from_document({**document, "destinations": list(sets)}))
        (folder / "plan.json").write_text(json.dumps(plan.to_json()))
        words = ["generate", "acls", str(folder / "plan.json"), "-b", "k1:9092", *arguments]
        return CliRunner().invoke(build(words), words)

    return output


def granted(text):
    """Read what commands grant, as Kafka's tool does: (right, kind, name)."""
    parser = argparse.ArgumentParser()
    for option in ("--bootstrap-server", "--allow-principal", "--operation"):
        parser.add_argument(option, required=True)
    for option in ("--topic", "--group", "--transactional-id"):
        parser.add_argument(option, action="append", default=[])
    for option in ("--add", "--cluster"):
        parser.add_argument(option, action="store_true")
    parser.add_argument("--resource-pattern-type", choices=["prefixed"])
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        tool, *words = shlex.split(line)
        given = parser.parse_args(words)
        assert (tool, given.bootstrap_server, given.add) == ("kafka-acls.sh", "k1:9092", True)
        star = "*" if given.resource_pattern_type else ""
        if given.cluster:
            yield given.operation, "the cluster", ""
        yield from ((given.operation, "topic", name + star) for name in given.topic)
        yield from ((given.operation, "group", name + star) for name in given.group)
        for name in given.transactional_id:
            yield given.operation, "transactional ID", name


@pytest.mark.parametrize("role", RIGHTS)
def test_the_commands_for_a_role_grant_the_rights_of_the_table_and_no_others(role, printed):
    done = printed("--role", role, "--group", "g", "--principal", "User:CN=a b", *TARGET)
    assert done.exit_code == 0, done.output
    assert set(granted(done.output)) == set(named(all_of(role), "money.in", "g"))
    assert all(line[0] == "#" or "'User:CN=a b'" in line for line in done.output.splitlines())


def test_all_roles_are_printed_for_all_consumers_and_only_topics_that_the_plan_has(printed):
    done = printed(*TARGET, sets=())
    heads = [line[2:] for line in done.output.splitlines() if line.startswith("#")]
    assert heads == list(RIGHTS)
    names = {name for _, _, name in granted(done.output)}
    assert {"amcast.money.in.C1", "amcast.money.in.C2@money.in-target"} < names
    assert not any(name.endswith(".groups") for name in names)
    assert "--allow-principal User:send-ordered " in done.output


def test_roles_that_write_to_a_topic_want_it_named(printed):
    heads = [line[2:] for line in printed().output.splitlines() if line.startswith("#")]
    assert heads == [role for role in RIGHTS if role not in ("materialize", "dead letters")]
    assert "name it with --target" in str(printed("--role", "materialize").exception)


def test_an_unknown_role_is_refused(printed):
    done = printed("--role", "boss")
    assert (done.exit_code, "role 'boss' is unknown; known are send," in str(done.exception)) == (
        1,
        True,
    )
