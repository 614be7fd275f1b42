"""A year in half an hour: what is judged, and a short run on a real broker."""

import os
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from bench.harness.interests import file_of
from bench.year import __main__ as command
from bench.year.measures import MEASURES, PLAIN, Samples
from bench.year.speed import sped_up
from multicast.control import collectors_partition, order_topic
from topology.planner.solver import plan as solve

MINUTES = 30


class Elapsed(Samples):
    """Samples whose time is set."""

    seconds = 0.0


def samples_of(**late):
    """All measures are 100 in the minutes five to ten, and later what is given."""
    samples = Elapsed()
    for seconds, values in ((400.0, {}), (1700.0, late)):
        samples.seconds = seconds
        for measure in (*MEASURES, PLAIN):
            samples.note(measure, values.get(measure.partition(" ")[0], 100.0))
    return samples


def year_of(*, checkpoints=1500):
    """A year of this plan that had enough of all, but for checkpoints."""
    plan = solve(file_of({"C1": ["P1", "P2"], "C2": ["P2", "P3"]}))
    first, second = (each.name for each in plan.collectors)
    control = collectors_partition(plan.topic)
    segments = {"segment.ms": str(7 * 24 * 3600 * 1000)}
    return SimpleNamespace(
        plan=plan,
        control=control,
        named={first: range(1600), second: range(checkpoints)},
        acted=Counter({first: 60, second: 60}),
        settings={control.topic: segments, order_topic(plan.topic): segments},
        rolls=lambda _: 60,
    )


def judged(samples, year=None):
    return command.report(year or year_of(), samples, 60 * MINUTES)


def test_a_year_in_which_nothing_grows_is_right(capsys):
    assert judged(samples_of())
    assert "no verdict" not in capsys.readouterr().out


def test_memory_that_grows_by_more_than_a_tenth_is_wrong(capsys):
    assert judged(samples_of(memory=109.0))
    assert not judged(samples_of(memory=112.0))
    assert capsys.readouterr().out.count("not within 10 %") == 2


def test_the_control_topic_may_grow_as_its_rule_says_and_no_more(capsys):
    # Five checkpoints of each of two collectors when the time doubles, of 100 at 450 s.
    assert judged(samples_of(control=125.0))
    assert not judged(samples_of(control=135.0))
    assert capsys.readouterr().out.count("not within 10 %") == 2


def test_a_measure_without_a_value_is_wrong():
    assert not judged(samples_of(memory=0.0))


def test_a_year_with_too_few_checkpoints_is_wrong(capsys):
    assert not judged(samples_of(), year_of(checkpoints=1400))
    assert capsys.readouterr().out.count("too few") == 1


def test_the_time_to_open_is_not_judged_where_the_machine_became_slower(capsys):
    slower = {"consumer": 150.0, "producer": 150.0, "collector's": 150.0}
    assert not judged(samples_of(**slower))
    only_time = samples_of(plain=150.0)
    for measure in command.OPENS.values():
        only_time.note(measure, 200.0)
    assert judged(only_time)
    assert "no verdict on the time to open" in capsys.readouterr().out


def test_only_times_of_a_topic_are_sped_up_and_retention_stays_above_two_minutes():
    settings = {
        "retention.ms": str(7 * 24 * 3600 * 1000),
        "segment.ms": "600000",
        "max.compaction.lag.ms": str(2**63 - 1),
        "delete.retention.ms": "86400000",
        "segment.bytes": "1073741824",
    }
    faster = {"segment.ms": "30", "delete.retention.ms": "4320"}
    assert sped_up(settings) == {**faster, "retention.ms": "120000"}
    assert sped_up({**settings, "retention.ms": "-1"}) == faster


@pytest.mark.parametrize("minutes", ["0", "-1", "nan", "many", "1e9"])
def test_minutes_that_are_none_are_bad_arguments(minutes, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["year", f"--minutes={minutes}"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "--minutes" in capsys.readouterr().err


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_a_short_run_counts_judges_no_ratio_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "bench.year", "--minutes", "1"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no verdict on the ratios" in done.stdout
    rows = dict(line.rsplit(maxsplit=2)[:2] for line in done.stdout.splitlines()[1:5])
    assert len(rows) == 4
    assert all(int(count.replace(",", "")) > 0 for count in rows.values())
    assert list(tmp_path.iterdir()) == []
