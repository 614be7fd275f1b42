"""Keeps one long-polling fetch outstanding at each leader.

`Fetching` fetches Kafka partitions from given offsets and hands the parts of the answers to a
`FetchSink`. It does not decode records.

    wanted      fetched from its next offset
    left out    wanted, but paused or with a full buffer: not requested now
    held        wanted, but its leader is unknown or did not answer: not requested for a moment

A broker answers the requests of a connection in order, so a Kafka partition that becomes wanted
during a long poll waits until that poll ends. Therefore the poll is short while a partition is left
out or held.

Invariant: outstanding fetches <= 1 for each leader.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from kafka import errors as kafka_errors

from multicast.drivers.kafka.connection import RETRY_S, Connection
from multicast.drivers.kafka.private import FetchRequest, FetchSessionHandler, IsolationLevel
from multicast.drivers.protocol import TopicPartition

# Of a long poll, if nothing else is asked; Kafka's default. A record ends it at once, so it only
# bounds the idle requests.
_WAIT_S = 0.5
# Of a poll that another partition may have to wait for: at most 50 requests a second.
_SHORT_WAIT_MS = 20
# Version 13 and later identify topics by ID (KIP-516), 12 is the last that uses names.
_FETCH_VERSION_MAX = 12


class _Part(FetchRequest.FetchTopic.FetchPartition):  # type: ignore[misc]
    """One Kafka partition of a request; a fetch session (KIP-227) compares it by identity."""

    __eq__ = object.__eq__
    __ne__ = object.__ne__
    __hash__ = object.__hash__


class FetchSink(Protocol):
    """Receives what was fetched, while the loop runs."""

    def fetched(self, partition: TopicPartition, answer: Any) -> None:
        """Process one Kafka partition's part of a fetch response without an error."""

    def out_of_range(self, partition: TopicPartition) -> None:
        """Process that the log does not hold the next offset; it is no longer wanted."""


