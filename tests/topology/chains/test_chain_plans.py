"""Plans of chains: who handles the transactions of a single chain; the command."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topology.test_cli import EXAMPLES, run
from topology.chains.chain_file import parse
from topology.planner.solver import plan
from topology.work import collector_work

CHAINS = [f"c{number}" for number in range(6)]


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


@settings(deadline=None, max_examples=25)
@given(chain_files(), st.sampled_from([10.0, 0.1]))
def test_a_single_chains_transactions_touch_nothing_above_their_own_collector(text, phi):
    document = plan(parse(text), phi=phi)
    for node in document.collectors:
        assert not [log for log in collector_work(document, node).passes_on if "+" not in log]
    for entry in document.consumers:
        top = document.top(entry.name)
        assert entry.collector == (top and top.name)


def test_three_chains_and_their_pairs_in_exact_numbers():
    document = plan(parse((EXAMPLES / "chains-3.toml").read_text(encoding="utf-8")))
    drops = {node.name: collector_work(document, node).drops for node in document.collectors}
    assert {log.name: document.top(log.name).name for log in document.logs} == {
        "amber": "K1",
        "birch": "K2",
        "cedar": "K2",
        "amber+birch": "K1",
        "amber+cedar": "K1",
        "birch+cedar": "K2",
    }
    assert drops == {"K1": frozenset(), "K2": {"amber"}}


def test_a_chain_in_no_set_has_no_collector():
    document = plan(parse('topic = "T"\nchains = ["a", "b", "c"]\nsets = [["a", "b"]]'))
    assert document.top("c") is None
    assert document.subscription("c").collector is None


# -- the command ----------------------------------------------------------------------------


def test_the_command_writes_a_plan_that_the_other_verbs_read(tmp_path):
    out = tmp_path / "plan.json"
    result = run("plan", "--chains", EXAMPLES / "chains-3.toml", "--out", out)
    assert result.exit_code == 0, result.stderr
    assert "cost 61 = 11 hops" in run("show", out).stdout
    again = run("plan", "--chains", EXAMPLES / "chains-3.toml", "--against", out)
    assert "the running tree stays: the planner finds the same one" in again.stdout


@pytest.mark.parametrize("arguments", [[], ["a.toml", "--chains", "b.toml"]])
def test_the_command_wants_one_input(arguments):
    result = run("plan", *arguments)
    assert result.exit_code == 2
    assert result.stderr == (
        "amcast: plan needs one input: give an interest file, or --chains with a chain file\n"
    )


def test_a_wrong_chain_file_ends_with_2_and_names_the_file(tmp_path):
    path = tmp_path / "chains.toml"
    path.write_text('topic = "T"\nchains = ["a", "a"]', encoding="utf-8")
    result = run("plan", "--chains", path)
    assert (result.exit_code, result.stderr) == (2, f"amcast: {path}: chain a is named twice\n")
