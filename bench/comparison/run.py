"""Runs a workload: all arms on one cluster, in interleaved rounds; returns the result document.

The clients measure the times; this module commands them and combines their answers.

    brokers     the measured cluster, with the process IDs of local brokers
    maximum     messages/s of saturated plain Kafka, of which a load such as "10%" is a share
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
_SATURATED_ROUNDS = 3  # to find the maximum rate: a median needs three
_SATURATED_TIMES = 4  # as many messages as a round of the workload has, to reach a steady rate
_SHARE_S = 2.5  # the longest round at a share of the maximum; ten times more would take minutes


@dataclass(frozen=True, slots=True)
class Brokers:
    """A cluster to measure on; `pids` and `kafka` (its version) are known for a local one."""

    bootstrap: str
    pids: tuple[int, ...] = ()
    kafka: str = "not ours"


@contextmanager
def own_broker(progress: Callable[[str], None], *, count: int = 1) -> Iterator[Brokers]:
    """Start brokers on the loopback; they end with the context. Topics are on all of them.

    Java uses all its compilers, as for a long-running server. Brokers for tests use only the first
    level, to start sooner.
    """
    progress("starting a broker" if count == 1 else f"starting {count} brokers")
    own = LocalCluster(brokers=count, heap_mb=1024, java=("-XX:TieredStopAtLevel=4",))
    with own:
        pids = tuple(broker.pid for broker in own.status().brokers if broker.pid)
        yield Brokers(own.bootstrap, pids, own.version)


def run(
    workload: Workload,
    *,
    bootstrap: str | None = None,
    brokers: int = 1,
    events: str | None = None,
    progress: Callable[[str], None],
) -> dict[str, Any]:
    """Measure a workload on a cluster, by default new `brokers`; return the document.

    With a name for its `events`, clients write events after each round; order topics are kept.
    Raises `AmcastError` if a message was lost or a process ended.
    """
    if bootstrap is not None:
        return measure(workload, Brokers(bootstrap), events=events, progress=progress)
    with own_broker(progress, count=brokers) as own:
        return measure(workload, own, progress=progress)


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
    requested = workload
    rate_figures: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-bench-")))
        driver = open_driver("librdkafka", brokers.bootstrap)
        stack.callback(driver.close)
        cluster = MeasuredCluster(brokers.bootstrap, driver, brokers.pids, folder)
        if workload.share is not None:
            maximum = _maximum(workload, cluster, progress)
            workload = _at_rate(workload, maximum * workload.share)
            rate_figures = {"maximum": round(maximum, 1), "rate": round(workload.rate or 0, 1)}
            rate_figures |= {"messages": workload.messages, "warm_up": workload.warm_up}
        cluster = replace(cluster, run=events)
        arms = []
        for name in workload.arms:
            progress(f"setting up {name}")
            arms.append(stack.enter_context(Arm(workload, name, cluster)))
        rounds = _interleave(workload, arms, progress)
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": asdict(requested),
        "r": round(workload.label, 3),
        **rate_figures,
        **({"events": events} if events else {}),
        **({"brokers": len(brokers.pids)} if brokers.pids else {}),
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
    """Measure the rate that plain Kafka reaches with the same messages and clients."""
    folder = cluster.folder / "maximum"
    folder.mkdir()
    saturated = replace(
        workload, load=SATURATE, messages=_SATURATED_TIMES * workload.messages, arms=("plain",)
    )
    with Arm(saturated, "plain", replace(cluster, folder=folder)) as arm:
        progress("finding plain Kafka's maximum rate")
        arm.warm_up()
        rounds = [arm.round(number + 1) for number in range(_SATURATED_ROUNDS)]
    return statistics.median(
        min(
            round_.figures[name]
            for name in ("publishRate", "consumeRate")
            if name in round_.figures
        )
        for round_ in rounds
    )


def _at_rate(workload: Workload, rate: float) -> Workload:
    """Return the workload at a rate, with rounds of at most `_SHARE_S`."""
    messages = max(1, min(workload.messages, int(rate * _SHARE_S)))
    warm_up = min(workload.warm_up, messages // 10)
    return replace(workload, load=rate, messages=messages, warm_up=warm_up)


def _interleave(
    workload: Workload, arms: list[Arm], progress: Callable[[str], None]
) -> dict[str, list[Round]]:
    """Warm up all arms, then run the rounds A B A B."""
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
    """Combine an arm's rounds: a list for each figure, and the aggregates."""
    by_round = []
    for round_ in rounds:
        figures = dict(round_.figures)
        for name, latencies in zip(_HISTOGRAMS, _latencies(round_), strict=True):
            figures |= latencies.figures(name)
        by_round.append(figures)
    figures_of_arm: dict[str, Any] = dict(results.series(by_round))
    for name, values in list(figures_of_arm.items()):
        if "Latency" not in name:
            figures_of_arm[_aggregated(name)] = results.middle(values)
    for index, name in enumerate(_HISTOGRAMS):
        total = Latencies()
        for round_ in rounds:
            total.add(_latencies(round_)[index].encoded())
        figures_of_arm |= {_aggregated(key): value for key, value in total.figures(name).items()}
        if total.count:
            figures_of_arm[f"{_aggregated(name)}Histogram"] = total.encoded()
    return figures_of_arm


def _latencies(round_: Round) -> tuple[Latencies, Latencies, Latencies]:
    return round_.publish, round_.delay, round_.end_to_end


def _aggregated(name: str) -> str:
    return f"aggregated{name[0].upper()}{name[1:]}"