class Fetching:
    """Keeps the fetches going while a caller repeats `turn`."""

    def __init__(
        self,
        connection: Connection,
        sink: FetchSink,
        *,
        partition_bytes_max: int,
        request_bytes_max: int,
        wait_s: float | None = None,
    ) -> None:
        self._connection = connection
        # Half of the time-out, after which a broker that is silent is given up.
        self._wait_ms = int(1000 * min(wait_s or _WAIT_S, connection.timeout_s / 2))
        self._sink = sink
        self._partition_bytes_max = partition_bytes_max
        self._request_bytes_max = request_bytes_max
        self._next: dict[TopicPartition, int] = {}
        self._left_out: set[TopicPartition] = set()
        self._held: dict[TopicPartition, float] = {}
        self._leaderless: dict[TopicPartition, float] = {}  # since when
        self._outstanding: set[int] = set()
        self._sessions: dict[int, FetchSessionHandler] = {}
        self._parts: dict[TopicPartition, Any] = {}  # parts of requests; most stay the same
        self._changed = True
        self._silent_s = 0.0
        self._refreshed_ms = 0.0  # when metadata last arrived
        self._error: BaseException | None = None

    def want(self, partition: TopicPartition, offset: int) -> None:
        """Fetch this Kafka partition from that offset on."""
        self._next[partition] = offset
        self._changed = True

    def forget(self, partition: TopicPartition) -> None:
        """Stop fetching this Kafka partition."""
        self._next.pop(partition, None)
        self._held.pop(partition, None)
        self._parts.pop(partition, None)
        self._left_out.discard(partition)

    def leave_out(self, partition: TopicPartition) -> None:
        """Do not request this Kafka partition until `take_in`."""
        self._left_out.add(partition)

    def take_in(self, partition: TopicPartition) -> None:
        """Request this Kafka partition again."""
        if partition in self._left_out:
            self._left_out.remove(partition)
            self._changed = True

    def hold(self, partitions: Iterable[TopicPartition]) -> None:
        """Do not request these Kafka partitions for a moment."""
        until = time.monotonic() + RETRY_S
        self._held.update((log, until) for log in partitions if log in self._next)
        self._changed = True

    def turn(self, timeout_s: float) -> None:
        """Send the requests that are due and drive the loop for at most `timeout_s`.

        Raises `ClusterUnreachable` if no answer came for the connection's time-out although some
        were due.
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
            self._release(now)
        if len(self._next) > len(self._left_out):
            self._silent_s += time.monotonic() - now
            if self._silent_s > self._connection.timeout_s:
                self._silent_s = 0.0
                raise self._connection.manager.unreachable(self._connection.timeout_s)

    def _send(self, now: float) -> None:
        self._release(now)
        if not self._changed:
            return
        self._changed = False
        by_node: dict[int, OrderedDict[TopicPartition, Any]] = defaultdict(OrderedDict)
        unknown: list[TopicPartition] = []
        for partition, offset in self._next.items():
            if partition in self._left_out or partition in self._held:
                continue
            leader = self._connection.leader(partition)
            if leader is None:
                unknown.append(partition)
            elif leader not in self._outstanding:
                by_node[leader][partition] = self._part(partition, offset)
        if unknown:
            self._look_up(unknown, now)
        for partition in list(self._leaderless):
            if partition not in self._next or self._connection.leader(partition) is not None:
                del self._leaderless[partition]
            else:
                since, self._leaderless[partition] = self._leaderless[partition], now
                # If this raises, the wait begins anew: the next calls learn whether it exists now.
                self._connection.raise_if_unknown([partition], since=since)
                self._leaderless[partition] = since
        for node, partitions in by_node.items():
            self._send_to(node, partitions)

    def _release(self, now: float) -> None:
        """Hold no longer what was held for its time, or only for its leader, which is known now."""
        for partition, until in list(self._held.items()):
            was_leaderless = partition in self._leaderless
            if until <= now or (was_leaderless and self._connection.leader(partition) is not None):
                del self._held[partition]
                self._changed = True

    def _look_up(self, partitions: Sequence[TopicPartition], now: float) -> None:
        """Request the leaders: at once for new partitions, else when the package's back-off ends.

        The back-off, 0.1 s, counts from the connection's own first request.
        """
        self._connection.follow(partitions)
        if self._leaderless.keys() >= set(partitions):
            self._connection.cluster.request_update()
        else:
            self._connection.net.call_soon_with_future(self._connection.look_up)
        for partition in partitions:
            self._leaderless.setdefault(partition, now)
        self.hold(partitions)

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
            max_wait_ms=_SHORT_WAIT_MS if self._left_out or self._held else self._wait_ms,
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
        requested = {partition: self._next[partition] for partition in partitions}
        self._outstanding.add(node)
        try:
            future = self._connection.manager.send(request, node_id=node)
        except (kafka_errors.KafkaError, OSError) as error:
            self._failed(node, requested, error)
            return
        future.add_callback(partial(self._answered, node, requested))
        future.add_errback(partial(self._failed, node, requested))

    def _failed(self, node: int, requested: Iterable[TopicPartition], error: BaseException) -> None:
        if self._connection.manager.closed:
            return
        self._outstanding.discard(node)
        self._sessions[node].handle_error(error)
        self._connection.cluster.request_update()
        self.hold(requested)

    def _answered(self, node: int, requested: Mapping[TopicPartition, int], response: Any) -> None:
        self._outstanding.discard(node)
        self._changed = True
        self._silent_s = 0.0
        try:
            if self._sessions[node].handle_response(response):
                for topic in response.responses:
                    for answer in topic.partitions:
                        partition = TopicPartition(topic.topic, answer.partition_index)
                        # It may have been forgotten, or wanted from another offset, meanwhile.
                        offset = requested.get(partition)
                        if offset is not None and self._next.get(partition) == offset:
                            self._take(partition, answer)
        except Exception as error:  # noqa: BLE001 - the future would only log it
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
                self.hold([partition])
            self._connection.cluster.request_update()
