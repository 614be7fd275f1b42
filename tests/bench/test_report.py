"""The report: the plots of a run, and a page that needs no other file."""

import json

import pytest

from bench.comparison.workload import from_document
from bench.harness.histogram import Latencies
from bench.report.cli import report
from bench.report.data import plots
from bench.report.report import write_report
from bench.report.targets import P50, PER_CPU, RATE, judge
from tests.helpers.pages import Page
from topology.output import Output

LATENCIES = Latencies()
LATENCIES.record([1_000_000 * at for at in range(1, 1001)])


def document(name, *, busy=0.5, **changes):
    """A document as a run of a small workload may write it."""
    given = {"kind": "one", "size": 2, "message_bytes": 100, "load": 200, "messages": 90}
    given |= {"warm_up": 10, "arms": ["plain", "ordered"]} | changes
    made = from_document({"name": name, **given}, name=name)
    figures = {
        P50: [1.0, 2.0, 4.0],
        RATE: [100.0, 200.0, 400.0],
        PER_CPU: [1000.0] * 3,
        "aggregatedBusyCores": busy,
        "aggregatedEndToEndLatencyHistogram": LATENCIES.encoded(),
    }
    return {
        "schema_version": 1,
        "workload": {**given, "name": name, "pairs": 3},
        "r": made.label,
        "arms": dict.fromkeys(made.arms, figures),
        "machine": {"cpus": 2, "cpu_model": "a <fast> one", "memory": "1 kB"},
        "versions": {"kafka": "4.3.1"},
        "source": {"commit": "abc", "changed": True},
        "command": f"amcast bench run {name}",
        "seed": 7,
        "seconds": 1.5,
    }


def full():
    names = {
        "latency-100B-200": {"arms": ["plain", "ordered", "ordered-plain", "algorithm1"]},
        "latency-1MB-20": {"message_bytes": 1_000_000, "load": 20},
        "backlog-1kB": {"load": "backlog", "message_bytes": 1000},
        "poster-100x10kB": {"load": "saturate", "message_bytes": 10_000, "messages": 100},
        "tree-1": {"kind": "tree", "size": 1},
        "tree-16": {"kind": "tree", "size": 16, "load": 20, "busy": 1.95},
        "bottleneck-2": {"kind": "bottleneck"},
    }
    return {name: document(name, **changes) for name, changes in names.items()}


# -- the page -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_page_is_whole_and_needs_no_other_file():
    documents = full()
    documents["thirds"] = {
        "schema_version": 1,
        "workload": {**documents["tree-1"]["workload"], "name": "thirds"},
        "error": "TimedOut: <late>",
    }
    text = write_report(documents, judge(documents))
    page = Page(text)
    assert len(page.ids) == len(set(page.ids)), "ids are unique, or drawings take each other's"
    assert page.refers, "drawings refer to their own markers"
    assert {one.removeprefix("#") for one in page.refers} <= set(page.ids)
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "@import" not in text
    assert text.count('role="img"') == len(plots(documents)) == text.count("<svg")
    text_of_page = " ".join(page.texts)
    for fact in ("a <fast> one", "kafka 4.3.1", "abc with changes", "TimedOut: <late>", "seed",
                 "amcast bench run tree-16", "amcast bench suite --out DIR --only backlog-100B",
                 "ordered, tickets", "p50 end to end, ms"):  # fmt: skip
        assert fact in text_of_page
    assert write_report(documents, judge(documents)) == text, "one run gives one page"


def test_the_command_reads_folders_and_prints_the_targets_as_json(tmp_path, capsys):
    for name, entry in full().items():  # a byte-order mark, as editors of Windows write it
        (tmp_path / f"{name}.json").write_text(json.dumps(entry), encoding="utf-8-sig")
    (tmp_path / "plan.json").write_text('{"schema_version": 1, "topic": "A"}')
    report([tmp_path], output=Output.JSON)
    printed = json.loads(capsys.readouterr().out)
    by_target = {(entry["document"], entry["mark"]): entry for entry in printed["marks"]}
    target = by_target["backlog-1kB", "1 kB"]
    assert (target["median"], target["pairs"], target["verdict"]) == (1.0, 3, "too few pairs")
    assert by_target["memory", "a collector's growth"]["verdict"] == "not measured"
    report([tmp_path], output=Output.TABLE)
    assert "too few pairs" in capsys.readouterr().out
