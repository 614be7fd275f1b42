"""Kills a streaming query again and again, at random moments, while a producer sends.

Each turn starts the query from its checkpoint and ends with kill -9 of its driver, Java and Python
workers at once. Of four turns, one runs on executors that are processes of their own; some of them
are killed first, one after the other, and Spark starts others in their place.

    start      a kill before the checkpoint moved since the query's start; where the kill before
               has interrupted a batch, this batch may be running again
    batch      a kill between a batch's plan and its commit in the checkpoint
    between    any other
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Self

from multicast.errors import AmcastError, TimedOut
from tests.spark.query import small_spark
from tests.spark.streamed import StreamedQuery, executors

PATIENCE_S = 900.0  # for one step of a query; only a hang takes longer, on any machine
_POLL_S = 0.02  # a batch takes some hundred milliseconds
_START_S = 10.0  # a query's start, with Java and Spark, on two busy cores
_AFTER_S = 2.0  # some batches
_EXECUTOR_TURN = 4  # each fourth turn kills executors, too,
_EXECUTORS_KILLED = 3  # so many of them
_BURST_MAX, _BURST_PAUSE_S = 30, 0.4
_PAUSE = threading.Event()  # never set
_CLUSTER = {
    "spark.master": "local-cluster[2,1,512]",
    "spark.executor.memory": "512m",
    "spark.task.maxFailures": "20",  # a task that is hit by four kills would end the query
}
# What a query reads in one batch, and in one task: so a batch has several tasks.
PORTIONS = {"maxOffsetsPerTrigger": "200", "maxRecordsPerPartition": "50"}


def drawn(seed: str) -> random.Random:
    """Give a source of random numbers that repeats with its seed; moments repeat roughly only."""
    return random.Random(seed)


class BackgroundSender:
    """Multicasts to random ones of some sets, in a thread, until the block ends."""

    def __init__(self, topic: Any, sets: Sequence[Sequence[str]], rng: random.Random) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._producer = topic.producer()
        self._sets = sets
        self._rng = rng

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._rng.uniform(0, _BURST_PAUSE_S)):
            receipts = [
                self._producer.multicast(b"%d" % number, to=self._rng.choice(self._sets))
                for number in range(self._rng.randint(1, _BURST_MAX))
            ]
            for receipt in receipts:
                receipt.accepted(PATIENCE_S)


def kill(query: StreamedQuery, kills: int, rng: random.Random) -> Counter[str]:
    """Kill a query so many times; give how many of which kind, "driver start" for instance.

    Raises `AmcastError` if the query ends by itself, and `TimedOut` if it stands still.
    """
    counts: Counter[str] = Counter()
    turn = 0
    while counts.total() < kills:
        turn += 1
        began = _progress(query)
        settings = {} if turn % _EXECUTOR_TURN else _CLUSTER
        with query.running(**settings) as process:
            if settings:
                for _ in range(min(_EXECUTORS_KILLED, kills - counts.total() - 1)):
                    counts[f"executor {_kill_executor(query, process, rng)}"] += 1
            if turn % 2:
                _until_moved(query, process, _progress(query))
                _PAUSE.wait(rng.uniform(0, _AFTER_S))
            else:
                _PAUSE.wait(rng.uniform(0, _START_S))
            if process.poll() is not None:
                raise AmcastError(f"the query ended by itself; its log: {query.log()}")
        counts[f"driver {_moment(query, began)}"] += 1
    return counts


def _kill_executor(
    query: StreamedQuery, process: subprocess.Popen[bytes], rng: random.Random
) -> str:
    """Kill an executor some time after the next batch's plan or commit; give the moment."""
    began = _progress(query)
    _until_moved(query, process, began)
    _PAUSE.wait(rng.uniform(0, _AFTER_S))
    _until(lambda: bool(executors(process)), query, process)
    os.kill(rng.choice(executors(process)), signal.SIGKILL)
    return _moment(query, began)


def _progress(query: StreamedQuery) -> tuple[int, int]:
    return query.begun(), query.committed()


def _moment(query: StreamedQuery, began: tuple[int, int]) -> str:
    begun, committed = now = _progress(query)
    if now == began:
        return "start"
    return "batch" if begun > committed else "between"


def _until_moved(
    query: StreamedQuery, process: subprocess.Popen[bytes], began: tuple[int, int]
) -> None:
    _until(lambda: _progress(query) != began, query, process)


def _until(
    holds: Callable[[], bool], query: StreamedQuery, process: subprocess.Popen[bytes]
) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if process.poll() is not None:
            raise AmcastError(f"the query ended by itself; its log: {query.log()}")
        if time.monotonic() > deadline:
            raise TimedOut(f"a query stood still for {PATIENCE_S:g} s; its log: {query.log()}")
        _PAUSE.wait(_POLL_S)


def finish(query: StreamedQuery) -> None:
    """Let a query that was killed read all that is left; raises `AmcastError` if it fails."""
    for name in PORTIONS:  # a task for each 50 offsets would take long for what is left
        query.document["options"].pop(name, None)
    if query.finish(PATIENCE_S) != 0:
        raise AmcastError(f"the query failed; its log: {query.log()}")


def stored(query: StreamedQuery) -> list[str]:
    """Give the message IDs that a sink holds: as they were stored, and of files in their order."""
    if query.document["sink"] == "sqlite":
        return query.messages()
    with small_spark() as session:
        rows = session.read.json(query.document["path"]).orderBy("epoch", "position")
        return [row.message_id for row in rows.select("message_id").collect()]
