"""One node's connection to Kafka: a driver, opened at first use, and the clients made from it.

Any thread may call. A request to the cluster blocks for the driver's request time-out at most.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from typing import TypeVar

from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.consuming.subscription import Bounds, SubscriptionRequest, chain_back
from multicast.control import ControlReader, log_partition
from multicast.drivers.kafka import Admin
from multicast.drivers.protocol import Driver, Record, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable
from multicast.producing.producer import Producer
from topology.tree import Log, Plan

# Where some logs do not answer, each is asked on its own for this long in total: two request
# time-outs of 5 s. The chains that were not asked by then get the common reason.
_ASK_S = 10.0
# How old the answers of the controllers may be. The registrar asks about the logs once a second;
# this question costs three more requests.
_REPLICAS_EVERY_S = 5.0
# How old the plan may be by which the health check finds a chain's logs. A chain that a new plan
# adds is checked 30 s later at most. Plans change rarely, and each read opens the control topic.
_PLAN_EVERY_S = 30.0
# A block takes longer than this to fill. With 5 ms three nodes at 750/s used 1.07 cores instead of
# 0.82 and their broker 0.45 instead of 0.26, for a p50 of 84 ms instead of 87; with 0 it was 102
# (python -m bench.osn latency).
_LINGER_MS = 20
# What a reader of several chains buffers of each log: it needs the places of records, not what they
# hold, and a node may have `READERS_MAX` such readers of up to 64 chains.
_READER_BUFFER_BYTES_MAX = 1 << 20
_Value = TypeVar("_Value")


class SharedAttempts:
    """Lets one thread at a time run its call; where that fails, those that waited fail alike.

    So a node with many chains needs one request, not one for each chain, to learn that no broker
    answers. The wait for the turn is not part of a request's time-out: of many chains that ask at
    once most would else report brokers that do not answer.
    """

    def __init__(
        self, shared: type[AmcastError], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`shared`: the errors of a call that are those of all who wait."""
        self._shared = shared
        self._clock = clock
        self._lock = threading.Lock()
        self._failure: AmcastError | None = None
        self._failed_at = 0.0

    def run(self, call: Callable[[], _Value]) -> _Value:
        """Run `call` when no other call runs; blocks until then."""
        began = self._clock()
        with self._lock:
            if self._failure is not None and self._failed_at >= began:
                raise self._failure.with_traceback(None)
            try:
                return call()
            except self._shared as error:
                self._failure, self._failed_at = error, self._clock()
                raise


class CursorAfter:
    """The cursor right behind a delivered record; its text is made only when a block needs it.

    It says which order record and which message were there, so a node that resumes from a block
    refuses a log, or an order, that holds others in their place.
    """

    __slots__ = ("_batch", "_record")

    def __init__(self, batch: Batch, record: Record) -> None:
        self._batch = batch
        self._record = record

    def __str__(self) -> str:
        """Give the text that a `Consumer` resumes from."""
        return str(self._batch.cursor_after(self._record))


