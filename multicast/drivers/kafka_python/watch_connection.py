"""A line to one broker, over which a watcher asks again and again how far logs have grown.

A long poll that waits for one byte of any log is answered the moment a log grows, but with a whole
batch of it, however large (KIP-74). So a *bell* stands in front of the logs: a Kafka partition of
the same broker with one small record, which is asked for anew each time.

    B           the bytes of the bell's last batch, as the broker sends it
    bytes_min   B + 1: the bell alone does not suffice, so the broker waits; a log that has grown
                adds one byte (its own limit), and the broker answers
    bytes_max   B + 1, as a broker takes the less of both for bytes_min: the bell's batch is sent,
                and one byte more is room for no other

So an answer is B bytes and a few numbers a log, whatever the size of the messages. Where a broker
leads no bell, or where a bell is found not to do (below), bytes_min is 1: the answer is one batch.

    wrong       an answer that tells of a log only when its wait was over, or comes early and tells
                nothing; a bell whose answers are wrong several times on end is given up

Invariant: at most one request is outstanding.
"""

from __future__ import annotations

import select
import socket
import ssl
from dataclasses import dataclass

from multicast.drivers.kafka_python.fetch_request import (
    EndsRequest,
    FetchAnswer,
    FetchPartition,
    frame_size,
)
from multicast.drivers.protocol import TopicPartition

_BELL_BYTES_MAX = 1024 * 1024
_CHUNK_BYTES = 32 * 1024
_WRONG_MAX = 3
_JUDGED_WAIT_S = 0.1  # of a shorter wait an answer in time may seem late


@dataclass(slots=True)
class SentinelRecord:
    """The record that a broker sends instead of a log's; `size` is 0 until it was measured."""

    partition: TopicPartition
    offset: int
    size: int = 0


class WatchConnection:
    """A socket to one broker and the logs that are asked for over it; time comes in as `now`."""

    def __init__(
        self, sock: socket.socket, client_id: str, bell: SentinelRecord | None = None
    ) -> None:
        self.bell = bell
        self.logs: dict[TopicPartition, int] = {}  # to the end that is known
        self._highs: dict[TopicPartition, int] = {}  # high watermarks above the end
        self.due = False  # an answer is outstanding
        self.asked_at = 0.0
        self.pause_until = 0.0  # as the broker wishes
        self.asks = 0
        self.bytes_read = 0
        self._wait_s = 0.0
        self._wrong = 0
        self._socket = sock
        self._client_id = client_id
        self._begun = bytearray()
        self._request: EndsRequest | None = None
        self._stale = True

    def fileno(self) -> int:
        """Give what to wait on while an answer is due."""
        return self._socket.fileno()

    def add(self, partition: TopicPartition, end: int) -> None:
        """Ask for this log, too, from its end on."""
        self.logs[partition] = end
        self._stale = True

    def remove(self, partition: TopicPartition) -> None:
        """Ask for it no longer."""
        del self.logs[partition]
        self._highs.pop(partition, None)
        self._stale = True

    def ask(self, now: float, *, wait_s: float, timeout_s: float) -> None:
        """Send the request; raises OSError where the socket does not take it in time."""
        assert not self.due
        if self._stale or self._request is None:
            asked = [FetchPartition(at, end, 1) for at, end in self.logs.items()]
            if self.bell is not None:
                asked.insert(
                    0, FetchPartition(self.bell.partition, self.bell.offset, _BELL_BYTES_MAX)
                )
            self._request = EndsRequest(self._client_id, asked)
            self._stale = False
        enough = self.bell.size + 1 if self.bell is not None and self.bell.size else 1
        written = self._request.written(
            wait_ms=int(wait_s * 1000), bytes_min=enough, bytes_max=enough
        )
        self.due, self.asked_at, self._wait_s = True, now, wait_s
        self.asks += 1
        self._send(memoryview(written), timeout_s)

    def receive(self, now: float) -> list[FetchAnswer] | None:
        """Take what has come; give what has moved or failed, or None while the answer is not whole.

        What has moved is known from then on. Raises OSError where the line is broken.
        """
        assert self.due
        assert self._request is not None
        size = None
        while size is None or len(self._begun) < size:
            try:
                chunk = self._socket.recv(_CHUNK_BYTES)
            except (BlockingIOError, ssl.SSLWantReadError):
                return None
            if not chunk:
                raise ConnectionResetError("The broker closed the connection.")
            self._begun += chunk
            size = frame_size(self._begun)
        self.bytes_read += size
        pause_ms, told = self._request.answered(self._begun)
        self._begun = bytearray()
        self.due = False
        self.pause_until = now + pause_ms / 1000
        return self._news(told, now)

    def told_highs(self) -> list[tuple[TopicPartition, int]]:
        """List the high watermarks, as last told, that lie above the end."""
        return list(self._highs.items())

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _news(self, answers: list[FetchAnswer], now: float) -> list[FetchAnswer]:
        news = []
        rung = self.bell is not None and self.bell.size > 0
        for one in answers:
            known = self.logs.get(one.partition)
            if known is None:
                if self.bell is not None and one.partition == self.bell.partition:
                    rung = self._hear(self.bell, one) and rung
                continue
            if one.error:
                news.append(one)
                continue
            if one.high > one.end:
                self._highs[one.partition] = one.high
            else:
                self._highs.pop(one.partition, None)
            if one.end > known:
                self.logs[one.partition] = one.end
                if not self._stale and self._request is not None:
                    self._request.move(one.partition, one.end)
                news.append(one)
        if rung:
            self._judge(bool(news), now - self.asked_at)
        return news

    def _hear(self, bell: SentinelRecord, answer: FetchAnswer) -> bool:
        """Take the bell's part of an answer; False where the bell was not what we held it for."""
        if answer.error or answer.end == 0 or answer.record_bytes <= 0:
            self._give_up_bell()
        elif answer.end - 1 != bell.offset:
            # Somebody rang it once more: its last record is the bell from now on.
            bell.offset, bell.size, self._stale = answer.end - 1, 0, True
        elif answer.record_bytes != bell.size:
            bell.size = answer.record_bytes
        else:
            return True
        return False

    def _judge(self, moved: bool, took_s: float) -> None:  # noqa: FBT001
        if took_s >= self._wait_s:
            self._wrong += moved and self._wait_s >= _JUDGED_WAIT_S
        elif moved:
            self._wrong = 0
        elif took_s < self._wait_s / 2:
            self._wrong += 1
        if self._wrong == _WRONG_MAX:
            self._give_up_bell()

    def _give_up_bell(self) -> None:
        self.bell = None
        self._stale = True

    def _send(self, data: memoryview, timeout_s: float) -> None:
        while data:
            try:
                data = data[self._socket.send(data) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                poll = select.poll()
                poll.register(self._socket, select.POLLOUT)
                if not poll.poll(timeout_s * 1000):
                    raise TimeoutError("The broker takes no request.") from None
