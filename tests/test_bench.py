"""The benchmarks: workloads, layouts, tallies, comparisons; and one small run on a real broker."""

import json
import tomllib
from importlib import resources

import pytest
import typer

from bench import results
from bench.cli import Output, read_workload
from bench.cli import compare as bench_compare
from bench.cli import run as bench_run
from bench.compare import Incomparable, compare
from bench.histogram import Latencies
from bench.layouts import lay_out
from bench.stamps import Tally, pack, padding
from bench.workload import ARMS, STAMP_BYTES, InvalidWorkload, from_document, load
from multicast.errors import UsageError
from multicast.log import Record
from topology.check import check

GOOD = {
    "kind": "one",
    "size": 2,
    "message_bytes": 100,
    "load": 200,
    "messages": 50,
    "warm_up": 10,
}


def workload(**changes):
    return from_document({**GOOD, **changes}, name="w")


# -- workloads ------------------------------------------------------------------------------


def test_a_workload_that_says_little_gets_what_is_usual():
    read = load(
        'kind = "one"\nsize = 2\nmessage_bytes = 24\nload = 5\nmessages = 1', name="a/b.toml"
    )
    assert (read.name, read.rate, read.pairs, read.producers) == ("b", 5.0, 7, 1)
    assert read.arms == ("plain", "ordered")
    assert workload(load="saturate").rate is None
    assert workload(kind="plain", size=3).producers == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "ring"}, "kind is 'ring'"),
        ({"size": 1}, "size is 1"),
        ({"size": True}, "size is True"),
        ({"size": 33}, "size is 33"),
        ({"message_bytes": 23}, "message_bytes is 23"),
        ({"load": 0}, "load is 0"),
        ({"load": "fast"}, "load is 'fast'"),
        ({"load": float("nan")}, "load is nan"),
        ({"messages": 0}, "messages is 0"),
        ({"messages": 1.5}, "messages is 1.5"),
        ({"warm_up": -1}, "warm_up is -1"),
        ({"pairs": 0}, "pairs is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"driver": "java"}, "driver is 'java'"),
        ({"to": "all"}, "to is 'all'"),
        ({"name": ""}, "name is ''"),
        ({"arms": []}, r"arms is \[\]"),
        ({"arms": ["plain", "plain"]}, "twice"),
        ({"arms": ["quick"]}, "'quick'"),
        ({"arms": [[]]}, "arm"),
        ({"kind": "plain", "arms": ["ordered"]}, "nothing to order"),
        ({"kind": "tree", "arms": ["algorithm1"]}, "algorithm1"),
        ({"colour": 1}, "colour is not a key"),
    ],
)
def test_a_bad_value_is_one_sentence_that_names_the_key(changes, said):
    with pytest.raises(InvalidWorkload, match=said) as error:
        workload(**changes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["kind", "size", "message_bytes", "load", "messages"])
def test_a_missing_key_is_named(key):
    with pytest.raises(InvalidWorkload, match=key):
        from_document({name: GOOD[name] for name in GOOD if name != key}, name="w")


def test_a_change_is_stronger_than_the_file():
    text = 'kind = "one"\nsize = 2\nmessage_bytes = 24\nload = 5\nmessages = 1'
    read = load(text, name="w", changes=["load=saturate", "size=3", 'arms=["ordered"]'])
    assert (read.load, read.size, read.arms) == ("saturate", 3, ("ordered",))
    with pytest.raises(InvalidWorkload, match="key=value"):
        load(text, name="w", changes=["load"])
    with pytest.raises(InvalidWorkload, match="not TOML"):
        load("kind = ", name="w")


def test_every_workload_that_comes_along_can_be_run():
    folder = resources.files("bench").joinpath("workloads")
    names = [one.name for one in folder.iterdir() if one.name.endswith(".toml")]
    assert len(names) >= 5
    for name in names:
        read = read_workload(name.removesuffix(".toml"), [])
        for arm in read.arms:
            plan = lay_out(read, arm, "A").plan
            if plan is not None:
                check(plan)
        assert tomllib.loads(folder.joinpath(name).read_text())["messages"] == read.messages