class Replicas(Admin):
    """Asks whether enough replicas of a log are in sync for it to take records; never writes.

    A log takes no records while fewer are than its topic's `min.insync.replicas`. Brokers know the
    replicas in sync from the controllers. While no controller leads, a broker still answers with
    what it knew last. Its answer may be out of date then, and `doubt` says so.
    """

    def out_of_sync(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        """Give those partitions with too few replicas in sync, each with a reason.

        Raises `ClusterUnreachable` and `AccessDenied`.
        """
        topics = sorted({partition.topic for partition in partitions})
        settings = self.topic_settings(topics)
        reasons = {}
        for name, topic in self._topics(topics).items():
            needed = int(settings[name]["min.insync.replicas"])
            for metadata in topic["partitions"]:
                partition = TopicPartition(name, int(metadata["partition_index"]))
                in_sync = len(metadata["isr_nodes"])
                if partition in partitions and in_sync < needed:
                    ids = " ".join(str(node_id) for node_id in sorted(metadata["replica_nodes"]))
                    reasons[partition] = (
                        f"[replica ids: [{ids}]]: {in_sync} are in sync, {needed} are needed"
                    )
        return reasons

    def doubt(self) -> str | None:
        """Say why nobody knows which replicas are in sync; None: a controller leads.

        None also where this client lacks the right to ask.
        """
        try:
            self.controller_time_ms()
        except ClusterUnreachable as error:
            return f"no controller leads, so nobody knows which replicas are in sync: {error}"
        except AmcastError:
            return None
        return None


class KafkaConnection:
    """The connection to the cluster of one topic.

    `open_driver` and `open_replicas` may raise `ClusterUnreachable`, and are called again then.
    Without `open_replicas` it is not checked whether replicas are in sync.
    """

    def __init__(
        self,
        open_driver: Callable[[], Driver],
        topic: str,
        *,
        open_replicas: Callable[[], Replicas] | None = None,
        tickets: bool = True,
    ) -> None:
        self.topic = topic
        self.doubt: str | None = None  # why the log may take no records, although it answers
        # The last stable offsets by chain and log, as of the last call of `troubles`.
        self.ends: Mapping[str, Mapping[str, int]] = {}
        self.relayed: dict[str, str | None] = {}  # by chain, of the same call: see `_relayed`
        self._open_driver = open_driver
        self._open_replicas = open_replicas
        self._tickets = tickets
        self._driver: Driver | None = None
        self._replicas: Replicas | None = None
        self._too_few_in_sync: Mapping[TopicPartition, str] = {}
        self._replicas_asked_at = 0.0
        self._plan: Plan | None = None
        self._plan_at = 0.0
        self._lock = threading.Lock()
        self._attempts = SharedAttempts(ClusterUnreachable)

    def driver(self) -> Driver:
        """Give the driver; open it where it is not open yet."""
        with self._lock:
            if self._driver is None:
                self._driver = self._open_driver()
            return self._driver

    def producer(self) -> Producer:
        """Open a producer that never blocks for buffer space, and collects records for 20 ms."""
        return Producer(
            topic=self.topic,
            driver=self.driver(),
            block_s=0.0,
            tickets=self._tickets,
            linger_ms=_LINGER_MS,
        )

    def consumer(self, chain: str, cursor: str) -> Consumer:
        """Open a consumer of one chain, from a cursor; if that is empty, from the beginning."""
        return self._attempts.run(
            lambda: Consumer(
                topic=self.topic,
                interest=(chain,),
                start=cursor or self._beginning((chain,)),
                committed=False,
                driver=self.driver(),
            )
        )

    def order_reader(self, chains: Sequence[str], start: str) -> Consumer:
        """Open a consumer of several chains, from a cursor, "earliest" or "latest"."""
        return Consumer(
            topic=self.topic,
            interest=chains,
            start=self._beginning(chains) if start == "earliest" else start,
            committed=False,
            driver=self.driver(),
            bounds=Bounds(buffer_bytes_max=_READER_BUFFER_BYTES_MAX),
        )

    def _beginning(self, chains: Sequence[str]) -> str:
        """Give the cursor where the order of chains begins, whatever retention has removed.

        A consumer's "earliest" leaves out what is gone; a block made so would be another one.
        """
        with closing(ControlReader(self.driver(), self.topic)) as control:
            state = control.refresh()
            links, _ = chain_back(state, SubscriptionRequest.of(None, chains), state.epoch)
        return str(links[-1].start)

    def topic_id(self, topic: str) -> str | None:
        """Ask for a topic's ID; None where there is no such topic. One request; it blocks.

        A plan that was read earlier does not say it: the topic may have been made again since.
        """
        return self._attempts.run(lambda: self.driver().topic_ids([topic])).get(topic)

    def end_of(self, log: Log) -> int:
        """Give the end of a log: the offset behind its last record. One request; it blocks."""
        partition = log_partition(log)
        return self.driver().last_stable_offsets([partition])[partition]

    def plan(self) -> Plan:
        """Read the plan that is in force now."""
        with closing(ControlReader(self.driver(), self.topic)) as control:
            return control.refresh().plan()

    def troubles(self, chains: Sequence[str]) -> dict[str, str]:
        """Give the chains whose logs take no records, each with the reason. Writes nothing.

        Afterwards `ends` and `relayed` are up to date. For one thread.
        """
        try:
            logs = self._logs(chains)
            driver = self.driver()
        except AmcastError as error:
            return dict.fromkeys(chains, str(error))
        partitions = sorted({log for chain_logs in logs.values() for log in chain_logs.values()})
        silent: dict[str, str] = {}
        try:
            ends = driver.last_stable_offsets(partitions)
            self.ends = {
                chain: {name: ends[partition] for name, partition in chain_logs.items()}
                for chain, chain_logs in logs.items()
            }
        except AmcastError as error:
            silent = self._ask_each(driver, logs, str(error))
            if len(silent) == len(logs):
                return silent
        reasons = self._out_of_sync(partitions)
        out_of_sync = {
            chain: f"log {log.topic}/{log.partition} {reasons[log]}"
            for chain, chain_logs in logs.items()
            for log in chain_logs.values()
            if log in reasons
        }
        return out_of_sync | silent

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
        """Give the logs that each chain reads, by name; chains without a partition are left out."""
        now = time.monotonic()
        if self._plan is None or now - self._plan_at > _PLAN_EVERY_S:
            self._plan, self._plan_at, self.relayed = self.plan(), now, {}
        plan = self._plan
        new = [chain for chain in chains if chain not in self.relayed]
        self.relayed |= {chain: _relayed(plan, chain) for chain in new}
        return {
            chain: {log.name: log_partition(log) for log in plan.logs_of((chain,))}
            for chain in chains
            if chain in plan.partitions
        }

    @staticmethod
    def _ask_each(
        driver: Driver, logs: Mapping[str, Mapping[str, TopicPartition]], common_reason: str
    ) -> dict[str, str]:
        """Give the chains whose logs do not answer, where at least one log does not.

        Chains that are not asked in time get the common reason.
        """
        silent = {}
        deadline = time.monotonic() + _ASK_S
        for chain, chain_logs in logs.items():
            if time.monotonic() > deadline:
                silent[chain] = common_reason
                continue
            try:
                driver.last_stable_offsets(list(chain_logs.values()))
            except AmcastError as error:
                silent[chain] = str(error)
        return silent

    def _out_of_sync(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        now = time.monotonic()
        if self._open_replicas is not None and now - self._replicas_asked_at > _REPLICAS_EVERY_S:
            try:
                if self._replicas is None:
                    self._replicas = self._open_replicas()
                self._too_few_in_sync = self._replicas.out_of_sync(partitions)
                self.doubt = self._replicas.doubt()
            except AmcastError as error:
                self._too_few_in_sync = dict.fromkeys(partitions, f"cannot be asked about: {error}")
            self._replicas_asked_at = now
        return self._too_few_in_sync


def _relayed(plan: Plan, chain: str) -> str | None:
    """Name the log whose order most collectors relay to a chain's consumer; None: none does."""
    reader, farthest = plan.collector_for((chain,)), None
    tops = {top.name: log.name for log in plan.logs_of((chain,)) if (top := plan.top(log.name))}
    while reader is not None and reader.parent is not None:
        reader = plan.collector(reader.parent)
        farthest = tops.get(reader.name, farthest)
    return farthest
