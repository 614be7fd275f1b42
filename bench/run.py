"""Run a workload: all arms on one cluster, in interleaved rounds, and the document of it.

The clients take the times; here commands are given and answers put together.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import facts, results
from bench.arms import Arm, Cluster, Round
from bench.histogram import DIGITS, Latencies
from bench.workload import Workload
from multicast.drivers import open_driver
from multicast.local import LocalCluster

SCHEMA_VERSION = 1
_HISTOGRAMS = ("publishLatency", "publishDelayLatency", "endToEndLatency")


def run(
    workload: Workload, *, bootstrap: str | None = None, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Measure a workload on a cluster, one's own where none is named; give the document.

    Raises `AmcastError` where a message was lost or a process ended.
    """
    began = datetime.now(UTC)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        pids: tuple[int, ...] = ()
        kafka = "not ours"
        before = facts.machine()
        if bootstrap is None:
            progress("starting a broker")
            own = stack.enter_context(LocalCluster(brokers=1))
            bootstrap, kafka = own.bootstrap, own.version
            pids = tuple(broker.pid for broker in own.status().brokers if broker.pid)
        driver = open_driver(workload.driver, bootstrap)
        stack.callback(driver.close)
        cluster = Cluster(bootstrap, driver, pids, folder)
        arms = []
        for name in workload.arms:
            progress(f"setting up {name}")
            arms.append(stack.enter_context(Arm(workload, name, cluster)))
        rounds = _interleave(workload, arms, progress)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": asdict(workload),
        "seed": workload.seed,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 1),
        "machine": before,
        "versions": facts.versions(kafka),
        "source": facts.source(),
        "clock": "monotonic, one machine; latency counts from the intended send time",
        "histogram_digits": DIGITS,
        "arms": {name: _describe(given) for name, given in rounds.items()},
    }
    base, *others = workload.arms
    document["base"] = base
    document["ratios"] = {
        arm: results.ratios(document["arms"][base], document["arms"][arm]) for arm in others
    }
    return document


def _interleave(
    workload: Workload, arms: list[Arm], progress: Callable[[str], None]
) -> dict[str, list[Round]]:
    """Run the rounds A B A B, after one that is not measured."""
    for arm in arms:
        progress(f"warming up {arm.name}")
        arm.warm_up()
    rounds: dict[str, list[Round]] = {arm.name: [] for arm in arms}
    for pair in range(1, workload.pairs + 1):
        for arm in arms:
            progress(f"pair {pair} of {workload.pairs}: {arm.name}")
            rounds[arm.name].append(arm.round(pair))
    return rounds


def _describe(rounds: list[Round]) -> dict[str, Any]:
    """Put an arm's rounds together: a list a figure, and the aggregates."""
    by_round = []
    for one in rounds:
        figures = dict(one.figures)
        for name, latencies in zip(_HISTOGRAMS, _latencies(one), strict=True):
            figures |= latencies.figures(name)
        by_round.append(figures)
    found: dict[str, Any] = dict(results.series(by_round))
    for name, values in list(found.items()):
        if "Latency" not in name:
            found[_aggregated(name)] = results.middle(values)
    for at, name in enumerate(_HISTOGRAMS):
        total = Latencies()
        for one in rounds:
            total.add(_latencies(one)[at].encoded())
        found |= {_aggregated(key): value for key, value in total.figures(name).items()}
        if total.count:
            found[f"{_aggregated(name)}Histogram"] = total.encoded()
    return found


def _latencies(one: Round) -> tuple[Latencies, Latencies, Latencies]:
    return one.publish, one.delay, one.end_to_end


def _aggregated(name: str) -> str:
    return f"aggregated{name[0].upper()}{name[1:]}"
