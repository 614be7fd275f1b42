"""Gets a joint appender what it needs to send: a producer ID, leaders, sockets. Its own thread.

The thread waits until the appender lacks something, drives an event loop of kafka-python until it
has it, and reports it to the appender. All requests of a round run side by side, so a broker that
does not answer delays no other. What failed is tried again after a pause that doubles.

A topic that no metadata has for `UNKNOWN_TOPIC_S` does not exist; its records are refused.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kafka import errors as kafka_errors

from multicast.drivers.appender.dispatcher import Lacking
from multicast.drivers.appender.record_batch import NO_IDENTITY, ProducerIdentity
from multicast.drivers.client_settings import RECONNECT_BACKOFF_MAX_MS, UNKNOWN_TOPIC_S
from multicast.drivers.kafka.appender.request import PRODUCE_KEY, PRODUCE_VERSION
from multicast.drivers.kafka.connection import RETRY_S, Connection
from multicast.drivers.kafka.private import Future, InitProducerIdRequest
from multicast.drivers.kafka.sockets import open_socket
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, AppendNotAuthorized, AppendRefused

_LOG = logging.getLogger("amcast.kafka_python")
# While requests run, a new need waits at most this long: little beside an election.
_ROUND_S = 0.05
_PAUSE_MAX_S = RECONNECT_BACKOFF_MAX_MS / 1000
_IDENTITY = "a producer ID"
_LEADERS = "leaders"


class Keeper:
    """Keeps one appender supplied, by one connection, which it closes at the end."""

    def __init__(
        self,
        connection: Connection,
        kept: Any,  # a `KafkaPythonJointAppender`, which imports this
    ) -> None:
        self._connection = connection
        self._kept = kept
        self._running: dict[str | int, Any] = {}  # the package's futures, by what they bring
        self._pauses: dict[str | int, float] = {}
        self._retry_at: dict[str | int, float] = {}
        self._missing_since: dict[TopicPartition, float] = {}
        self.thread = threading.Thread(target=self._run, name="amcast-joint-keeper", daemon=True)

    def _run(self) -> None:
        try:
            wait_s: float | None = None
            while (wanted := self._kept.wanted(wait_s)) is not None:
                try:
                    wait_s = self._round(wanted)
                except Exception:  # noqa: BLE001
                    # A defect of ours or the package; the next round may do better.
                    _LOG.exception("a joint appender did not get what it lacks")
                    wait_s = _PAUSE_MAX_S
        finally:
            self._close()

    def _round(self, wanted: Lacking) -> float | None:
        """Start what is wanted, and take what has ended; returns how long nothing is to be done."""
        progress = Future()
        needs: dict[str | int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}
        if wanted.identity:
            needs[_IDENTITY] = (self._identify, ())
        if wanted.partitions:
            needs[_LEADERS] = (self._find, (list(wanted.partitions),))
        for node in wanted.nodes:
            arguments = (self._connection, node, PRODUCE_KEY, PRODUCE_VERSION)
            needs[node] = (open_socket, arguments)
        now = time.monotonic()
        for key, (coroutine, arguments) in needs.items():
            if key not in self._running and self._retry_at.get(key, 0.0) <= now:
                future = self._connection.net.call_soon_with_future(coroutine, *arguments)
                self._running[key] = future
        for future in self._running.values():
            future.add_both(lambda _: progress.is_done or progress.success(None))
        if not self._running:
            # Nothing is wanted, or it is too early to try again.
            return min((self._retry_at[key] - now for key in needs), default=None)
        self._connection.net.poll(timeout_ms=1000 * _ROUND_S, future=progress)
        for key in [key for key, future in self._running.items() if future.is_done]:
            self._take(key, self._running.pop(key))
        return 0.0

    def _take(self, key: str | int, future: Any) -> None:
        if future.exception is not None:
            self._pause(key)
            error = self._connection.wrapped(future.exception)
            if not isinstance(error, AmcastError):  # a defect; it must not end the thread
                error = AmcastError(repr(error))
            self._kept.failed(key if isinstance(key, int) else None, error)
        elif isinstance(key, int):
            self._go_on(key)
            self._kept.connected(key, future.value)
        elif key == _IDENTITY:
            self._go_on(key)
            self._kept.identified(future.value)
        else:
            self._take_leaders(*future.value)

    def _take_leaders(
        self, wanted: Sequence[TopicPartition], refused: Mapping[TopicPartition, AmcastError]
    ) -> None:
        leaders = {}
        now = time.monotonic()
        for partition in wanted:
            if partition in refused:
                self._refuse(partition, refused[partition])
                continue
            leader = self._connection.leader(partition)
            known = self._connection.cluster.partitions_for_topic(partition.topic)
            if leader is not None:
                leaders[partition] = leader
            if known is not None and partition.partition in known:
                self._missing_since.pop(partition, None)
                continue
            since = self._missing_since.setdefault(partition, now)
            if now - since > min(UNKNOWN_TOPIC_S, self._connection.timeout_s / 2):
                name = f"{partition.topic}/{partition.partition}"
                bootstrap = self._connection.bootstrap
                self._refuse(partition, AppendRefused(f"{name} does not exist at {bootstrap}."))
        if leaders:
            self._pauses.pop(_LEADERS, None)
        self._pause(_LEADERS)  # a broker may name the old leader for a while
        self._kept.led(leaders)

    def _refuse(self, partition: TopicPartition, error: AmcastError) -> None:
        self._missing_since.pop(partition, None)
        self._kept.refused(partition, error)

    def _pause(self, key: str | int) -> None:
        pause = self._pauses.get(key, RETRY_S)
        self._pauses[key] = min(2 * pause, _PAUSE_MAX_S)
        self._retry_at[key] = time.monotonic() + pause

    def _go_on(self, key: str | int) -> None:
        self._pauses.pop(key, None)
        self._retry_at.pop(key, None)

    async def _identify(self) -> ProducerIdentity:
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=0,
            producer_id=NO_IDENTITY.producer,
            producer_epoch=NO_IDENTITY.epoch,
            max_version=4,
        )
        response = await self._connection.manager.send(request)
        if response.error_code:
            raise kafka_errors.for_code(response.error_code)
        return ProducerIdentity(response.producer_id, response.producer_epoch)

    async def _find(
        self, wanted: Sequence[TopicPartition]
    ) -> tuple[Sequence[TopicPartition], Mapping[TopicPartition, AmcastError]]:
        refused: dict[TopicPartition, AmcastError] = {}
        for partition in wanted:
            try:
                self._connection.follow([partition])
            except AmcastError as error:
                refused[partition] = AppendRefused(str(error))
        await self._connection.refresh()
        access = self._connection.access
        for partition in wanted:
            if partition.topic in self._connection.cluster.unauthorized_topics:
                lacking = access.lacking("Write", "topic", partition.topic)
                refused[partition] = AppendNotAuthorized(lacking)
        return wanted, refused

    def _close(self) -> None:
        self._connection.close()
        # The loop may have finished opening a socket in its last run.
        for key, opening in self._running.items():
            if isinstance(key, int) and opening.is_done and opening.exception is None:
                opening.value.close()
