"""Measures `Consumer.workers`: n at a time against one, side by side.

    python -m bench.micro.workers [--rounds 3] [--at-a-time 4 16 64]

Threads and tasks wait for 10 ms at each message; processes compute for some 10 ms, and there are
two of them against one. A row is the median of the rounds' ratios; each round measures one and n.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

from bench.harness.rig import Rig, standing
from multicast.aio import AsyncConsumer
from multicast.consuming.batches import Message
from multicast.consuming.consumer import Consumer

_WAIT_S = 0.010
_COUNTED = 150  # messages for each worker; as many tenths before them are not counted
_STEPS = 200_000  # some 10 ms of Python


@cache
def _opened(file: Path) -> int:
    return os.open(file, os.O_WRONLY | os.O_APPEND)


def _stamp(file: Path) -> None:
    """Add the time to a file that all workers share."""
    os.write(_opened(file), time.monotonic_ns().to_bytes(8, "big"))


def waiting(file: Path, _: Message) -> None:
    """Wait in a thread."""
    threading.Event().wait(_WAIT_S)
    _stamp(file)


async def waiting_in_task(file: Path, _: Message) -> None:
    """Wait in a task."""
    await asyncio.sleep(_WAIT_S)
    _stamp(file)


def computing(file: Path, _: Message) -> None:
    """Compute."""
    sum(range(_STEPS))
    _stamp(file)


def rate(rig: Rig, kind: str, n: int) -> float:
    """Give the messages a second that n workers handle."""
    messages = _COUNTED * n
    file = rig.folder / f"stamps-{time.monotonic_ns()}"
    file.touch()
    options: dict[str, Any] = {
        "n": n,
        "keys": lambda message: {message.message_id.offset % 1009},
        "stop": lambda: file.stat().st_size >= 8 * messages,
    }
    opened: dict[str, Any] = {"topic": rig.topic, "name": "C1", "committed": False}
    if kind == "tasks":
        handle = partial(waiting_in_task, file)

        async def work() -> None:
            async with AsyncConsumer(rig.bootstrap, **opened) as consumer:
                await consumer.workers(handle, **options)

        asyncio.run(work())
    else:
        handler = partial(waiting if kind == "threads" else computing, file)
        with closing(Consumer(rig.bootstrap, **opened)) as consumer:
            consumer.workers(handler, processes=kind == "processes", **options)
    stamps = file.read_bytes()
    times = sorted(int.from_bytes(stamps[at : at + 8], "big") for at in range(0, len(stamps), 8))
    first = messages // 10
    return (messages - 1 - first) / (times[messages - 1] - times[first]) * 1e9


def main() -> None:
    """Measure all kinds, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-a-time", type=int, nargs="+", default=[4, 16, 64])
    given = parser.parse_args()
    with standing(1) as rig:
        rig.fill(2 * _COUNTED * max(given.at_a_time), 100)
        for kind, at_a_time in (
            ("threads", given.at_a_time),
            ("tasks", given.at_a_time),
            ("processes", [2]),
        ):
            for n in at_a_time:
                rounds = range(given.rounds)
                ratios = [rate(rig, kind, n) / rate(rig, kind, 1) for _ in rounds]
                sys.stdout.write(f"{kind:9} {n:3} at a time: {median(ratios):6.2f} times one\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
