"""Measures the time and memory of the history checker: `python -m bench.micro.checker`.

It writes a history, by default with a million messages and two million deliveries, to a file. A new
process reads and judges it, as `amcast verify` does, and prints one JSON object: seconds to read
and to judge, their CPU seconds (`cpu_s`), and the peak memory in bytes. With `--fault opposite` one
consumer delivers its last message of P2 first, so nearly all its deliveries lie on cycles.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from multicast.history import (
    HistoryBuilder,
    acknowledgement_line,
    delivery_line,
    end_line,
    interest_line,
    read,
)
from multicast.properties import check_all

INTERESTS = {"C1": ("P1", "P2", "P3"), "C2": ("P2", "P3", "P4"), "C3": ("P3", "P4", "P5")}
LOGS = ("P1", "P2", "P3", "P4", "P5", "P1+P3", "P2+P5")  # 2.0 deliveries a message, evenly used


def history_lines(messages: int, *, seed: int, fault: str) -> Iterator[str]:
    """Yield the lines of a correct history, or of one with the fault."""
    choose = random.Random(seed)  # noqa: S311 - a workload, not a secret
    offsets = dict.fromkeys(LOGS, 0)
    sequences: dict[str, list[tuple[str, str]]] = {name: [] for name in INTERESTS}
    for _ in range(messages):
        log = choose.choice(LOGS)
        message_id = f"{log}:{offsets[log]}"
        offsets[log] += 1
        to = log.split("+")
        yield acknowledgement_line(producer="p1", message_id=message_id, to=to, outcome="accepted")
        for name, interest in INTERESTS.items():
            if not set(interest).isdisjoint(to):
                sequences[name].append((message_id, log))
    if fault == "opposite":
        shared = next(entry for entry in reversed(sequences["C1"]) if entry[1] == "P2")
        sequences["C1"].remove(shared)
        sequences["C1"].insert(0, shared)
    for name, sequence in sequences.items():
        yield interest_line(consumer=name, interest=INTERESTS[name])
        for place, (message_id, log) in enumerate(sequence):
            yield delivery_line(
                consumer=name,
                instance="a",
                sequence=place,
                message_id=message_id,
                to=log.split("+"),
                cursor=f"1:K1:{place}",
            )
        yield end_line(consumer=name, instance="a")


def measure(path: Path) -> dict[str, object]:
    """Read and judge the history of a file in this process."""
    started, cpu_started = time.perf_counter(), time.process_time()
    builder = HistoryBuilder()
    with path.open("rb") as lines:
        read(lines, builder, source=str(path))
    history = builder.history()
    been_read = time.perf_counter()
    report = check_all(history)
    judged = time.perf_counter()
    return {
        "messages": report.messages,
        "deliveries": report.deliveries,
        "read_s": round(been_read - started, 2),
        "judge_s": round(judged - been_read, 2),
        "total_s": round(judged - started, 2),
        "cpu_s": round(time.process_time() - cpu_started, 2),
        "rss_bytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "verdicts": {entry.guarantee: entry.verdict for entry in report.verdicts},
    }


def main() -> None:
    """Write the history, and measure in a new process, which prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fault", choices=("none", "opposite"), default="none")
    parser.add_argument("--measure", type=Path, help="only judge this file")
    chosen = parser.parse_args()
    if chosen.measure is not None:
        sys.stdout.write(json.dumps(measure(chosen.measure)) + "\n")
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.jsonl"
        with path.open("w", encoding="ascii") as out:
            out.writelines(history_lines(chosen.messages, seed=chosen.seed, fault=chosen.fault))
        command = [sys.executable, "-m", "bench.micro.checker", "--measure", str(path)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
