"""One long-polling fetch outstanding per leader.

In go Kafka partitions with the offsets to fetch from; out come what the brokers say of each. What
was fetched is not decoded here.

    wanted      fetched from its next offset
    left out    wanted, but paused or with a full buffer: not asked for now
    held        wanted, but its leader is not known or did not answer: not asked for a moment

A broker answers the requests of a connection one after the other, so a Kafka partition that
becomes wanted while a long poll is outstanding waits for that poll to end. Therefore the poll is
short while anything is left out or held.

Invariant: of each leader at most one fetch is outstanding.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Protocol

from kafka import errors as kafka_errors
from kafka.consumer.fetcher import FetchSessionHandler
from kafka.protocol.consumer import FetchRequest, IsolationLevel

from multicast.drivers.kafka_python.connection import RETRY_S, Connection
from multicast.drivers.protocol import TopicPartition

_WAIT_MS = 500
_SHORT_WAIT_MS = 20
# Fetch 13 and later name topics by id; 12 is the last that names them by name.
_FETCH_VERSION_MAX = 12


class _Part(FetchRequest.FetchTopic.FetchPartition):  # type: ignore[misc]
    """One Kafka partition of a request; KIP-227 sees by identity, not by fields, what changed."""

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


class FetchSink(Protocol):
    """Who takes what was fetched; called while the loop is driven."""

    def fetched(self, partition: TopicPartition, answer: Any) -> None:
        """Take one Kafka partition's part of a fetch response without an error."""

    def out_of_range(self, partition: TopicPartition) -> None:
        """Hear that the next offset is not in the log; it is no longer wanted."""


