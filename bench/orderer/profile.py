"""Run `amcast` under Python's profiler, all threads of it: what their time goes to.

    python -m bench.orderer.profile FILE cpu|wall osn run …

What is counted is what happens between SIGUSR1 and SIGUSR2; without them, all. FILE is written
when the command ends: JSON, seconds, the largest first. With `cpu` a function's time is its
thread's CPU time, so what waits costs nothing; with `wall` it is the time that passed, waiting
included: for a disk, a lock, the network, or for work.

    threads     on a CPU, by thread; those that Python did not start, too, by their kernel's name
    queued      ready to run, but others had the CPUs, by thread
    functions   in the function itself, not in what it calls: over all threads
    with_calls  in it and in all that it calls
    calls       how often it was called

The profiler makes calls of small functions look dearer than they are; shares of what is written in
C, as hashing, verifying and sending, are too small by as much.
"""

from __future__ import annotations

import cProfile
import json
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from bench.harness.threads import accounts
from multicast.cli.main import main as amcast

_TOLD_MAX = 300
_ROOT = Path(__file__).resolve().parents[2]
CLOCKS: Mapping[str, Callable[[], float]] = {"cpu": time.thread_time, "wall": time.perf_counter}
PARTS = ("threads", "queued", "functions", "with_calls", "calls")
Found = dict[str, defaultdict[str, float]]


class Profiler:
    """Profiles this thread from `start` to `stop`, and all threads that start in between."""

    def __init__(self, clock: str) -> None:
        self._clock = CLOCKS[clock]
        self._profiles: list[cProfile.Profile] = []
        self._before = _nothing()
        self._used_before = 0.0
        self._told: dict[str, Any] | None = None

    def start(self) -> None:
        """Begin to profile."""
        threading.setprofile(self._enable)
        self._enable()
        self.begin()

    def begin(self) -> None:
        """Forget what was counted so far."""
        self._used_before = time.process_time()
        self._before = self._found()

    def stop(self) -> dict[str, Any]:
        """End, and give what was counted since it began; a second time, what it gave before."""
        if self._told is None:
            used = time.process_time() - self._used_before
            found = self._found()
            threading.setprofile(None)
            self._profiles[0].disable()
            self._told = {"cpu_seconds": round(used, 3)}
            for part in PARTS:
                before = self._before[part]
                since = {name: amount - before[name] for name, amount in found[part].items()}
                self._told[part] = _largest(since)
        return self._told

    def _enable(self, *_: object) -> None:
        """Profile the thread that calls; a thread's first event does, too."""
        profile = cProfile.Profile(self._clock)
        self._profiles.append(profile)
        profile.enable()

    def _found(self) -> Found:
        found = _nothing()
        self._profiles[0].disable()  # what it costs to look is not to be seen
        for profile in self._profiles:
            for entry in profile.getstats():
                name = _named(entry.code)
                found["functions"][name] += entry.inlinetime
                found["with_calls"][name] += entry.totaltime
                found["calls"][name] += entry.callcount
        for thread, used, queued in _threads():
            found["threads"][thread] += used
            found["queued"][thread] += queued
        self._profiles[0].enable()
        return found


def merged(profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up what several processes wrote."""
    sums = _nothing()
    for profile in profiles:
        for part in PARTS:
            for name, seconds in profile[part].items():
                sums[part][name] += seconds
    return {
        "cpu_seconds": round(sum(profile["cpu_seconds"] for profile in profiles), 3),
        **{part: _largest(sums[part]) for part in PARTS},
    }


def _threads() -> Iterator[tuple[str, float, float]]:
    """Give each thread's name, and its seconds on a CPU and in the queue for one."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for one in accounts("self"):
        yield names.get(one.thread, f"({one.name})"), one.used, one.queued


def _nothing() -> Found:
    return {part: defaultdict(float) for part in PARTS}


def _named(code: CodeType | str) -> str:
    if isinstance(code, str):
        return code  # of a function in C: "<built-in method posix.fsync>"
    path = Path(code.co_filename)
    if path.is_relative_to(_ROOT) and "site-packages" not in path.parts:
        return f"{path.relative_to(_ROOT).as_posix()}:{code.co_qualname}"
    return f"{'/'.join(path.parts[-2:])}:{code.co_qualname}"


def _largest(found: Mapping[str, float]) -> dict[str, float]:
    ranked = sorted(found.items(), key=lambda pair: -pair[1])[:_TOLD_MAX]
    return {name: round(amount, 3) for name, amount in ranked if amount >= 0.001}


def main() -> None:
    """Run the command under the profiler; write the file, however the command ends."""
    file, clock, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    profiler = Profiler(clock)
    signal.signal(signal.SIGUSR1, lambda *_: profiler.begin())
    signal.signal(signal.SIGUSR2, lambda *_: profiler.stop() and None)
    profiler.start()
    try:
        amcast()
    finally:
        file.write_text(json.dumps(profiler.stop()), encoding="utf-8")


if __name__ == "__main__":
    main()