def test_a_workload_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"no workload quick; there are .*one-small"):
        read_workload("quick", [])
    with pytest.raises(UsageError, match="cannot be read"):
        read_workload(str(tmp_path / "none.toml"), [])
    (tmp_path / "bad.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        read_workload(str(tmp_path / "bad.toml"), [])


def test_one_seed_draws_one_sequence_of_destinations():
    one, other = workload(seed=3), workload(seed=4)
    assert one.destinations((0, 1)) == one.destinations((0, 1)) != other.destinations((0, 1))
    assert len(one.destinations((0, 1))) == 60


# -- layouts --------------------------------------------------------------------------------


def test_a_tree_is_a_chain_whose_last_consumer_reads():
    layout = lay_out(workload(kind="tree", size=3), "ordered", "A")
    assert [node.parent for node in layout.plan.collectors] == [None, "K1", "K2"]
    assert [reading.name for reading in layout.consumers] == ["C3"]
    assert [layout.partitions[number] for number in layout.targets] == ["S"]
    assert layout.plan.subscription("C3").collector == "K3"


def test_a_bottleneck_is_one_collector_that_all_others_follow():
    layout = lay_out(workload(kind="bottleneck", size=3, to="own"), "ordered", "A")
    assert [node.parent for node in layout.plan.collectors] == [None, "K1", "K1"]
    assert [layout.partitions[number] for number in layout.targets] == ["P1", "P2", "P3"]
    sent = [1, 1, 2, 3]
    assert [layout.expected(sent, reading) for reading in layout.consumers] == [2, 1, 1]


@pytest.mark.parametrize("kind", ["one", "tree", "bottleneck"])
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_of_a_kind_sends_the_same_messages_to_the_same_consumers(kind, arm):
    layout = lay_out(workload(kind=kind, size=4), arm, "A")
    ordered = lay_out(workload(kind=kind, size=4), "ordered", "A")
    assert (layout.targets, layout.consumers) == (ordered.targets, ordered.consumers)
    assert (layout.plan is not None) == (arm in ("ordered", "single-root"))
    if arm == "single-root":
        assert len(layout.plan.collectors) == 1


# -- tallies and histograms -----------------------------------------------------------------


def record(*, intended=0, number=1, sequence=0, log=0):
    return Record(sequence, pack(intended, intended, number, sequence, log) + b"rest")


def test_a_latency_counts_from_the_intended_time_and_not_in_the_warm_up():
    tally = Tally(1, warm_up=1, wanted=None)
    tally.take([record(intended=100, sequence=0)], 150)
    assert (tally.delivered, tally.measured, tally.rate) == (1, 0, None)
    tally.take([record(intended=200, sequence=1)], 500)
    tally.take([record(intended=300, sequence=2), record(number=9, sequence=3)], 1500)
    assert list(tally.latencies) == [300, 1200]
    assert (tally.delivered, tally.measured) == (3, 2)
    assert tally.rate == 1e9 / 1000  # one message in the 1,000 ns after the first poll


def test_a_filter_keeps_a_consumers_own_messages_only():
    tally = Tally(1, warm_up=0, wanted={2})
    tally.take([record(log=1), record(log=2)], 10)
    tally.count([record(log=2, sequence=1), record(log=3)], 20)
    assert tally.delivered == tally.measured == 2


def test_a_payload_is_as_long_as_asked_for_and_repeats_with_its_seed():
    assert len(padding(100, 1)) == 100 - STAMP_BYTES
    assert padding(100, 1) == padding(100, 1) != padding(100, 2)


def test_histograms_add_up_and_are_named_as_openmessaging_does():
    one, other = Latencies(), Latencies()
    one.record([1_000_000] * 99)
    other.record([5_000_000, -3])
    one.add(other.encoded())
    figures = one.figures("endToEndLatency")
    assert one.count == 101
    assert figures["endToEndLatency50pct"] == pytest.approx(1.0, rel=0.001)
    assert figures["endToEndLatencyMax"] == pytest.approx(5.0, rel=0.001)
    assert Latencies().figures("endToEndLatency") == {}


# -- results and comparisons ----------------------------------------------------------------


def test_ratios_are_taken_pair_by_pair():
    base = results.series([{"endToEndLatency50pct": 1.0}, {"endToEndLatency50pct": 2.0}])
    arm = results.series([{"endToEndLatency50pct": 3.0}, {"endToEndLatency50pct": 2.0}])
    (found,) = results.ratios(base, arm).values()
    assert found == {"median": 2.0, "least": 1.0, "greatest": 3.0, "pairs": [3.0, 1.0]}
    assert results.ratios(base, {}) == {}
    assert results.series([{"a": 1.0, "b": 2.0}, {"a": 3.0}]) == {"a": [1.0, 3.0]}


def document(latency=1.5, rate=0.9, **changes):
    ratios = {"endToEndLatency50pct": {"median": latency}, "consumeRate": {"median": rate}}
    keys = ("kind", "size", "message_bytes", "load", "driver", "to", "producers")
    made = workload(**changes)
    return {
        "schema_version": 1,
        "workload": {key: getattr(made, key) for key in keys},
        "base": "plain",
        "ratios": {"ordered": ratios},
        "arms": {"plain": {"aggregatedConsumeRate": 100.0}},
    }


def test_a_latency_that_grew_and_a_rate_that_fell_are_regressions():
    rows = compare(document(), document(latency=1.9), max_regression=1.25)
    assert [(row.name, row.regression) for row in rows] == [
        ("endToEndLatency50pct", True),
        ("consumeRate", False),
    ]
    rows = compare(document(), document(rate=0.7), max_regression=1.25)
    assert [row.regression for row in rows] == [False, True]
    assert not any(row.regression for row in compare(document(), document(), max_regression=1))


def test_results_of_one_arm_are_compared_by_their_figures():
    old, new = ({**document(), "ratios": {}} for _ in range(2))
    new["arms"] = {"plain": {"aggregatedConsumeRate": 50.0}}
    (row,) = compare(old, new, max_regression=1.25)
    assert (row.change, row.regression) == (2.0, True)


def test_what_cannot_be_compared_is_one_sentence():
    for new, said in (
        (document(size=3), "size is 2 in one, 3 in the other"),
        ({}, "schema_version"),
        ({"schema_version": 1}, "'workload'"),
        ({**document(), "ratios": {"single-root": {}}}, "no figure in common"),
    ):
        with pytest.raises(Incomparable, match=said):
            compare(document(), new, max_regression=1.25)
    with pytest.raises(Incomparable, match="1 or more"):
        compare(document(), document(), max_regression=0.5)


def test_the_command_ends_with_1_on_a_regression_and_says_which(tmp_path, capsys):
    old, new, broken = (tmp_path / name for name in ("old.json", "new.json", "broken.json"))
    old.write_text(json.dumps(document()))
    new.write_text(json.dumps(document(latency=3.0)))
    broken.write_text("[1]")
    with pytest.raises(typer.Exit) as ended:
        bench_compare(old, new, max_regression=1.25, output=Output.TABLE)
    assert ended.value.exit_code == 1
    assert "REGRESSION" in capsys.readouterr().out
    bench_compare(old, new, max_regression=2.5, output=Output.JSON)
    assert json.loads(capsys.readouterr().out)["rows"][0]["change"] == 2.0
    for other in (broken, tmp_path / "none.json"):
        with pytest.raises(UsageError, match=other.name):
            bench_compare(old, other, max_regression=1.25, output=Output.TABLE)


# -- the real thing -------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_small_run_measures_every_arm_and_loses_nothing(kafka_cluster, tmp_path, capsys):
    # Init: a few messages through a chain of two collectors.
    file = tmp_path / "small.toml"
    file.write_text(
        'kind = "tree"\nsize = 2\nmessage_bytes = 100\nload = 500\nmessages = 100\nwarm_up = 20\n'
        'pairs = 2\narms = ["plain", "ordered", "one-partition"]\n'
    )
    out = tmp_path / "result.json"

    # Test.
    bench_run(str(file), bootstrap=kafka_cluster.bootstrap, out=out, output=Output.TABLE)

    # Check: each arm has its figures for each round, and compares with itself.
    result = json.loads(out.read_text())
    for arm in ("plain", "ordered", "one-partition"):
        assert len(result["arms"][arm]["endToEndLatency50pct"]) == 2
        assert result["arms"][arm]["aggregatedPublishDelayLatencyAvg"] > 0
    assert result["ratios"]["ordered"]["endToEndLatency50pct"]["median"] > 0
    assert "ordered / plain" in capsys.readouterr().out
    assert not any(row.regression for row in compare(result, result, max_regression=1))
