"""The benchmarks: workloads, layouts, tallies, comparisons; and one small run on a real broker."""

import json
import tomllib
from importlib import resources

import pytest
import typer
from confluent_kafka.admin import AdminClient

from bench.cli import compare as bench_compare
from bench.cli import read_workload
from bench.cli import run as bench_run
from bench.comparison.compare import compare
from bench.comparison.layouts import lay_out
from bench.comparison.stamps import RoundTally, pack
from bench.comparison.workload import ARMS, ORDERING, InvalidWorkload, from_document
from bench.report.suite import ENTRIES
from multicast.drivers.protocol import Record
from tests.helpers.system import PATIENCE_S, until
from topology.check import check
from topology.output import Output

GOOD = {"kind": "one", "size": 2, "message_bytes": 100, "load": 200, "messages": 50, "warm_up": 10}


def workload(**changes):
    return from_document({**GOOD, **changes}, name="w")


def check_plans(read):
    for arm in read.arms:
        plan = lay_out(read, arm, "A").plan
        if plan is not None:
            check(plan)


# -- workloads ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"kind": "ring"}, "kind is 'ring'"),
        ({"size": 1}, "size is 1"),
        ({"message_bytes": 23}, "message_bytes is 23"),
        ({"load": "101%"}, "load is '101%'"),
        ({"messages": 1.5}, "messages is 1.5"),
        ({"arms": ["quick"]}, "'quick'"),
        ({"kind": "tree", "arms": ["algorithm1"]}, "algorithm1"),
        ({"colour": 1}, "colour is not a key"),
    ],
)
def test_a_bad_value_is_one_sentence_that_names_the_key(changes, sentence):
    with pytest.raises(InvalidWorkload, match=sentence) as error:
        workload(**changes)
    assert "\n" not in str(error.value)


def test_every_workload_that_comes_along_can_be_run():
    folder = resources.files("bench").joinpath("workloads")
    names = [one.name for one in folder.iterdir() if one.name.endswith(".toml")]
    assert len(names) >= 5
    for name in names:
        read = read_workload(name.removesuffix(".toml"), [])
        check_plans(read)
        assert tomllib.loads(folder.joinpath(name).read_text())["messages"] == read.messages


# -- layouts --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["one", "tree", "bottleneck"])
@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_of_a_kind_sends_the_same_messages_to_the_same_consumers(kind, arm):
    layout = lay_out(workload(kind=kind, size=4), arm, "A")
    ordered = lay_out(workload(kind=kind, size=4), "ordered", "A")
    assert (layout.targets, layout.consumers) == (ordered.targets, ordered.consumers)
    assert (layout.plan is not None) == (arm in ORDERING)
    if layout.plan is not None:
        check(layout.plan)
    if arm == "single-root":
        assert len(layout.plan.collectors) == 1


# -- tallies and histograms -----------------------------------------------------------------


def record(*, intended=0, number=1, sequence=0, log=0):
    return Record(sequence, pack(intended, intended, number, sequence, log) + b"rest")


def test_a_latency_counts_from_the_intended_time_and_not_in_the_warm_up():
    tally = RoundTally(1, warm_up=1, wanted=None)
    tally.take([record(intended=100, sequence=0)], 150)
    assert (tally.delivered, tally.measured) == (1, 0)
    tally.take([record(intended=200, sequence=1)], 500)
    tally.take([record(intended=300, sequence=2), record(number=9, sequence=3)], 1500)
    assert list(tally.latencies) == [300, 1200]
    assert (tally.delivered, tally.measured) == (3, 2)
    assert tally.rate == 3e9 / 1400  # from the first intended time to the last delivery
    backlog = RoundTally(1, warm_up=1, wanted=None)
    for sequence, now in enumerate((150, 500, 1500)):
        backlog.count([record(sequence=sequence)], now)
    assert backlog.rate == 1e9 / 1000  # one message in the 1,000 ns after the first poll


# -- results and comparisons ----------------------------------------------------------------


def document(latency=1.5, rate=0.9, **changes):
    ratios = {"endToEndLatency50pct": {"median": latency}, "consumeRate": {"median": rate}}
    keys = ("kind", "size", "message_bytes", "load", "to")
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


# -- the suite -------------------------------------------------------------------------------


def test_every_entry_of_the_suite_is_a_workload_that_can_be_run():
    assert len({entry.name for entry in ENTRIES}) == len(ENTRIES)
    for entry in ENTRIES:
        for quick in (False, True) if entry.quick else (False,):
            read = read_workload(entry.workload, list(entry.all_changes(quick=quick)))
            check_plans(read)
            assert read.messages * read.message_bytes <= 1_000_000_000


# -- the real thing -------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_a_small_run_measures_every_arm_and_loses_nothing(kafka_cluster, tmp_path, capsys):
    # Init: a few messages through a chain of two collectors.
    file = tmp_path / "small.toml"
    file.write_text(
        'kind = "tree"\nsize = 2\nmessage_bytes = 100\nload = 500\nmessages = 100\nwarm_up = 20\n'
        'pairs = 2\narms = ["plain", "ordered", "ordered-plain", "one-partition"]\n'
    )
    out = tmp_path / "result.json"
    cluster = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap})
    before = cluster.list_topics(timeout=PATIENCE_S).topics  # other tests share the cluster

    # Test.
    bench_run(str(file), bootstrap=kafka_cluster.bootstrap, out=out, output=Output.TABLE)

    # Check: each arm has its figures for each round, and compares with itself.
    result = json.loads(out.read_text())
    for arm in ("plain", "ordered", "ordered-plain", "one-partition"):
        assert len(result["arms"][arm]["endToEndLatency50pct"]) == 2
        assert result["arms"][arm]["aggregatedPublishDelayLatencyAvg"] > 0
    assert result["ratios"]["ordered"]["endToEndLatency50pct"]["median"] > 0
    assert "ordered / plain" in capsys.readouterr().out

    # No topic is left on the cluster; a run beside this one on the same broker takes its own away.
    def left():
        topics = cluster.list_topics(timeout=PATIENCE_S).topics.keys() - before.keys()
        return [name for name in topics if name.startswith("bench-")]

    until(lambda: not left(), "the end of its topics")

    # Compared with itself it is no worse; compared with a result three times as fast, exit code 1.
    bench_compare(out, out, max_regression=1.25, output=Output.TABLE)
    ratio = result["ratios"]["ordered"]["endToEndLatency50pct"]
    ratio["median"] = min(ratio["pairs"]) / 3
    ratio["pairs"] = [ratio["median"]] * 2
    faster = tmp_path / "faster.json"
    faster.write_text(json.dumps(result))
    with pytest.raises(typer.Exit):
        bench_compare(faster, out, max_regression=1.25, output=Output.TABLE)
