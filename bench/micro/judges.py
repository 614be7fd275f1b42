"""Measures both judges of an exported table on the same rows.

    python -m bench.micro.judges [--rows 1000000]

One broker; one collector orders messages of 100 bytes in two partitions; `amcast export` writes
them as Parquet. Then, one after the other, each in a new process:

    verify    `amcast verify --parquet`: the rows as one more reading of their consumer, against a
              replay of it; all guarantees, with `multicast/order.py`'s acceptance of order records
    spark     the judge of `amcast bench pipeline` (`bench/pipeline/judge.py`) on the same files:
              places from the raw order stream by `bench/pipeline/rule.py`, joined with the rows;
              it notices a moved or doubled row and one without a place, but no missing row

Printed are seconds, CPU seconds and the largest process of each, without the broker's.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.harness import figures
from bench.harness.cost import run_measured
from bench.harness.rig import standing
from multicast.errors import AmcastError

_MESSAGE_BYTES = 100
_PARTITIONS = 2
_CONSUMER = "C1"  # of `standing`


def judge_in_spark(bootstrap: str, topic: str, folder: Path) -> None:
    """Judge an export by the pipeline's judge; raises `AmcastError` where it finds a violation."""
    from bench.pipeline import judge  # noqa: PLC0415 - pyspark may be missing
    from bench.pipeline.report import read_order  # noqa: PLC0415
    from bench.pipeline.rule import EPOCH_PLACES  # noqa: PLC0415
    from bench.pipeline.session import spark  # noqa: PLC0415
    from bench.pipeline.sources import (  # noqa: PLC0415
        RecordedArm,
        RunSource,
        order_records,
        statements,
    )

    arm = RecordedArm(topic, "export", topic, True, 0, {_CONSUMER: ()}, True)
    with spark(progress=figures.progress) as session:
        source = RunSource(bootstrap, ())
        order = read_order(statements(session, source, [topic]))
        read = judge.read_streams(order_records(session, source, [topic]), order.rules).cache()
        runs = judge.runs(read)
        bucket = judge.bucket_of(runs)
        events = session.read.parquet(str(folder / "*.parquet")).selectExpr(
            *(f"'{topic}' as run", "'export' as arm", f"'{topic}' as topic", "'a' as instance"),
            *(f"'{_CONSUMER}' as consumer", "'consumer' as role", "log", "offset"),
            f"epoch * {EPOCH_PLACES} + position as sequence",
        )
        placed = judge.placed(events, runs, order, [arm], bucket).cache()
        verdict = judge.verdict(placed, runs, order, bucket)
        moved = placed.where("place <> sequence").count()
    if moved or not verdict.holds:
        raise AmcastError(f"{moved} rows have another position than the stream; {verdict}")
    figures.progress(f"{verdict.deliveries} rows hold")


def main(arguments: Sequence[str]) -> None:
    """Measure, and print the figures."""
    parser = figures.parser("judges", __doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the export")
    parser.add_argument("--judge", nargs=3, help="BOOTSTRAP TOPIC FOLDER: only the judge in Spark")
    options = parser.parse_args(arguments)
    if options.judge:
        bootstrap, topic, exported = options.judge
        judge_in_spark(bootstrap, topic, Path(exported))
        return
    with ExitStack() as stack:
        rig = stack.enter_context(standing(_PARTITIONS))
        stack.enter_context(rig.collectors()).wait_healthy()
        figures.progress(f"appending {options.rows} messages")
        rig.fill(options.rows, _MESSAGE_BYTES)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="amcast-judges-")))
        exported = folder / "export"
        cluster = ["-b", rig.bootstrap, "-t", rig.topic]
        amcast = [sys.executable, "-m", "multicast"]
        export = ["export", "--consumer", _CONSUMER, "--to", str(exported), "--timeout", "120"]
        commands = {
            "export": [*amcast, *export, *cluster],
            "verify": [*amcast, "verify", "--parquet", str(exported), *cluster],
            "spark": [sys.executable, "-m", "bench.micro.judges", "--judge", rig.bootstrap,
                      rig.topic, str(exported)],
        }  # fmt: skip
        measured: dict[str, float] = {}
        for name, command in commands.items():
            figures.progress(name)
            cost = run_measured(command, folder / f"{name}.log")
            measured[f"{name}_s"] = round(cost.seconds, 1)
            measured[f"{name}_cpu_s"] = round(cost.cpu_s, 1)
            measured[f"{name}_largest_process_mib"] = round(cost.resident_mib)
        document = figures.document("judges", measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
