"""The verbs of `amcast topology` that need no cluster: results on stdout, errors in a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from topology.changes import measured_rates, with_rates
from topology.cli import app
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


def test_plan_prints_the_plan_as_one_document():
    document = one_document(run("plan", POSTER, "-o", "json"))
    assert document["schema_version"] == 1
    assert Plan.from_json(document).objective.cost == 33
    assert document["collectors"][0]["bag"] == ["P2", "P3", "P4"]


def test_plan_prints_the_tree_and_what_it_costs():
    result = run("plan", POSTER)
    assert "K1: 3 logs, 3/s · enters P2 P3 P4 · serves C2" in result.stdout
    assert "cost 33 = 13 hops + 10 * 2 foreign · bound 33, proven least" in result.stdout
    assert "planned in" in result.stderr


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


@pytest.mark.slow
def test_pictures_are_well_formed_and_repeat(tmp_path):
    names = [tmp_path / f"tree.{kind}" for kind in ("svg", "mmd", "dot")]
    pictures = []
    for _ in range(2):
        drawn = ["--svg", names[0], "--mermaid", names[1], "--dot", names[2]]
        result = run("plan", MODULES, *drawn, "--force")
        assert result.exit_code == 0
        pictures.append([name.read_text(encoding="utf-8") for name in names])
    assert pictures[0] == pictures[1]
    svg, mermaid, dot = pictures[0]
    words = "".join(ET.fromstring(svg).itertext())
    assert "kafka, epoch 1" in words
    assert "streams-team" in words
    assert mermaid.startswith("flowchart TD\n")
    assert 'K1 -->|"' in mermaid
    assert dot.startswith("digraph collectors {")
    assert dot.count("->") == mermaid.count("-->") + mermaid.count("-.->")


@pytest.mark.parametrize("name", ["nothing.toml", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path, name):
    result = run("plan", tmp_path / name)
    assert result.exit_code == 2
    assert result.stderr.startswith("amcast: cannot read ")
    assert result.stdout == ""


def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text('topic = "A"\npartitions = ["P1"]\ntopic = "B"\n')
    result = run("plan", bad, "-o", "json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "line 3" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_plan_broken_by_hand_is_refused_by_show_and_diff(tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    run("plan", POSTER, "--out", good)
    document = json.loads(good.read_text())
    document["consumers"][0]["collector"] = "K3"
    bad.write_text(json.dumps(document))
    for result in (run("show", bad), run("diff", good, bad)):
        assert result.exit_code == 2
        assert "does not order P1" in result.stderr
    bad.write_text("{")
    assert run("show", bad).exit_code == 2


def test_what_cannot_be_planned_names_the_limit_and_fails(tmp_path):
    tight = tmp_path / "tight.toml"
    tight.write_text(Path(POSTER).read_text() + "\n[limits]\ncollector_rate_max = 2\n")
    result = run("plan", tight)
    assert result.exit_code == 1
    assert "collector_rate_max = 2 cannot be kept: consumer C1 alone needs 3" in result.stderr


def test_preferences_lead_to_their_trees():
    plans = {
        prefer: one_document(run("plan", POSTER, "-o", "json", "--prefer", prefer))
        for prefer in ("genuine", "latency", "balance")
    }
    assert [len(plans[prefer]["collectors"]) for prefer in plans] == [3, 1, 3]
    assert run("plan", POSTER, "--prefer", "beauty").exit_code == 2


def test_rates_are_measured_from_two_samples_of_offsets_and_the_file_has_the_last_word():
    rates = measured_rates({"P1": 10, "P2": 5, "P3": 0}, {"P1": 110, "P2": 5}, seconds=3.0)
    assert rates == {"P1": 33.3, "P2": 0.001}
    file = parse(Path(POSTER).read_text() + "\n[rates]\nP1 = 7\n")
    assert with_rates(file, rates).rates == {"P1": 7.0, "P2": 0.001}


def test_the_modules_of_a_real_project_are_planned_with_proof():
    plan = Plan.from_json(one_document(run("plan", MODULES, "-o", "json")))
    assert plan.objective.gap == 0
    assert plan.objective.cost == 486
    assert plan.cover({"raft", "tests"}).to == plan.cover(plan.partitions).to


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
    for option in ("--out", "--svg", "--mermaid", "--dot"):
        file = tmp_path / f"kept{option}"
        file.write_text("mine")
        result = run("plan", POSTER, option, file)
        assert result.exit_code == 2
        assert f"{file} exists already" in result.stderr
        assert "--force" in result.stderr
        assert file.read_text() == "mine"
        assert run("plan", POSTER, option, file, "--force").exit_code == 0
        assert file.read_text() != "mine"
    plan, drawn = tmp_path / "kept--out", tmp_path / "kept--svg"
    assert run("show", plan, "--svg", drawn).exit_code == 2
    assert run("show", plan, "--svg", drawn, "--force").exit_code == 0
