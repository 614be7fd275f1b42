"""The table of targets: limits, figures taken from documents, verdicts."""

import pytest

from bench.cli import read_workload
from bench.report import targets
from bench.report.suite import ENTRIES, SMALL
from bench.report.targets import P50, PAIRS_MIN, RATE, TargetVerdict, judge

TARGETS = [target for row in targets.TABLE for target in row.targets]
BY_NAME = {entry.name: entry for entry in ENTRIES}


def document(name, *, rounds=PAIRS_MIN, **arms):
    """A document of an entry of the suite, every figure 1.0 in every round but for those given as
    {arm: {figure: value or list}}."""
    workload = read_workload(BY_NAME[name].workload, list(BY_NAME[name].changes))
    by_arm = {}
    for arm in workload.arms:
        figures = {P50: 1.0, targets.P99: 1.0, RATE: 1.0, targets.PER_CPU: 1.0}
        figures |= arms.get(arm) or {"cpuSeconds.brokers": 1.0}
        by_arm[arm] = {
            key: value if isinstance(value, list) else [value] * rounds
            for key, value in figures.items()
        }
    return {"schema_version": 1, "workload": {"name": name, "size": workload.size}, "arms": by_arm}


def judged(text, documents):
    (target,) = [
        entry for entry in judge(documents) if f"{entry.row}: {entry.target.text}".startswith(text)
    ]
    return target


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"{target.document} {target.text}")
def test_the_suite_measures_every_target_with_enough_pairs(target):
    if target.document in SMALL:
        value = dict.fromkeys(("share_at_100k", "idle_share"), 1.0)
        assert target.figure({"figures": value}).median == 1.0
        return
    entry = BY_NAME[target.document]
    assert read_workload(entry.workload, list(entry.changes)).pairs >= PAIRS_MIN
    # KeyError where the workload lacks the arm that the target divides.
    assert target.figure(document(target.document)).pairs == PAIRS_MIN


def test_a_ratio_is_the_median_of_pairs_with_the_least_and_the_greatest():
    given = document(
        "latency-100B-200", ordered={P50: [2.0, 2.4, 2.6, 2.8, 2.2, 2.0, 9.0]}, plain={P50: 2.0}
    )
    row = "one collector, open loop, against plain Kafka"
    judgement = judged(f"{row}: p50, 100 B at 200/s", {"latency-100B-200": given})
    figure = judgement.figure
    assert (figure.median, figure.least, figure.greatest) == (1.2, 1.0, 4.5)
    assert (figure.pairs, judgement.verdict) == (7, TargetVerdict.MET)


def test_few_pairs_are_not_enough_to_say_met_and_what_is_missing_is_not_measured():
    row = 'against "put it all into one partition"'
    judgement = judged(row, {"thirds": document("thirds", rounds=6, ordered={RATE: 9.0})})
    assert (judgement.verdict, judgement.figure.median) == (TargetVerdict.TOO_FEW, 9.0)
    judgement = judged(row, {})
    assert (judgement.verdict, judgement.figure) == (TargetVerdict.NOT_MEASURED, None)
    assert judgement.command == "amcast bench suite --out DIR --only thirds"
    failed = {"schema_version": 1, "workload": {"name": "thirds"}, "error": "TimedOut: too late"}
    judgement = judged(row, {"thirds": failed})
    assert (judgement.verdict, judgement.figure) == (TargetVerdict.NOT_MEASURED, None)
    assert judgement.error == "TimedOut: too late"
