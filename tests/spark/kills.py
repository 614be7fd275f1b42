"""Kills a streaming query again and again, at random moments, while a producer sends.

Each turn starts the query from its checkpoint and ends with kill -9 of its driver, Java and Python
workers at once. Of four turns, one runs on executors that are processes of their own; some of them
are killed first, one after the other, and Spark starts others in their place.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
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


def kill(query: StreamedQuery, kills: int, rng: random.Random) -> int:
    """Kill a query so many times; give how many of the kills were of executors.

    Raises `AmcastError` if the query ends by itself, and `TimedOut` if it stands still.
    """
    turn, killed, of_executors = 0, 0, 0
    while killed < kills:
        turn += 1
        settings = {} if turn % _EXECUTOR_TURN else _CLUSTER
        with query.running(**settings) as process:
            if settings:
                for _ in range(min(_EXECUTORS_KILLED, kills - killed - 1)):
                    _until_moved(query, process)
                    _PAUSE.wait(rng.uniform(0, _AFTER_S))
                    _until(lambda: bool(executors(process)), query, process)
                    os.kill(rng.choice(executors(process)), signal.SIGKILL)
                    killed, of_executors = killed + 1, of_executors + 1
            if turn % 2:
                _until_moved(query, process)
                _PAUSE.wait(rng.uniform(0, _AFTER_S))
            else:
                _PAUSE.wait(rng.uniform(0, _START_S))
            if process.poll() is not None:
                raise AmcastError(f"the query ended by itself; its log: {query.log()}")
        killed += 1
    return of_executors


def _until_moved(query: StreamedQuery, process: subprocess.Popen[bytes]) -> None:
    """Wait for the next batch's plan or commit."""
    began = query.begun(), query.committed()
    _until(lambda: (query.begun(), query.committed()) != began, query, process)


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