class Fetching:
    """Keeps the fetches going while `turn` is called."""

    def __init__(
        self,
        connection: Connection,
        sink: FetchSink,
        *,
        partition_bytes_max: int,
        request_bytes_max: int,
    ) -> None:
        self._connection = connection
        self._sink = sink
        self._partition_bytes_max = partition_bytes_max
        self._request_bytes_max = request_bytes_max
        self._next: dict[TopicPartition, int] = {}
        self._left_out: set[TopicPartition] = set()
        self._held: dict[TopicPartition, float] = {}
        self._leaderless: dict[TopicPartition, float] = {}  # since when
        self._outstanding: set[int] = set()
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._parts: dict[TopicPartition, Any] = {}  # of requests; most stay the same
        self._changed = True
        self._silent_s = 0.0
        self._refreshed_ms = 0.0  # when the brokers last told their metadata
        self._error: BaseException | None = None

    def want(self, partition: TopicPartition, offset: int) -> None:
        """Fetch from that offset on."""
        self._next[partition] = offset
        self._changed = True

    def forget(self, partition: TopicPartition) -> None:
        """Fetch it no longer."""
        self._next.pop(partition, None)
        self._held.pop(partition, None)
        self._parts.pop(partition, None)
        self._left_out.discard(partition)

    def leave_out(self, partition: TopicPartition) -> None:
        """Do not ask for it until `take_in`."""
        self._left_out.add(partition)

    def take_in(self, partition: TopicPartition) -> None:
        """Ask for it again."""
        if partition in self._left_out:
            self._left_out.remove(partition)
            self._changed = True

    def turn(self, timeout_s: float) -> None:
        """Send what can be sent and drive the loop once, at most so long.

        Raises `ClusterUnreachable` where answers were due and none came for the time-out.
        """
        now = time.monotonic()
        self._send(now)
        until = min(self._held.values(), default=now + timeout_s)
        wait_s = max(0.0, min(timeout_s, until - now))
        self._connection.net.poll(timeout_ms=wait_s * 1000)
        if self._error is not None:
            error, self._error = self._error, None
            raise self._connection.wrapped(error)
        refreshed_ms = self._connection.cluster._last_successful_refresh_ms  # noqa: SLF001
        if refreshed_ms != self._refreshed_ms:
            self._refreshed_ms = refreshed_ms
            self._silent_s = 0.0
        if len(self._next) > len(self._left_out):
            self._silent_s += time.monotonic() - now
            if self._silent_s > self._connection.timeout_s:
                self._silent_s = 0.0
                raise self._connection.unreachable(self._connection.timeout_s)

    def _send(self, now: float) -> None:
        for at in [at for at, until in self._held.items() if until <= now]:
            del self._held[at]
            self._changed = True
        if not self._changed:
            return
        self._changed = False
        by_node: dict[int, OrderedDict[TopicPartition, Any]] = defaultdict(OrderedDict)
        for at, offset in self._next.items():
            if at in self._left_out or at in self._held:
                continue
            leader = self._connection.leader(at)
            if leader is None:
                self._connection.follow([at])
                self._connection.cluster.request_update()
                self._leaderless.setdefault(at, now)
                self._hold([at])
            elif leader not in self._outstanding:
                by_node[leader][at] = self._part(at, offset)
        for at in list(self._leaderless):
            if at not in self._next or self._connection.leader(at) is not None:
                del self._leaderless[at]
            else:
                self._connection.refuse_unknown([at], since=self._leaderless[at])
        for node, partitions in by_node.items():
            self._send_to(node, partitions)

    def _part(self, partition: TopicPartition, offset: int) -> Any:
        part = self._parts.get(partition)
        if part is None or part.fetch_offset != offset:
            part = self._parts[partition] = _Part(
                partition=partition.partition,
                current_leader_epoch=-1,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=-1,
                partition_max_bytes=self._partition_bytes_max,
            )
        return part

    def _send_to(self, node: int, partitions: OrderedDict[TopicPartition, Any]) -> None:
        session = self._sessions.setdefault(node, FetchSessionHandler(node))
        data = session.build_next(partitions)
        request = FetchRequest(
            max_wait_ms=_SHORT_WAIT_MS if self._left_out or self._held else _WAIT_MS,
            min_bytes=1,
            max_bytes=self._request_bytes_max,
            isolation_level=IsolationLevel.READ_COMMITTED,
            session_id=data.id,
            session_epoch=data.epoch,
            topics=data.to_send,
            forgotten_topics_data=data.to_forget,
            rack_id="",
            min_version=7,
            max_version=_FETCH_VERSION_MAX,
        )
        asked = {at: self._next[at] for at in partitions}
        self._outstanding.add(node)
        try:
            future = self._connection.manager.send(request, node_id=node)
        except (kafka_errors.KafkaError, OSError) as error:
            self._failed(node, asked, error)
            return
        future.add_callback(partial(self._answered, node, asked))
        future.add_errback(partial(self._failed, node, asked))

    def _failed(self, node: int, asked: Iterable[TopicPartition], error: BaseException) -> None:
        if self._connection.manager.closed:
            return
        self._outstanding.discard(node)
        self._sessions[node].handle_error(error)
        self._connection.cluster.request_update()
        self._hold(asked)

    def _answered(self, node: int, asked: Mapping[TopicPartition, int], response: Any) -> None:
        self._outstanding.discard(node)
        self._changed = True
        self._silent_s = 0.0
        try:
            if self._sessions[node].handle_response(response):
                for topic in response.responses:
                    for answer in topic.partitions:
                        at = TopicPartition(topic.topic, answer.partition_index)
                        # It may have been forgotten, or wanted from elsewhere, meanwhile.
                        if at in asked and self._next.get(at) == asked[at]:
                            self._take(at, answer)
        except Exception as error:  # noqa: BLE001 - a future would log it and go on
            self._error = error

    def _take(self, partition: TopicPartition, answer: Any) -> None:
        error = kafka_errors.for_code(answer.error_code)
        if error is kafka_errors.NoError:
            self._sink.fetched(partition, answer)
        elif error is kafka_errors.OffsetOutOfRangeError:
            self.forget(partition)
            self._sink.out_of_range(partition)
        elif issubclass(error, kafka_errors.AuthorizationError):
            raise self._connection.access.lacks("Read", "topic", partition.topic)
        else:
            hint = answer.current_leader
            if hint is None or not self._connection.cluster.update_partition_leader(
                partition, hint.leader_id, hint.leader_epoch
            ):
                self._hold([partition])
            self._connection.cluster.request_update()

    def _hold(self, partitions: Iterable[TopicPartition]) -> None:
        until = time.monotonic() + RETRY_S
        self._held.update((one, until) for one in partitions if one in self._next)
        self._changed = True
