"""Run `amcast` under Python's profiler, on all its threads, to see where their time goes.

    python -m bench.orderer.profile FILE cpu|wall osn run …

Counting starts at SIGUSR1 and stops at SIGUSR2; without the signals it covers the whole run. FILE
is JSON, in seconds, the largest entries first, and is written when the command ends. With `cpu` a
function's time is its thread's CPU time, so waiting costs nothing; with `wall` it is elapsed time,
which includes waiting for a disk, a lock, the network, or for work.

    threads     time on a CPU, by thread; also threads not started by Python, by the kernel's name
    queued      time ready to run while other threads had the CPUs, by thread
    functions   time in the function itself, without its callees, over all threads
    with_calls  time in the function and its callees
    calls       number of calls

The profiler adds a cost to each call. So small functions appear too expensive, and functions in C,
such as hashing, verifying and sending, too cheap by as much.
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

_LINES_MAX = 300  # entries of each part in FILE: the largest; a run calls thousands of functions
_ROOT = Path(__file__).resolve().parents[2]
CLOCKS: Mapping[str, Callable[[], float]] = {"cpu": time.thread_time, "wall": time.perf_counter}
PARTS = ("threads", "queued", "functions", "with_calls", "calls")
Sums = dict[str, defaultdict[str, float]]


class Profiler:
    """Profiles this thread from `start` to `stop`, and all threads that start in between."""

    def __init__(self, clock: str) -> None:
        self._clock = CLOCKS[clock]
        self._profiles: list[cProfile.Profile] = []
        self._before = _nothing()
        self._used_before = 0.0
        self._result: dict[str, Any] | None = None

    def start(self) -> None:
        """Start to profile."""
        threading.setprofile(self._enable)
        self._enable()
        self.begin()

    def begin(self) -> None:
        """Count from now on."""
        self._used_before = time.process_time()
        self._before = self._sums()

    def stop(self) -> dict[str, Any]:
        """Stop, and return what was counted since `begin`; a second call returns the same."""
        if self._result is None:
            used = time.process_time() - self._used_before
            sums = self._sums()
            threading.setprofile(None)
            self._profiles[0].disable()
            self._result = {"cpu_seconds": round(used, 3)}
            for part in PARTS:
                before = self._before[part]
                since = {name: amount - before[name] for name, amount in sums[part].items()}
                self._result[part] = _largest(since)
        return self._result

    def _enable(self, *_: object) -> None:
        """Profile the calling thread; `threading.setprofile` calls it in each new thread."""
        profile = cProfile.Profile(self._clock)
        self._profiles.append(profile)
        profile.enable()

    def _sums(self) -> Sums:
        sums = _nothing()
        self._profiles[0].disable()  # the cost of reading the profiles is not counted
        for profile in self._profiles:
            for entry in profile.getstats():
                name = _named(entry.code)
                sums["functions"][name] += entry.inlinetime
                sums["with_calls"][name] += entry.totaltime
                sums["calls"][name] += entry.callcount
        for thread, used, queued in _threads():
            sums["threads"][thread] += used
            sums["queued"][thread] += queued
        self._profiles[0].enable()
        return sums


def merged(profiles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the profiles of several processes."""
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
    """Yield each thread's name, and its seconds on a CPU and in the queue for one."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    for account in accounts("self"):
        yield names.get(account.thread, f"({account.name})"), account.used, account.queued


def _nothing() -> Sums:
    return {part: defaultdict(float) for part in PARTS}


def _named(code: CodeType | str) -> str:
    if isinstance(code, str):
        return code  # a function in C: "<built-in method posix.fsync>"
    path = Path(code.co_filename)
    if path.is_relative_to(_ROOT) and "site-packages" not in path.parts:
        return f"{path.relative_to(_ROOT).as_posix()}:{code.co_qualname}"
    return f"{'/'.join(path.parts[-2:])}:{code.co_qualname}"


def _largest(amounts: Mapping[str, float]) -> dict[str, float]:
    ranked = sorted(amounts.items(), key=lambda pair: -pair[1])[:_LINES_MAX]
    return {name: round(amount, 3) for name, amount in ranked if amount >= 0.001}


def main() -> None:
    """Run the command under the profiler; writes the file however the command ends."""
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
