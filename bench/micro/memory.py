"""Measures how the memory of a collector and a consumer grows with their backlog, in MiB.

    python -m bench.micro.memory [--behind 10000000] [--near 10000]

They first catch up with `near` messages of 100 B; then new processes catch up with `behind` more.
The figures are the differences of the peak resident sizes (VmHWM).
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.harness import figures
from bench.harness.client import Talk
from bench.harness.hosts import ClientProcess, peak_mib
from bench.harness.rig import Rig, pause, standing
from multicast.consuming.consumer import Consumer
from multicast.errors import AmcastError, TimedOut

_MODULE = "bench.micro.memory"
_PARTITIONS = 2  # the fewest that need a collector
_MESSAGE_BYTES = 100
_SLOWEST_PER_S = 20_000  # messages/s; sets the time-out, so a slower run fails


def measure(rig: Rig, *, near: int, behind: int) -> dict[str, float]:
    """Let a collector and a consumer catch up twice; return the figures."""
    small = _catch_up(rig, near, near)
    large = _catch_up(rig, behind, near + behind)
    measured: dict[str, float] = {}
    for role in small:
        measured[f"{role}_growth_mib"] = round(large[role] - small[role], 1)
        measured[f"{role}peak_mib_near"] = round(small[role], 1)
        measured[f"{role}peak_mib_behind"] = round(large[role], 1)
    return measured


def _catch_up(rig: Rig, more: int, total: int) -> dict[str, float]:
    """Append `more` messages, order them, read all `total`; return the peaks in MiB."""
    figures.progress(f"appending {more} messages")
    rig.fill(more, _MESSAGE_BYTES)
    timeout_s = 30.0 + total / _SLOWEST_PER_S
    with rig.collectors() as collectors:
        figures.progress("ordering them")
        collectors.wait_healthy()
        deadline = time.monotonic() + timeout_s
        while sum(json.loads(line)["records"] for line in collectors.work()) < total:
            if time.monotonic() > deadline:
                raise TimedOut(f"some messages were not ordered within {timeout_s:g} s")
            pause(0.1)
        ordering = peak_mib(collectors.pids[0])
    figures.progress(f"consuming {total}")
    task = CatchUp(rig.bootstrap)
    with ClientProcess(f"consumer-{total}", catch_up, task, rig.folder) as client:
        answer = client.answer(timeout_s)
    if answer["read"] != total:
        raise AmcastError(f"{answer['read']} of {total} messages were delivered")
    return {"collector": ordering, "consumer": answer["peak_mib"]}


@dataclass(frozen=True, slots=True)
class CatchUp:
    """Deliver all messages of the rig."""

    bootstrap: str


def catch_up(task: CatchUp, talk: Talk) -> None:
    """Deliver them in batches; the answer is their number, and the process's peak memory."""
    with Consumer(task.bootstrap, topic="bench", name="C1", committed=False) as consumer:
        read = sum(len(batch.records) for batch in consumer.until_end())
    talk.answer({"read": read, "peak_mib": peak_mib("self")})


def main(arguments: Sequence[str]) -> None:
    """Measure once, and print the figures."""
    parser = figures.parser(_MODULE, __doc__)
    parser.add_argument("--behind", type=int, default=10_000_000, help="messages")
    parser.add_argument("--near", type=int, default=10_000, help="messages")
    options = parser.parse_args(arguments)
    with standing(_PARTITIONS) as rig:
        measured = measure(rig, near=options.near, behind=options.behind)
        document = figures.document(_MODULE, measured, kafka=rig.kafka, arguments=arguments)
    figures.show(document, options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
