"""The verbs of `amcast topology` that need no cluster: results on stdout, errors in a sentence."""

from __future__ import annotations

import json
import random
import re
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from topology.changes import measured_rates, with_rates
from topology.cli import _interruptible, app
from topology.interests import parse
from topology.tree import Plan

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
POSTER, CYCLIC, MODULES = (
    str(EXAMPLES / f"{name}.toml") for name in ("poster", "poster-cyclic", "modules")
)


def run(*arguments: str):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def one_document(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_plan_file_is_written_shown_and_equal_to_itself(tmp_path):
    out = tmp_path / "plan.json"
    assert run("plan", POSTER, "--out", out).exit_code == 0
    assert json.loads(out.read_text()) == one_document(run("show", out, "-o", "json"))
    assert run("diff", out, out).stdout == "nothing moves\n"
    assert run("diff", out, out, "--detailed-exitcode").exit_code == 0
    again = run("plan", POSTER, "--against", out, "--detailed-exitcode")
    assert (again.exit_code, "nothing moves" in again.stdout) == (0, True)


def test_diff_names_what_moves(tmp_path):
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    run("plan", POSTER, "--out", old)
    result = run("plan", CYCLIC, "--out", new, "--against", old, "--detailed-exitcode")
    assert result.exit_code == 6
    result = run("diff", old, new)
    assert result.exit_code == 0
    assert "collector K3 is a root (was below K1)" in result.stdout
    assert "log P1 enters the order at K3 (was K2)" in result.stdout
    assert "consumer C4 is new" in result.stdout
    document = one_document(run("diff", old, new, "-o", "json"))
    assert {"what": "cost", "before": 33.0, "after": 67.0} in document["figures"]
    assert json.loads(new.read_text())["base_epoch"] == 1
    assert run("diff", old, new, "--detailed-exitcode").exit_code == 6


def test_check_says_what_is_wrong_and_what_would_help():
    assert "acyclic: the interests of 3 consumers" in run("check", POSTER).stdout
    document = one_document(run("check", CYCLIC, "-o", "json"))
    assert document["acyclic"] is False
    assert document["witness"]["logs"] == ["P1", "P3", "P5"]
    assert document["least_change"].endswith("then the interests are acyclic")
    assert document["advice"]["proposals"][0] == {
        "kind": "interests",
        "changes": ["let C1 no longer take P1"],
        "names": 1,
        "loses": True,
    }
    assert one_document(run("check", POSTER, "-o", "json"))["advice"] is None


@pytest.mark.slow
def test_pictures_are_well_formed_and_repeat(tmp_path):
    picture, plan = tmp_path / "tree.dot", tmp_path / "plan.json"
    pictures = []
    for _ in range(2):
        result = run("plan", MODULES, "--out", plan, "--dot", picture, "--force")
        assert result.exit_code == 0
        pictures.append(picture.read_text(encoding="utf-8"))
    assert pictures[0] == pictures[1]
    document = json.loads(plan.read_text())
    edges = sum(node["parent"] is not None for node in document["collectors"])
    edges += sum(entry["collector"] is not None for entry in document["consumers"])
    assert pictures[0].startswith("digraph collectors {")
    assert pictures[0].count("->") == edges
    assert "streams-team" in pictures[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nothing.toml", "No such file or directory"),
        (".", "Is a directory"),
        ("latin-1.toml", "it is not text in UTF-8"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path, name, why):
    (tmp_path / "latin-1.toml").write_bytes("topic = 'Köln'".encode("latin-1"))
    result = run("plan", tmp_path / name)
    assert result.exit_code == 2
    assert result.stderr == f"amcast: cannot read {tmp_path / name}: {why}\n"
    assert result.stdout == ""


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text('topic = "A"\npartitions = ["P1"]\ntopic = "B"\n')
    result = run("plan", bad, "-o", "json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "line 3" in result.stderr
    assert result.stderr.count("\n") == 1


def test_rates_are_measured_from_two_samples_of_offsets_and_the_file_has_the_last_word():
    rates = measured_rates({"P1": 10, "P2": 5, "P3": 0}, {"P1": 110, "P2": 5}, seconds=3.0)
    assert rates == {"P1": 33.3, "P2": 0.001}
    file = parse(Path(POSTER).read_text() + "\n[rates]\nP1 = 7\n")
    assert with_rates(file, rates).rates == {"P1": 7.0, "P2": 0.001}


def test_a_collector_that_stays_keeps_its_name_and_stream(tmp_path):
    old, new, more = tmp_path / "old.json", tmp_path / "new.json", tmp_path / "more.toml"
    run("plan", POSTER, "--out", old)
    text = Path(POSTER).read_text().replace('"P5"]', '"P5", "Q1", "Q2"]', 1)
    first = '[[consumer]]\nname = "C0"\ninterest = ["Q1", "Q2"]\n\n[[consumer]]\nname = "C1"'
    more.write_text(text.replace('[[consumer]]\nname = "C1"', first))
    result = run("plan", more, "--against", old, "--out", new)
    assert "log Q1 is new\nlog Q2 is new\ncollector K4 is new\nconsumer C0 is new" in result.stdout
    streams = {
        entry["name"]: entry["stream"] for entry in json.loads(new.read_text())["collectors"]
    }
    assert streams == {"K4": 3, "K1": 0, "K2": 1, "K3": 2}


def test_a_file_that_exists_is_overwritten_only_where_that_is_asked_for(tmp_path):
    for option in ("--out", "--dot"):
        file = tmp_path / f"kept{option}"
        file.write_text("mine")
        result = run("plan", POSTER, option, file)
        assert result.exit_code == 2
        assert f"{file} exists already" in result.stderr
        assert "--force" in result.stderr
        assert file.read_text() == "mine"
        assert run("plan", POSTER, option, file, "--force").exit_code == 0
        assert file.read_text() != "mine"
    plan, drawn = tmp_path / "kept--out", tmp_path / "kept--dot"
    assert run("show", plan, "--dot", drawn).exit_code == 2
    assert run("show", plan, "--dot", drawn, "--force").exit_code == 0


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("--phi", value) for value in ("1e308", "inf", "nan")),
        *(("--window", value) for value in ("1e308", "inf", "nan")),
        *(("--effort", value) for value in ("inf", "nan")),
    ],
)
def test_a_number_that_no_search_can_use_is_wrong_usage(option, value):
    result = run("plan", POSTER, option, value)
    assert result.exit_code == 2
    assert f"Invalid value for '{option}'" in result.stderr


