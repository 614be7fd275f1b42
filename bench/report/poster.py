"""The poster's experiment: measure its topologies and data sets, compute all figures by Spark.

The poster compares plain Kafka, "TO with tree height" and "TO with bottleneck size" over data sets,
which it labels by r = log(number of messages) / log(bytes of a message). `run` measures the same on
one new broker, the clients write events, and Spark (`bench.pipeline`) makes latencies and rates of
them and judges the order. `poster_plots.py` makes the plots of the document that `run` returns.

    configuration   a topology of one size: producers, a tree's height, a bottleneck's consumers
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bench.cli import read_workload
from bench.comparison.run import SCHEMA_VERSION, Brokers, measure, own_broker
from bench.harness import facts
from bench.report.suite import POSTER
from multicast.errors import AmcastError, UsageError

KINDS = ("plain", "tree", "bottleneck")


@dataclass(frozen=True, slots=True)
class Experiment:
    """Which configurations and data sets (messages, bytes of one) are measured, how many rounds."""

    sizes: Sequence[int]
    data_sets: Sequence[tuple[int, int]]
    pairs: int


# The poster goes to 32; from 16 on each of two cores has eight processes or more to run.
FULL = Experiment((1, 2, 4, 8), tuple((count, size) for _, count, size in POSTER), pairs=3)
# Each size of a message up to 1 MB, and two numbers of messages for one size, twice.
QUICK = Experiment((1, 2), ((100, 10_000), (1000, 10_000), (100, 100_000), (100, 1_000_000)), 2)


def run(experiment: Experiment, *, command: str, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything on a new broker, and run Spark once over it; return one document.

    A configuration that fails is listed under `failed`. Raises `UsageError` if Spark is missing,
    `AmcastError` if no broker starts, Spark fails, or every configuration fails.
    """
    _refuse_without_spark()
    began = datetime.now(UTC)
    with own_broker(progress) as brokers:
        runs, failed = _measured(experiment, brokers, progress)
        if not runs:
            raise AmcastError(f"nothing could be measured: {failed[0]['error']}")
        pipeline = _judged([one["name"] for one in runs], brokers, progress)
        versions = facts.versions(brokers.kafka)
    return {
        "schema_version": SCHEMA_VERSION,
        "benchmark": "poster",
        "command": command,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round((datetime.now(UTC) - began).total_seconds(), 1),
        "machine": facts.machine(),
        "versions": versions,
        "source": facts.source(),
        "pairs": experiment.pairs,
        "runs": runs,
        "failed": failed,
        "pipeline": {
            key: pipeline[key] for key in ("events", "latencies", "rates", "lost", "order")
        },
    }


def _measured(
    experiment: Experiment, brokers: Brokers, progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Measure each configuration with each data set; return what was measured, and what failed."""
    runs: list[dict[str, Any]] = []
    failed: list[dict[str, str]] = []
    jobs = [
        (kind, size, *data_set)
        for kind in KINDS
        for size in experiment.sizes
        for data_set in experiment.data_sets
    ]
    for number, (kind, size, messages, message_bytes) in enumerate(jobs, start=1):
        name = f"poster-{kind}-{size}-{messages}x{message_bytes}"
        prefix = f"[{number}/{len(jobs)}] {name}"
        workload = read_workload(
            kind,
            [
                *(f"name={name}", f"size={size}", f"pairs={experiment.pairs}", "load=saturate"),
                *(f"messages={messages}", f"message_bytes={message_bytes}"),
                f"warm_up={messages // 10}",
                'arms=["plain"]' if kind == "plain" else 'arms=["plain", "ordered"]',
            ],
        )
        progress(prefix)
        try:
            measure(workload, brokers, events=name, progress=lambda _: None)
        except AmcastError as error:
            progress(f"{prefix}: FAILED: {error}")
            failed.append({"name": name, "error": str(error)})
        else:
            about = {"kind": kind, "size": size, "messages": messages, "bytes": message_bytes}
            runs.append({"name": name, **about, "r": workload.label})
    return runs, failed


def _refuse_without_spark() -> None:
    try:
        from bench.pipeline import session  # noqa: F401, PLC0415 - pyspark may be missing
    except ImportError as error:
        raise UsageError(
            "this command needs Spark, which is not installed: pip install 'amcast[spark]'"
        ) from error


def _judged(runs: list[str], brokers: Brokers, progress: Callable[[str], None]) -> dict[str, Any]:
    from bench.pipeline.report import PipelineRequest, report  # noqa: PLC0415 - see above
    from bench.pipeline.session import spark  # noqa: PLC0415
    from bench.pipeline.sources import RunSource  # noqa: PLC0415

    with (
        tempfile.TemporaryDirectory(prefix="amcast-poster-") as folder,
        spark(progress=progress) as session,
    ):
        source = RunSource(brokers.bootstrap, tuple(runs))
        return report(session, source, PipelineRequest(folder), progress=progress)
