"""How much memory a collector and a consumer take to catch up: the growth with the backlog, in MiB.

    python -m bench.micro.memory [--behind 10000000] [--near 10000]

First they catch up from `near` messages of 100 B, then fresh processes do from `behind` more. The
figures are the differences of the greatest resident sizes that the kernel saw (VmHWM).
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.harness import figures
from bench.harness.rig import Rig, pause, standing
from multicast.consumer import Consumer
from multicast.errors import AmcastError, TimedOut

_PARTITIONS = 2
_MESSAGE_BYTES = 100
_SLOWEST_PER_S = 20_000


def measure(rig: Rig, *, near: int, behind: int) -> dict[str, float]:
    """Let both catch up twice; return the figures."""
    small = _catch_up(rig, near, near)
    large = _catch_up(rig, behind, near + behind)
    found: dict[str, float] = {}
    for role in small:
        found[f"{role}_growth_mib"] = round(large[role] - small[role], 1)
        found[f"{role}_peak_mib_near"] = round(small[role], 1)
        found[f"{role}_peak_mib_behind"] = round(large[role], 1)
    return found


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
                raise TimedOut(f"not all was ordered within {timeout_s:g} s")
            pause(0.1)
        ordering = _peak_mib(collectors.pids[0])
    figures.progress(f"consuming {total}")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.micro.memory",
            "--consume",
            rig.bootstrap,
            "--near",
            str(total),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    if done.returncode:
        raise AmcastError(f"the consumer ended with {done.returncode}: {done.stderr[-500:]}")
    return {"collector": ordering, "consumer": float(done.stdout)}


def _consume(bootstrap: str, total: int) -> float:
    """Read all there is, in batches; give this process's own peak in MiB."""
    with Consumer(bootstrap, topic="bench", name="C1", committed=False) as consumer:
        read = sum(len(batch.records) for batch in consumer.until_end())
    if read != total:
        raise AmcastError(f"{read} of {total} messages were delivered")
    return _peak_mib("self")


def _peak_mib(pid: int | str) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


def main(arguments: Sequence[str]) -> None:
    """Measure once and print it."""
    parser = figures.parser("memory", __doc__)
    parser.add_argument("--behind", type=int, default=10_000_000, help="messages")
    parser.add_argument("--near", type=int, default=10_000, help="messages")
    parser.add_argument("--consume", metavar="BOOTSTRAP", help="be the consumer of `near` messages")
    asked = parser.parse_args(arguments)
    if asked.consume:
        sys.stdout.write(f"{_consume(asked.consume, asked.near)}\n")
        return
    with standing(_PARTITIONS) as rig:
        found = measure(rig, near=asked.near, behind=asked.behind)
        told = figures.document("memory", found, kafka=rig.kafka, arguments=arguments)
    figures.show(told, asked.output)


if __name__ == "__main__":
    main(sys.argv[1:])