@pytest.mark.parametrize(
    ("part", "changed", "says"),
    [
        ("consumers", {"name": "C1\x1b[31m"}, "consumer 'C1\\x1b[31m' is not a valid name"),
        # The topic would have 2**31 partitions.
        (
            "collectors",
            {"stream": 2**31 - 1},
            "stream is 2147483647, not a whole number from 0 to 2147483646",
        ),
        ("consumers", {"collector": "K3"}, "does not order P1"),
    ],
)
def test_a_plan_broken_by_hand_is_refused_by_show_and_diff(tmp_path, part, changed, says):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    run("plan", POSTER, "--out", good)
    document = json.loads(good.read_text())
    document[part][0].update(changed)
    bad.write_text(json.dumps(document))
    for result in (run("show", bad), run("diff", good, bad)):
        assert result.exit_code == 2
        assert says in result.stderr
    bad.write_text("{")
    assert run("show", bad).exit_code == 2


# -- the search -----------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path):
    """An interest file with more interests than are searched exactly."""
    dice, file = random.Random(3), tmp_path / "large.toml"
    names = [f"P{number + 1}" for number in range(24)]
    consumers = [
        f'[[consumer]]\nname = "C{number}"\ninterest = {json.dumps(dice.sample(names, 4))}\n'
        for number in range(28)
    ]
    file.write_text(f'topic = "A"\npartitions = {len(names)}\n' + "".join(consumers))
    return file


def test_only_what_was_proven_is_said_of_a_plan(large, tmp_path):
    out = tmp_path / "plan.json"
    plain = run("plan", large, "--effort", "0.02", "--out", out)
    assert ("bound" in plain.stdout, "gap" in plain.stdout) == (False, False)
    assert "gap" not in run("show", out).stdout
    assert json.loads(out.read_text())["objective"]["gap"] is None
    proven = run("plan", large, "--effort", "0.02", "--prove")
    assert re.search(r"bound [1-9]\d*(\.\d+)?, gap [1-9]\d?\.\d%", proven.stdout)
    assert "bound 33, proven least" in run("plan", POSTER, "--prove").stdout


def test_the_second_interruption_ends_the_command():
    # Another test of this process may have left a handler, as Spark does.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with _interruptible() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


