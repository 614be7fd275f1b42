"""The watcher: how far logs have grown, by one long poll outstanding per leader.

In go Kafka partitions; out come their last stable offsets, told when they move. What is asked, and
why no payload comes with the answers, stands in `watch_connection.py`. This file finds leaders,
keeps a line to each, and waits on all lines at once.

    sought      a log without a line: its leader, and where need be its end, are to be found
    opening     the line to its leader is being opened
    placed      asked for over a line

kafka-python's event loop is driven only while something is sought or opening; else there is nothing
between a broker's answer and the caller but a poll, a read and a few numbers to unpack.

Invariant: each log is sought, or waits for one opening, or is placed on one line.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kafka import errors as kafka_errors

from multicast.drivers.kafka_python.connection import LATEST, RETRY_S, Connection
from multicast.drivers.kafka_python.fetch_request import FETCH_KEY, FETCH_VERSION, FetchAnswer
from multicast.drivers.kafka_python.sockets import open_socket
from multicast.drivers.kafka_python.watch_connection import SentinelRecord, WatchConnection
from multicast.drivers.protocol import TopicPartition
from multicast.errors import UsageError

_WAIT_S = 0.5
_SHORT_WAIT_S = 0.02  # a log that is found waits for the long poll of its line to end


class _Found(NamedTuple):
    leaders: Mapping[int, list[TopicPartition]]
    ends: Mapping[TopicPartition, int]


class _Opening(NamedTuple):
    line: Any  # the package's future of a `WatchConnection`
    logs: list[TopicPartition]


class KafkaPythonWatcher:
    """Follows last stable offsets; `bells` is the topic of the bells, where there is one."""

    def __init__(
        self,
        open_connection: Callable[[], Connection],
        starts: Mapping[TopicPartition, int],
        *,
        sentinel_topic: str | None = None,
    ) -> None:
        self.spacing_s = 0.0
        self.lines_opened = 0
        self._sentinel_topic = sentinel_topic
        self._connection = open_connection()
        self._wait_s = min(_WAIT_S, self._connection.timeout_s / 2)
        self._told: dict[TopicPartition, int] = {}
        self._endless = set(starts)  # their ends are to be asked for
        self._moved: dict[TopicPartition, int] = {}
        now = time.monotonic()
        self._sought: dict[TopicPartition, float] = dict.fromkeys(starts, now)  # since when
        self._seek_at = now
        self._seeking: Any = None  # the package's future of what is `_Found`
        self._openings: dict[int, _Opening] = {}
        self._lines: dict[int, WatchConnection] = {}
        self._gone = (0, 0)  # asks and bytes of lines that were closed
        self._silent_s = 0.0
        self._woken = False
        self._closed = False
        self._poll = select.poll()
        self._loop = self._connection.selector.fileno()
        self._poll.register(self._loop, select.POLLIN)
        self._reading: dict[int, int] = {}  # a socket's number to its broker's

    @property
    def asks(self) -> int:
        """How many requests were sent."""
        return self._gone[0] + sum(line.asks for line in self._lines.values())

    @property
    def bytes_read(self) -> int:
        """How many bytes came in answer to them."""
        return self._gone[1] + sum(line.bytes_read for line in self._lines.values())

    def add(self, partitions: Sequence[TopicPartition]) -> None:
        """Follow these, too; what is followed already is asked for anew."""
        self.remove(partitions)
        self._endless.update(partitions)
        self._seek(partitions)
        self._seek_at = time.monotonic()

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Follow these no longer; what an answer still says of them is passed over."""
        for one in partitions:
            self._sought.pop(one, None)
            self._endless.discard(one)
            self._told.pop(one, None)
            self._moved.pop(one, None)
        gone = set(partitions)
        for line in self._lines.values():
            for one in [one for one in line.logs if one in gone]:
                line.remove(one)
        for opening in self._openings.values():
            opening.logs[:] = [one for one in opening.logs if one not in gone]

    def highs(self) -> Mapping[TopicPartition, int]:
        """Give the high watermarks, as last heard, that lie above the end."""
        return {at: high for line in list(self._lines.values()) for at, high in line.told_highs()}

    def poll(self, timeout_s: float) -> Mapping[TopicPartition, int]:
        """Give the ends that moved since they were last told."""
        if self._closed:
            raise UsageError("This watcher was closed before.")
        now = time.monotonic()
        deadline = now + timeout_s
        while True:
            self._mend(now)
            # The next request is on its way while the caller works on what was found.
            ask_again_at = self._ask(now)
            if self._moved:
                break
            last = self._woken or now >= deadline
            until = now if last else min(deadline, ask_again_at)
            self._wait(max(0.0, until - now))
            if last and not self._moved:
                break
            now = time.monotonic()
        self._woken = False
        moved, self._moved = self._moved, {}
        return moved

    def wake(self) -> None:
        """End a poll, or the next one, early."""
        self._woken = True
        self._connection.net.wakeup()

    def close(self) -> None:
        """Close the sockets."""
        if self._closed:
            return
        self._closed = True
        for line in self._lines.values():
            line.close()
        self._connection.close()
        # The loop's last turn may have brought a line that was being opened.
        for opening in self._openings.values():
            if opening.line.is_done and opening.line.exception is None:
                opening.line.value.close()

    # -- asking and hearing ---------------------------------------------------------------------

    def _ask(self, now: float) -> float:
        """Send what can be sent now; give when to come again for what waits for its time."""
        again_at = self._seek_at if self._sought and self._seeking is None else float("inf")
        wait_s = _SHORT_WAIT_S if self._sought or self._openings else self._wait_s
        timeout_s = self._connection.timeout_s
        for node, line in list(self._lines.items()):
            if line.due:
                if now - line.asked_at > self._wait_s + timeout_s:
                    self._lose(node)
                continue
            ask_at = max(line.pause_until, line.asked_at + self.spacing_s)
            if ask_at > now:
                again_at = min(again_at, ask_at)
            elif line.logs:
                try:
                    line.ask(now, wait_s=min(wait_s, self._wait_s), timeout_s=timeout_s)
                except OSError:
                    self._lose(node)
        return again_at

    def _wait(self, timeout_s: float) -> None:
        """Wait for anything; raise `ClusterUnreachable` where answers were due for too long."""
        began = time.monotonic()
        busy = self._seeking is not None or bool(self._openings)
        if busy:
            self._turn()
            # What the turn has brought is taken at once; the loop's own timers are kept roughly.
            done = any(one.is_done for one in self._futures())
            timeout_s = 0.0 if done else min(timeout_s, RETRY_S)
        ready = self._poll.poll(timeout_s * 1000)
        for number, _ in ready:
            if number == self._loop:
                self._turn()
            else:
                self._read(self._reading[number])
        if not ready:
            self._turn()
        if self._sought or any(line.due for line in self._lines.values()):
            self._silent_s += time.monotonic() - began
            if self._silent_s > self._connection.timeout_s:
                self._silent_s = 0.0
                raise self._connection.unreachable(self._connection.timeout_s)

    def _turn(self) -> None:
        """Have the package's loop do what it can do without waiting."""
        self._connection.net.poll(timeout_ms=0)
        self._connection.net.drain()

    def _read(self, node: int) -> None:
        line = self._lines[node]
        if not line.due:  # what comes unasked is the broker's good-bye
            self._lose(node)
            return
        try:
            news = line.receive(time.monotonic())
        except OSError:
            self._lose(node)
            return
        if news is None:
            return
        self._silent_s = 0.0
        for one in news:
            if one.error:
                self._failed(line, one)
            else:
                self._tell(one.partition, one.end)

    def _failed(self, line: WatchConnection, answer: FetchAnswer) -> None:
        """Seek a log anew whose leader does not answer for it."""
        error = kafka_errors.for_code(answer.error)
        if issubclass(error, kafka_errors.AuthorizationError):
            raise self._connection.access.lacks("Read", "topic", answer.partition.topic)
        if error is kafka_errors.OffsetOutOfRangeError:
            # The log was trimmed past its end, cut, or made anew.
            self._endless.add(answer.partition)
        line.remove(answer.partition)
        self._seek([answer.partition])

    def _tell(self, partition: TopicPartition, end: int) -> None:
        if self._told.get(partition) != end:
            self._told[partition] = self._moved[partition] = end

    # -- leaders and lines ----------------------------------------------------------------------

    def _seek(self, logs: Iterable[TopicPartition]) -> None:
        now = time.monotonic()
        for at in logs:
            self._sought.setdefault(at, now)
        self._seek_at = now + RETRY_S

    def _mend(self, now: float) -> None:
        """Take what was found and opened; have what is sought looked for."""
        if self._seeking is not None and self._seeking.is_done:
            sought, self._seeking = self._seeking, None
            self._seek_at = now + RETRY_S
            if sought.exception is None:
                self._silent_s = 0.0
                self._take(sought.value)
            self._refuse(sought.exception)
        for node, opening in list(self._openings.items()):
            if opening.line.is_done:
                del self._openings[node]
                if opening.line.exception is None:
                    self._add(node, opening.line.value, opening.logs)
                else:
                    self._seek(opening.logs)
                self._refuse(opening.line.exception)
        if self._sought and self._seeking is None and now >= self._seek_at:
            for at, since in self._sought.items():
                self._connection.refuse_unknown([at], since=since)
            self._seeking = self._soon(self._find, list(self._sought))

    def _take(self, found: _Found) -> None:
        for at, end in found.ends.items():
            if at in self._endless:
                self._endless.discard(at)
                self._tell(at, end)
        for node, logs in found.leaders.items():
            ready = [at for at in logs if at in self._sought and at not in self._endless]
            for at in ready:
                del self._sought[at]
            if node in self._lines:
                self._place(self._lines[node], ready)
            elif node in self._openings:
                self._openings[node].logs.extend(ready)
            elif ready:
                self._openings[node] = _Opening(self._soon(self._open, node), ready)

    def _add(self, node: int, line: WatchConnection, logs: Iterable[TopicPartition]) -> None:
        self.lines_opened += 1
        self._lines[node] = line
        self._reading[line.fileno()] = node
        self._poll.register(line, select.POLLIN)
        self._place(line, logs)

    def _place(self, line: WatchConnection, logs: Iterable[TopicPartition]) -> None:
        for at in logs:
            line.add(at, self._told[at])

    def _lose(self, node: int) -> None:
        line = self._lines.pop(node)
        self._gone = (self._gone[0] + line.asks, self._gone[1] + line.bytes_read)
        del self._reading[line.fileno()]
        self._poll.unregister(line)
        line.close()
        self._seek(line.logs)

    def _soon(self, coroutine: Callable[..., Any], *arguments: object) -> Any:
        return self._connection.net.call_soon_with_future(coroutine, *arguments)

    def _futures(self) -> list[Any]:
        futures = [opening.line for opening in self._openings.values()]
        return futures if self._seeking is None else [self._seeking, *futures]

    def _refuse(self, error: BaseException | None) -> None:
        """Raise an error that trying again does not mend."""
        passing = isinstance(error, kafka_errors.KafkaError | OSError)
        if error is not None and (
            not passing or isinstance(error, kafka_errors.AuthorizationError)
        ):
            raise self._connection.wrapped(error)

    # -- on the package's loop --------------------------------------------------------------------

    async def _find(self, logs: list[TopicPartition]) -> _Found:
        connection = self._connection
        connection.follow(logs)
        # What is sought was led by somebody else, or by nobody known: ask, do not remember.
        await connection.cluster.refresh_metadata()
        leaders = await connection.leaders(logs)
        endless = dict.fromkeys((at for at in logs if at in self._endless), LATEST)
        ends = await connection.list_offsets_once(endless) if endless else {}
        return _Found(leaders, ends)

    async def _open(self, node: int) -> WatchConnection:
        bell = None
        if self._sentinel_topic is not None:
            try:
                ends = await self._connection.ends_led_by(node, self._sentinel_topic)
            except (kafka_errors.KafkaError, OSError):
                ends = {}  # then it goes without
            bell = next((SentinelRecord(at, end - 1) for at, end in ends.items() if end > 0), None)
        client_id = self._connection.manager.config["client_id"]
        opened = await open_socket(self._connection, node, FETCH_KEY, FETCH_VERSION)
        return WatchConnection(opened, client_id, bell)
