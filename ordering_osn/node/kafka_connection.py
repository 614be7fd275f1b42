"""The log as one node reaches it: a driver opened when it is first needed, and what is made of it.

Any thread may call. What asks the cluster blocks for the driver's request time-out at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from multicast.consumer import Consumer
from multicast.control import ControlReader, log_partition
from multicast.delivery import Batch
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AmcastError
from multicast.producer import Producer
from ordering_osn.node.in_sync import Replicas
from topology.tree import Plan

_ASK_S = 10.0
_REPLICAS_EVERY_S = 5.0
_PLAN_EVERY_S = 30.0
# A block takes longer than this to fill. With 5 ms the client's thread (librdkafka 2.16) took more
# of the CPU while requests were unanswered: three nodes at 750/s 1.1 cores instead of 0.75, and a
# p99 of 3.5 s instead of 0.16 (python -m bench.orderer.osn latency).
_LINGER_MS = 20


class After:
    """The cursor right after a delivered record; its text is made only when a block needs it."""

    __slots__ = ("_batch", "_next")

    def __init__(self, batch: Batch, offset: int) -> None:
        self._batch = batch
        self._next = offset + 1

    def __str__(self) -> str:
        """Give the text that a `Consumer` resumes from."""
        batch = self._batch
        return f"{batch.epoch}/{batch.source}/{batch.record}/{batch.run}/{self._next}"


class KafkaConnection:
    """A way to one topic. What opens may raise `ClusterUnreachable`, and is called again.

    Without `open_replicas` nobody looks whether replicas are in sync.
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        topic: str,
        *,
        open_replicas: Callable[[], Replicas] | None = None,
        announce: bool = True,
    ) -> None:
        self.topic = topic
        self.doubt: str | None = None  # why the log may take no records, although it answers
        self.ends: Mapping[str, Mapping[str, int]] = {}  # by chain and log, when last asked
        self._open_driver = open_driver
        self._open_replicas = open_replicas
        self._announce = announce
        self._driver: Driver | None = None
        self._replicas: Replicas | None = None
        self._short: Mapping[TopicPartition, str] = {}
        self._short_at = 0.0
        self._plan: Plan | None = None
        self._plan_at = 0.0
        self._lock = threading.Lock()

    def driver(self) -> Driver:
        """Give the driver, opened where it was not yet."""
        with self._lock:
            if self._driver is None:
                self._driver = self._open_driver()
            return self._driver

    def producer(self) -> Producer:
        """Open a producer that never waits for room; records go together, which costs less."""
        return Producer(
            topic=self.topic,
            driver=self.driver(),
            block_s=0.0,
            announce=self._announce,
            linger_ms=_LINGER_MS,
        )

    def consumer(self, chain: str, cursor: str) -> Consumer:
        """Open a consumer of one chain, from a cursor; without one, from the chain's beginning."""
        return Consumer(
            topic=self.topic,
            interest=(chain,),
            start=cursor or "earliest",
            committed=False,
            driver=self.driver(),
        )

    def plan(self) -> Plan:
        """Read the topology that is in force now."""
        control = ControlReader(self.driver(), self.topic)
        try:
            return control.refresh().plan()
        finally:
            control.close()

    def troubles(self, chains: Sequence[str]) -> dict[str, str]:
        """Say for which chains the log takes no records, and why. Asks, and writes nothing.

        Afterwards `ends` says how far the logs of the chains reach. For one thread.
        """
        try:
            logs = self._logs(chains)
            driver = self.driver()
        except AmcastError as error:
            return dict.fromkeys(chains, str(error))
        every = sorted({at for places in logs.values() for at in places.values()})
        silent: dict[str, str] = {}
        try:
            ends = driver.last_stable_offsets(every)
            self.ends = {
                chain: {log: ends[at] for log, at in places.items()}
                for chain, places in logs.items()
            }
        except AmcastError as error:
            silent = self._asked_singly(driver, logs, str(error))
            if len(silent) == len(logs):
                return silent
        short = self._lacking(every)
        lacking = {
            chain: f"log {at.topic}/{at.partition} {short[at]}"
            for chain, places in logs.items()
            for at in places.values()
            if at in short
        }
        return lacking | silent

    def close(self) -> None:
        """Close what was opened."""
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
        if self._replicas is not None:
            self._replicas.close()

    # -- inside -----------------------------------------------------------------------------

    def _logs(self, chains: Sequence[str]) -> dict[str, dict[str, TopicPartition]]:
        """Give the logs that each chain reads, by name; a chain without a partition is left out."""
        now = time.monotonic()
        if self._plan is None or now - self._plan_at > _PLAN_EVERY_S:
            self._plan, self._plan_at = self.plan(), now
        plan = self._plan
        return {
            chain: {log.name: log_partition(log) for log in plan.logs_of((chain,))}
            for chain in chains
            if chain in plan.partitions
        }

    @staticmethod
    def _asked_singly(
        driver: Driver, logs: Mapping[str, Mapping[str, TopicPartition]], why: str
    ) -> dict[str, str]:
        """Find out which chains' logs do not answer, where some do not; `why` for the last ones."""
        found = {}
        deadline = time.monotonic() + _ASK_S
        for chain, places in logs.items():
            if time.monotonic() > deadline:
                found[chain] = why
                continue
            try:
                driver.last_stable_offsets(list(places.values()))
            except AmcastError as error:
                found[chain] = str(error)
        return found

    def _lacking(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        now = time.monotonic()
        if self._open_replicas is not None and now - self._short_at > _REPLICAS_EVERY_S:
            try:
                if self._replicas is None:
                    self._replicas = self._open_replicas()
                self._short = self._replicas.short(partitions)
                self.doubt = self._replicas.unknown()
            except AmcastError as error:
                self._short = dict.fromkeys(partitions, f"cannot be asked about: {error}")
            self._short_at = now
        return self._short
