"""The watcher of the kafka-python driver: it reports when the ends of logs move.

It keeps one long poll outstanding at each leader; `watch_connection.py` describes the request and
why no payload comes with the answers. This module finds leaders, keeps a connection to each, and
waits on all connections at once.

    unassigned  a log without a connection: its leader, and perhaps its end, must be looked up
    opening     the connection to its leader is being opened
    assigned    watched over a connection

kafka-python's event loop is driven only while a log is unassigned or opening. Otherwise one poll,
one read and the decoding of a few numbers lie between a broker's answer and the caller.

Invariant: each log is unassigned, or waits for one opening, or is assigned to one connection.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka import errors as kafka_errors

from multicast.drivers.kafka.connection import RETRY_S, Connection
from multicast.drivers.kafka.fetch_request import FETCH_KEY, FETCH_VERSION, FetchAnswer
from multicast.drivers.kafka.leader_answers import ends_led_by, ends_now
from multicast.drivers.kafka.sockets import open_socket
from multicast.drivers.kafka.watch_connection import SentinelRecord, WatchConnection
from multicast.drivers.protocol import TopicPartition
from multicast.errors import UsageError

_WAIT_S = 0.5  # of a long poll; Kafka's default. Growth ends it at once
# A log that is being assigned waits for the long poll of its connection to end, so the poll is
# short then: at most 50 requests a second.
_SHORT_WAIT_S = 0.02
# From this spacing on nothing waits for an end, so a question need not be answered at the moment
# when a message comes, and so do its readers: it is answered at once. After so long without growth
# it is a long poll again, which costs nothing while all is at rest.
_PACED_S = 0.05
_AT_REST_S = 1.0


class _Opening(NamedTuple):
    watch: Any  # the package's future for a `WatchConnection`
    logs: list[TopicPartition]


class KafkaPythonWatcher:
    """Follows last stable offsets; `sentinel_topic` holds the sentinel records, if there is one."""

    def __init__(
        self,
        open_connection: Callable[[], Connection],
        starts: Mapping[TopicPartition, int],
        *,
        sentinel_topic: str | None = None,
    ) -> None:
        self.spacing_s = 0.0
        self.counts: Counter[str] = Counter()  # connections, requests, bytes of their answers
        self._sentinel_topic = sentinel_topic
        self._connection = open_connection()
        self._wait_s = min(_WAIT_S, self._connection.timeout_s / 2)
        self._reported: dict[TopicPartition, int] = {}
        self._ends_unknown = set(starts)  # their ends must be requested
        self._moved: dict[TopicPartition, int] = {}
        now = time.monotonic()
        self._unassigned: dict[TopicPartition, float] = dict.fromkeys(starts, now)  # since when
        self._lookup_at = now
        self._lookup: Any = None  # the package's future for leaders and ends
        self._openings: dict[int, _Opening] = {}
        self._watches: dict[int, WatchConnection] = {}
        self._silent_s = 0.0
        self._moved_at = now
        self._woken = False
        self._closed = False
        self._poll = select.poll()
        self._loop = self._connection.selector.fileno()
        self._poll.register(self._loop, select.POLLIN)
        self._reading: dict[int, int] = {}  # file descriptor -> broker

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Start to follow these, or look them up again."""
        self.remove(partitions)
        self._ends_unknown.update(partitions)
        self._look_up_later(partitions)
        self._lookup_at = time.monotonic()

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop following these; their part of an outstanding answer is ignored."""
        for partition in partitions:
            self._unassigned.pop(partition, None)
            self._ends_unknown.discard(partition)
            self._reported.pop(partition, None)
            self._moved.pop(partition, None)
        removed = set(partitions)
        for watch in self._watches.values():
            for log in [log for log in watch.logs if log in removed]:
                watch.remove(log)
        for opening in self._openings.values():
            opening.logs[:] = [log for log in opening.logs if log not in removed]

    def highs(self) -> Mapping[TopicPartition, int]:
        """Return the high watermarks above the end, as last reported."""
        watches = list(self._watches.values())
        return {log: high for watch in watches for log, high in watch.highs()}

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Wait up to `timeout_s` for an end to move; return those that moved since last time."""
        if self._closed:
            raise UsageError("This watcher is closed; open another one.")
        now = time.monotonic()
        deadline = now + timeout_s
        while True:
            self._reconnect(now)
            # The next request travels while the caller processes these ends.
            request_at = self._send_requests(now)
            if self._moved:
                break
            last = self._woken or now >= deadline
            until = now if last else min(deadline, request_at)
            self._wait(max(0.0, until - now))
            if last and not self._moved:
                break
            now = time.monotonic()
        self._woken = False
        moved, self._moved = self._moved, {}
        return moved

    def wake(self) -> None:
        """Make a poll, or the next one, return early."""
        self._woken = True
        self._connection.net.wakeup()

    def close(self) -> None:
        """Close the sockets."""
        if self._closed:
            return
        self._closed = True
        for watch in self._watches.values():
            watch.close()
        self._connection.close()
        # The loop may have finished opening a connection in its last run.
        for opening in self._openings.values():
            if opening.watch.is_done and opening.watch.exception is None:
                opening.watch.value.close()

    # -- requests and answers -------------------------------------------------------------------

    def _send_requests(self, now: float) -> float:
        """Send the requests that are due; return the time of the next one."""
        next_at = float("inf")
        wait_s = _SHORT_WAIT_S if self._unassigned or self._openings else self._wait_s
        if self.spacing_s >= _PACED_S and now - self._moved_at < _AT_REST_S:
            wait_s = 0.0
        timeout_s = self._connection.timeout_s
        for node, watch in list(self._watches.items()):
            if watch.due:
                if now - watch.requested_at > self._wait_s + timeout_s:
                    self._disconnect(node)
                continue
            allowed_at = max(watch.pause_until, watch.requested_at + self.spacing_s)
            if allowed_at > now:
                next_at = min(next_at, allowed_at)
            elif watch.logs:
                try:
                    watch.request(now, wait_s=min(wait_s, self._wait_s), timeout_s=timeout_s)
                except OSError:
                    self._disconnect(node)
        looks_up = self._unassigned and self._lookup is None  # also for what has just ended
        return min(next_at, self._lookup_at) if looks_up else next_at

    def _wait(self, timeout_s: float) -> None:
        """Wait for an event; raise `ClusterUnreachable` if answers have been due for too long."""
        began = time.monotonic()
        busy = self._lookup is not None or bool(self._openings)
        if busy:
            self._drive_loop()
            # A finished future is used at once; the loop's own timers may fire a little late.
            done = any(future.is_done for future in self._futures())
            timeout_s = 0.0 if done else min(timeout_s, RETRY_S)
        ready = self._poll.poll(timeout_s * 1000)
        for number, _ in ready:
            if number == self._loop:
                self._drive_loop()
            else:
                self._read(self._reading[number])
        if not ready:
            self._drive_loop()
        if self._unassigned or any(watch.due for watch in self._watches.values()):
            self._silent_s += time.monotonic() - began
            if self._silent_s > self._connection.timeout_s:
                self._silent_s = 0.0
                raise self._connection.manager.unreachable(self._connection.timeout_s)

    def _drive_loop(self) -> None:
        """Run the package's loop without waiting."""
        self._connection.net.poll(timeout_ms=0)
        self._connection.net.drain()

    def _read(self, node: int) -> None:
        watch = self._watches[node]
        if not watch.due:  # without a request only the end of the connection can arrive
            self._disconnect(node)
            return
        try:
            events = watch.receive(time.monotonic())
        except OSError:
            self._disconnect(node)
            return
        if events is None:
            return
        self._silent_s = 0.0
        for event in events:
            if event.error:
                self._reassign(watch, event)
            else:
                self._report(event.partition, event.end)

    def _reassign(self, watch: WatchConnection, answer: FetchAnswer) -> None:
        """Look up the leader again of a log for which a broker reports an error."""
        error = kafka_errors.for_code(answer.error)
        if issubclass(error, kafka_errors.AuthorizationError):
            raise self._connection.access.lacks("Read", "topic", answer.partition.topic)
        if error is kafka_errors.OffsetOutOfRangeError:
            # The log was trimmed past this offset, truncated or recreated.
            self._ends_unknown.add(answer.partition)
        watch.remove(answer.partition)
        self._look_up_later([answer.partition])

    def _report(self, partition: TopicPartition, end: int) -> None:
        if self._reported.get(partition) != end:
            self._reported[partition] = self._moved[partition] = end
            self._moved_at = time.monotonic()

    # -- leaders and connections ----------------------------------------------------------------

    def _look_up_later(self, logs: Iterable[TopicPartition]) -> None:
        now = time.monotonic()
        for log in logs:
            self._unassigned.setdefault(log, now)
        self._lookup_at = now + RETRY_S

    def _reconnect(self, now: float) -> None:
        """Use the leaders and connections that are ready; start a look-up if one is due."""
        if self._lookup is not None and self._lookup.is_done:
            lookup, self._lookup = self._lookup, None
            self._lookup_at = now + RETRY_S
            if lookup.exception is None:
                self._silent_s = 0.0
                self._take_leaders(*lookup.value)
            self._raise_permanent(lookup.exception)
        for node, opening in list(self._openings.items()):
            if opening.watch.is_done:
                del self._openings[node]
                if opening.watch.exception is None:
                    self._add(node, opening.watch.value, opening.logs)
                else:
                    self._look_up_later(opening.logs)
                self._raise_permanent(opening.watch.exception)
        if self._unassigned and self._lookup is None and now >= self._lookup_at:
            for log, since in self._unassigned.items():
                self._connection.raise_if_unknown([log], since=since)
            self._lookup = self._submit(self._find_leaders, list(self._unassigned))

    def _take_leaders(
        self, leaders: Mapping[int, list[TopicPartition]], ends: Mapping[TopicPartition, int]
    ) -> None:
        """Report new ends, and assign each log with a known end to its leader's connection."""
        for log, end in ends.items():
            if log in self._ends_unknown:
                self._ends_unknown.discard(log)
                self._report(log, end)
        for node, logs in leaders.items():
            ready = [
                log for log in logs if log in self._unassigned and log not in self._ends_unknown
            ]
            for log in ready:
                del self._unassigned[log]
            if node in self._watches:
                self._assign(self._watches[node], ready)
            elif node in self._openings:
                self._openings[node].logs.extend(ready)
            elif ready:
                self._openings[node] = _Opening(self._submit(self._open, node), ready)

    def _add(self, node: int, watch: WatchConnection, logs: Iterable[TopicPartition]) -> None:
        self.counts["connections"] += 1
        self._watches[node] = watch
        self._reading[watch.fileno()] = node
        self._poll.register(watch, select.POLLIN)
        self._assign(watch, logs)

    def _assign(self, watch: WatchConnection, logs: Iterable[TopicPartition]) -> None:
        for log in logs:
            watch.add(log, self._reported[log])

    def _disconnect(self, node: int) -> None:
        watch = self._watches.pop(node)
        del self._reading[watch.fileno()]
        self._poll.unregister(watch)
        watch.close()
        self._look_up_later(watch.logs)

    def _submit(self, coroutine: Callable[..., Any], *arguments: object) -> Any:
        return self._connection.net.call_soon_with_future(coroutine, *arguments)

    def _futures(self) -> list[Any]:
        futures = [opening.watch for opening in self._openings.values()]
        return futures if self._lookup is None else [self._lookup, *futures]

    def _raise_permanent(self, error: BaseException | None) -> None:
        """Raise an error that a retry does not remove."""
        passing = isinstance(error, kafka_errors.KafkaError | OSError)
        if error is not None and (
            not passing or isinstance(error, kafka_errors.AuthorizationError)
        ):
            raise self._connection.wrapped(error)

    # -- on the package's loop --------------------------------------------------------------------

    async def _find_leaders(
        self, logs: list[TopicPartition]
    ) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, int]]:
        connection = self._connection
        connection.follow(logs)
        # The leaders in the cached metadata are wrong or missing, so the cache is refreshed.
        await connection.refresh()
        leaders = await connection.leaders(logs)
        wanted = [log for log in logs if log in self._ends_unknown]
        return leaders, await ends_now(connection, wanted) if wanted else {}

    async def _open(self, node: int) -> WatchConnection:
        sentinel = None
        if self._sentinel_topic is not None:
            try:
                ends = await ends_led_by(self._connection, node, self._sentinel_topic)
            except (kafka_errors.KafkaError, OSError):
                ends = {}  # the connection works without a sentinel
            sentinels = (SentinelRecord(log, end - 1) for log, end in ends.items() if end > 0)
            sentinel = next(sentinels, None)
        client_id = self._connection.manager.config["client_id"]
        opened = await open_socket(self._connection, node, FETCH_KEY, FETCH_VERSION)
        return WatchConnection(opened, client_id, sentinel, self.counts)
