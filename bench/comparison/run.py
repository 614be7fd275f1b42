"""Run a workload: all arms on one cluster, in interleaved rounds, and the document of it.

The clients take the times; here commands are given and answers put together.

    brokers     the cluster that is measured on, with its processes where they are ours
    maximum     messages/s of plain Kafka, saturated: what a load such as "10%" is a share of
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.comparison import results
from bench.comparison.arms import Arm, MeasuredCluster, Round
from bench.comparison.workload import SATURATE, Workload
from bench.harness import facts
from bench.harness.histogram import DIGITS, Latencies
from multicast.drivers import open_driver
from multicast.local.cluster import LocalCluster

SCHEMA_VERSION = 1
_HISTOGRAMS = ("publishLatency", "publishDelayLatency", "endToEndLatency")
_SATURATED_ROUNDS = 3
_SATURATED_TIMES = 4  # as many messages as a round of the workload has
_SHARE_S = 2.5


@dataclass(frozen=True, slots=True)
class Brokers:
    """A cluster to measure on; `pids` and `kafka`, its version, where it is ours."""

    bootstrap: str
    pids: tuple[int, ...] = ()
    kafka: str = "not ours"


@contextmanager
def own_broker(progress: Callable[[str], None]) -> Iterator[Brokers]:
    """Start a broker on the loopback; it ends with the context.

    Java compiles as it does for a server that stays up; what is started for tests stops at the
    first level, to be there sooner.
    """
    progress("starting a broker")
    with LocalCluster(brokers=1, heap_mb=1024, java=("-XX:TieredStopAtLevel=4",)) as own:
        pids = tuple(broker.pid for broker in own.status().brokers if broker.pid)
        yield Brokers(own.bootstrap, pids, own.version)


def run(
    workload: Workload,
    *,
    bootstrap: str | None = None,
    events: str | None = None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measure a workload on a cluster, one's own where none is named; return the document.

    With a name for its `events` clients write them after each round, and the topics stay. Raises
    `AmcastError` where a message was lost or a process ended.
    """
    if bootstrap is not None:
        return measure(workload, Brokers(bootstrap), events=events, progress=progress)
    with own_broker(progress) as brokers:
        return measure(workload, brokers, progress=progress)


def measure(
    workload: Workload,
    brokers: Brokers,
    *,
    events: str | None = None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measure a workload on these brokers; return the document. Raises as `run` does."""
    began = datetime.now(UTC)
    before = facts.machine()
    asked = workload
    found: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        driver = open_driver(workload.driver, brokers.bootstrap)
        stack.callback(driver.close)
        cluster = MeasuredCluster(brokers.bootstrap, driver, brokers.pids, folder)
        if workload.share is not None:
            maximum = _maximum(workload, cluster, progress)
            workload = _at_rate(workload, maximum * workload.share)
            found = {"maximum": round(maximum, 1), "rate": round(workload.rate or 0, 1)}
            found |= {"messages": workload.messages, "warm_up": workload.warm_up}
        cluster = replace(cluster, run=events)
        arms = []
        for name in workload.arms:
            progress(f"setting up {name}")
            arms.append(stack.enter_context(Arm(workload, name, cluster)))
        rounds = _interleave(workload, arms, progress)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": asdict(asked),
        "r": round(workload.label, 3),
        **found,
        **({"events": events} if events else {}),
        "seed": workload.seed,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 1),
        "machine": before,
        "versions": facts.versions(brokers.kafka),
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


def _maximum(
    workload: Workload, cluster: MeasuredCluster, progress: Callable[[str], None]
) -> float:
    """Find the rate that plain Kafka reaches with the same messages and clients."""
    folder = cluster.folder / "maximum"
    folder.mkdir()
    saturated = replace(
        workload,
        load=SATURATE,
        messages=_SATURATED_TIMES * workload.messages,
        arms=("plain",),
    )
    with Arm(saturated, "plain", replace(cluster, folder=folder)) as arm:
        progress("finding plain Kafka's maximum rate")
        arm.warm_up()
        rounds = [arm.round(number + 1) for number in range(_SATURATED_ROUNDS)]
    return statistics.median(
        min(one.figures[name] for name in ("publishRate", "consumeRate") if name in one.figures)
        for one in rounds
    )


def _at_rate(workload: Workload, rate: float) -> Workload:
    """Return the workload at a rate that was found, with rounds that do not last too long."""
    messages = max(1, min(workload.messages, int(rate * _SHARE_S)))
    warm_up = min(workload.warm_up, messages // 10)
    return replace(workload, load=rate, messages=messages, warm_up=warm_up)


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
            arm.write_events(pair)
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
