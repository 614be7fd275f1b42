"""What a transaction costs: compared with one message that is followed through the streams."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from topology.chains.chain_file import parse
from topology.chains.table import sentences
from topology.chains.transactions import means, passing_above, transactions
from topology.check import figures
from topology.cli import app
from topology.planner.solver import plan
from topology.tree import CollectorSpec, Plan

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
CHAINS = [f"c{number}" for number in range(6)]


@dataclass
class Followed:
    """Who does what with one message, found by following it from stream to stream."""

    ordered: list[str] = field(default_factory=list)
    passed_on: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    taking: float = 0.0
    dropping: float = 0.0


def followed(document: Plan, log: str) -> Followed:
    """Send one message to a log: its top appends it, and each reader of that stream goes on."""
    found, to = Followed(), set(log.split("+"))
    streams = [n for n in document.collectors if log in n.bag and not _above_has(document, n, log)]
    while streams:
        node = streams.pop()
        readers = [entry for entry in document.consumers if entry.collector == node.name]
        wanting = [entry for entry in readers if to & set(entry.interest)]
        (found.ordered if wanting else found.passed_on).append(node.name)
        found.taking += sum(entry.weight for entry in wanting)
        found.dropping += sum(entry.weight for entry in readers if entry not in wanting)
        for child in document.collectors:
            if child.parent == node.name and log in child.bag:
                streams.append(child)
            elif child.parent == node.name:
                found.dropped.append(child.name)
    return found


def _above_has(document: Plan, node: CollectorSpec, log: str) -> bool:
    return any(log in above.bag for above in document.collectors if above.name == node.parent)


@st.composite
def chain_files(draw):
    chains = CHAINS[: draw(st.integers(1, 6))]
    rate = st.sampled_from([0.0, 0.25, 1.0, 100.0])
    lines = ['topic = "T"']
    if len(chains) > 1:
        some = st.lists(st.sampled_from(chains), min_size=2, max_size=6, unique=True)
        sets = draw(st.lists(some, max_size=6, unique_by=frozenset))
        rated = [f"{{chains = {entry}, rate = {draw(rate)}}}" for entry in sets]
        lines.append(f"sets = [{', '.join(rated)}]")
    lines.append("[chains]")
    lines += [f"{n} = {{nodes = {draw(st.integers(1, 7))}, rate = {draw(rate)}}}" for n in chains]
    return "\n".join(lines)


@settings(deadline=None)
@given(chain_files(), st.sampled_from(["genuine", "latency", "balance"]))
def test_the_table_is_what_one_message_does(text, prefer):
    document = plan(parse(text), prefer=prefer)
    kinds = transactions(document)
    assert sorted(kind.transaction for kind in kinds) == sorted(log.name for log in document.logs)
    for kind in kinds:
        found = followed(document, kind.transaction)
        assert sorted(kind.ordered_at) == sorted(found.ordered)
        assert sorted(kind.passed_on_at) == sorted(found.passed_on)
        assert sorted(kind.dropped_at) == sorted(found.dropped)
        assert (kind.nodes_taking, kind.nodes_dropping) == (found.taking, found.dropping)


@settings(deadline=None)
@given(chain_files(), st.sampled_from(["genuine", "latency", "balance"]))
def test_the_table_adds_up_to_the_plans_own_foreign_work(text, prefer):
    document = plan(parse(text), prefer=prefer)
    kinds = transactions(document)
    total = sum(kind.rate * kind.foreign for kind in kinds)
    assert total == pytest.approx(figures(document).foreign)
    for rows in (means(kinds)[:-1], means(kinds)[-1:]):
        assert sum(row.rate * row.foreign for row in rows) == pytest.approx(total)
        assert sum(row.kinds for row in rows) == len(kinds)


@settings(deadline=None, max_examples=25)
@given(chain_files(), st.sampled_from(["genuine", "latency", "balance"]))
def test_a_single_chains_transactions_touch_nothing_above_their_own_collector(text, prefer):
    document = plan(parse(text), prefer=prefer)
    kinds = transactions(document)
    assert passing_above(kinds) == ()
    for entry in document.consumers:
        (kind,) = [kind for kind in kinds if kind.transaction == entry.name]
        own = () if entry.collector is None else (entry.collector,)
        assert kind.ordered_at == own
        below = {n.name for n in document.collectors if n.parent in own}
        assert set(kind.dropped_at) == below


def test_three_chains_and_their_pairs_in_exact_numbers():
    document = plan(parse((EXAMPLES / "chains-3.toml").read_text(encoding="utf-8")))
    rows = {
        kind.transaction: (kind.ordered_at, kind.dropped_at, kind.handled, kind.foreign)
        for kind in transactions(document)
    }
    assert rows == {
        "amber": (("K1",), ("K2",), 3, 1),
        "birch": (("K2",), (), 3, 1),
        "cedar": (("K2",), (), 3, 1),
        "amber+birch": (("K1", "K2"), (), 5, 1),
        "amber+cedar": (("K1", "K2"), (), 5, 1),
        "birch+cedar": (("K2",), (), 3, 0),
    }


def test_a_tree_in_which_a_single_log_passes_a_collector_above_is_not_called_clean():
    document = plan(parse((EXAMPLES / "chains-3.toml").read_text(encoding="utf-8")))
    root, leaf = document.collectors
    worse = replace(document, collectors=(replace(root, bag=(*root.bag, "birch")), leaf))
    assert [kind.transaction for kind in passing_above(transactions(worse))] == ["birch"]
    said = sentences(transactions(worse))
    assert "birch's own transactions are passed on at K1, which serves no node of it" in said
    assert not any("touch nothing above" in sentence for sentence in said)


# -- the command ----------------------------------------------------------------------------


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_writes_a_plan_that_the_other_verbs_read(tmp_path):
    out = tmp_path / "plan.json"
    result = run("plan", "--chains", EXAMPLES / "chains-3.toml", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "amber+birch  K1 K2" in result.stdout
    assert "touch nothing above their own collector: checked for 3 of 3 chains" in result.stdout
    assert "cost 61 = 11 hops" in run("show", out).stdout
    again = run("plan", "--chains", EXAMPLES / "chains-3.toml", "--against", out)
    assert "the running tree stays: the planner finds the same one" in again.stdout


def test_a_running_tree_that_stays_is_not_called_clean_if_it_passes_on_a_chain_that_went(tmp_path):
    out, fewer = tmp_path / "plan.json", tmp_path / "fewer.toml"
    run("plan", "--chains", EXAMPLES / "chains-3.toml", "--out", out)
    fewer.write_text('topic = "banks"\nchains = ["amber", "birch"]\nsets = "pairs"')
    result = run("plan", "--chains", fewer, "--against", out, "--margin", 99)
    assert "the running tree stays: a new plan must cost at least 99% less" in result.stdout
    assert "cedar's own transactions are passed on at K2, which serves no node" in result.stdout
    assert "touch nothing above" not in result.stdout


def test_the_document_has_every_kind_of_transaction():
    result = run("plan", "--chains", EXAMPLES / "chains-3.toml", "-o", "json")
    document = json.loads(result.stdout)
    assert Plan.from_json(document).objective.cost == 61
    work = document["transactions"]
    assert [(kind["transaction"], kind["foreign"]) for kind in work["kinds"]][:2] == [
        ("amber", 1),
        ("birch", 1),
    ]
    assert [row["chains"] for row in work["means"]] == [1, 2, None]
    assert work["passing_above"] == []


@pytest.mark.parametrize("arguments", [[], ["a.toml", "--chains", "b.toml"]])
def test_the_command_wants_one_input(arguments):
    result = run("plan", *arguments)
    assert result.exit_code == 2
    assert result.stderr == (
        "amcast: plan needs one input: give an interest file, or --chains with a chain file\n"
    )
