"""The measurement of bundles beside single transactions: its arithmetic, and one tiny run."""

import json

import pytest

from bench.orderer import send, speed
from bench.orderer.rounds import (
    SentPart,
    Spread,
    commit_latencies,
    in_turns,
    ratios,
    read_sent,
    spread,
)
from bench.orderer.speed import row
from bench.orderer.transactions import FOLDER, Maker
from ordering_osn.chain.bundles.bundle import check_signature, read_bundle

# -- arithmetic ------------------------------------------------------------------------------


def test_a_bundle_took_as_long_as_its_last_part_and_a_transaction_as_its_own():
    sent = [
        SentPart("t1", "a", 100, "bundle"),
        SentPart("t2", "b", 100, "bundle"),
        SentPart("t3", "b", 200, "t3"),
    ]
    came = {"a": {"t1": 150}, "b": {"t2": 190, "t3": 230}}
    assert commit_latencies(sent, came) == {"bundle": 90, "t3": 30}


def test_a_part_that_did_not_come_is_an_error():
    with pytest.raises(KeyError):
        commit_latencies([SentPart("t1", "a", 100, "t1")], {"a": {}})


def test_a_ratio_is_the_median_of_the_rounds_ratios():
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    # The machine was ten times slower in the second round, for both arms.
    assert ratios([12.0, 1.1, 9.0], [10.0, 1.0, 10.0]) == Spread(1.1, 0.9, 1.2)


def test_each_arm_runs_once_a_round_and_the_order_alternates():
    turns = [(0, "x"), (0, "y"), (1, "y"), (1, "x"), (2, "x"), (2, "y")]
    assert list(in_turns(["x", "y"], 3)) == turns


@pytest.mark.parametrize(
    ("figure", "mark", "at_most", "met"),
    [("p50", 1.3, True, False), ("p50", 1.5, True, True), ("p50", 1.5, False, True),
     ("p50", 1.6, False, False)],
)  # fmt: skip
def test_a_mark_is_met_on_its_right_side(figure, mark, at_most, met):
    rounds = {
        "single": [{"p50": 10.0, "cpu_us_nodes": 5.0, "cores_nodes": 1.0}],
        "bundle": [{"p50": 15.0, "cpu_us_nodes": 7.0, "cores_nodes": 1.0}],
    }
    compared = row("latency", "", figure, rounds, mark=mark, at_most=at_most)
    assert compared.ratio.median == 1.5
    assert compared.met is met
    assert compared.costs == {"single": {"cpu_us_nodes": 5.0}, "bundle": {"cpu_us_nodes": 7.0}}


# -- what is sent ----------------------------------------------------------------------------


def test_a_bundle_holds_a_signed_part_for_each_chain_and_names_them():
    made = Maker.of().make_bundle(["chain-a", "chain-b"])
    bundle = read_bundle(made.envelope)
    check_signature(bundle)
    assert bundle.id.hex() == made.transaction
    facts = [(part.chain, part.facts.transaction) for part in bundle.parts]
    assert facts == list(made.parts)


def test_each_part_of_a_bundle_has_a_line_in_the_file_of_what_was_sent(tmp_path):
    file = tmp_path / "sent"
    file.write_text("t1 a 100 bundle\nt2 b 100 bundle\nt3 b 200\n")
    assert [part.message for part in read_sent(file)] == ["bundle", "bundle", "t3"]
    order = send.SendOrder(["x"], ["a", "b"], 3, str(FOLDER), bundles=True)
    made = list(send.transactions(order))
    assert [len(message.parts) for _, message in made] == [2, 2, 2]
    assert send.Pending(made[0][1], "", 0).parts == made[0][1].parts


# -- what is asked, and a run ----------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ["latencies"],
        ["before"],
        ["latency", "--against", "x"],
        ["before", "--against", "no-such-folder"],
        ["latency", "--batches", "10"],
        ["throughput", "--chains", "1"],
        ["throughput", "--chains", "3", "--parts", "10"],
        ["latency", "--rounds", "0"],
        ["latency", "--profile", "both", "x"],
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_starts(words, capsys):
    assert speed.main(words) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_copy_without_an_environment_is_refused(tmp_path, capsys):
    (tmp_path / "multicast").mkdir()

    assert speed.main(["before", "--against", str(tmp_path)]) == 2
    assert "make .venv/ready" in capsys.readouterr().err


@pytest.mark.campaign
@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tiny_run_gives_both_arms_and_their_ratio(capsys):
    size = ["--rounds", "1", "--seconds", "1", "--rates", "10", "--batches", "5/50ms"]
    size += ["--chains", "2", "--parts", "40", "--nodes", "1", "-o", "json"]
    assert speed.main(["latency", "throughput", *size]) == 0
    rows = json.loads(capsys.readouterr().out)["figures"]
    assert [(each["measurement"], each["figure"]) for each in rows] == [
        ("latency", "p50_ms"),
        ("latency", "p99_ms"),
        ("throughput", "per_s"),
    ]
    for each in rows:
        single, bundle = each["base_figure"][0], each["arm_figure"][0]
        assert single > 0
        assert each["ratio"][0] == pytest.approx(bundle / single)
        assert each["costs"]["bundle"]["cpu_us_nodes"] > 0