# -- the running tree -----------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The poster's plan runs; what the brokers would answer is set by `rates`."""
    out = tmp_path / "running.json"
    rates = dict.fromkeys(("P1", "P2", "P3", "P4", "P5"), 100.0)
    run("plan", POSTER, "--out", out)
    running = Plan.parse(out.read_bytes())
    monkeypatch.setattr("topology.cli._ask_cluster", lambda *_: (running, dict(rates), "here", 5))
    return rates


def test_a_running_tree_stays_if_rates_drift_and_its_plan_is_printed_as_it_was_applied(
    cluster, tmp_path
):
    cluster.update(P1=107.0, P4=93.0)
    out = tmp_path / "next.json"
    result = run("plan", POSTER, "--from-cluster", "--out", out, "--detailed-exitcode")
    assert result.exit_code == 0
    assert (
        "the running tree stays: the planner finds the same one\n\nnothing moves" in result.stdout
    )
    assert out.read_bytes() == (tmp_path / "running.json").read_bytes()


def test_a_rate_that_rises_moves_the_tree_unless_the_margin_forbids_it(cluster):
    cluster.update(P4=500.0)
    result = run("plan", POSTER, "--from-cluster", "--detailed-exitcode")
    assert result.exit_code == 6
    assert (
        "the new plan is taken: a new plan must cost at least 10% less (--margin)" in result.stdout
    )
    document = one_document(run("plan", POSTER, "--from-cluster", "-o", "json"))
    choice = document["choice"]
    assert (document["epoch"], choice["kept"], choice["margin"]) == (2, False, 0.1)
    assert choice["gain"] == pytest.approx(1 - choice["new"]["cost"] / choice["running"]["cost"])
    assert choice["moves"]["logs"]
    words = ["plan", POSTER, "--from-cluster", "--margin", "90"]
    kept = run(*words, "--detailed-exitcode")
    assert kept.exit_code == 0
    assert "the running tree stays: a new plan must cost at least 90% less" in kept.stdout
    assert "the new plan would move" in kept.stdout
    assert one_document(run(*words, "-o", "json"))["epoch"] == 1


@pytest.mark.usefixtures("cluster")
def test_an_interest_that_the_running_tree_cannot_serve_moves_it_whatever_the_margin():
    result = run("plan", CYCLIC, "--from-cluster", "--margin", "100", "--detailed-exitcode")
    assert result.exit_code == 6
    reason = "because no collector of it orders all logs of consumer C4"
    assert f"the running tree cannot stay, {reason}" in result.stdout


def test_against_a_plan_any_gain_counts_unless_a_margin_is_given(tmp_path):
    out, other = tmp_path / "plan.json", tmp_path / "other.toml"
    run("plan", POSTER, "--out", out)
    other.write_text(Path(POSTER).read_text() + "\n[rates]\nP4 = 1.3\n")
    words = ["plan", other, "--against", out, "-o", "json"]
    choice = one_document(run(*words))["choice"]
    assert (choice["margin"], choice["kept"]) == (0.0, choice["gain"] == 0)
    assert one_document(run(*words, "--margin", "99"))["choice"]["kept"]


def test_tickets_are_switched_off_in_the_next_plan_and_stay_off(tmp_path):
    first, off, same = (tmp_path / name for name in ("first", "off", "same"))
    assert run("plan", POSTER, "--out", first).exit_code == 0
    result = run("plan", POSTER, "--against", first, "--no-tickets", "--out", off)
    assert "producers write no tickets" in result.output
    assert run("plan", POSTER, "--against", off, "--out", same).exit_code == 0
    assert [json.loads(path.read_text())["tickets"] for path in (first, off, same)] == [
        True,
        False,
        False,
    ]


def test_a_margin_without_a_running_tree_is_refused():
    result = run("plan", POSTER, "--margin", "5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "give --from-cluster or --against" in result.stderr
    assert run("plan", POSTER, "--margin", "101").exit_code == 2


def test_a_plan_whose_checkpoints_brokers_would_refuse_is_not_made(monkeypatch, tmp_path):
    monkeypatch.setattr("topology.check.CHECKPOINT_BYTES_MAX", 80)
    result = run("plan", POSTER, "--out", tmp_path / "plan.json")
    assert (result.exit_code, list(tmp_path.iterdir())) == (1, [])
    assert result.stderr.startswith("amcast: collector K1 has 3 logs, so its checkpoint has ")
