"""Deliver streams: send the requested blocks of a chain, then a status, to thousands of readers.

`seek.py` decides which blocks are sent; this module reads them, shares them between streams and
writes them. No gRPC here: a stream is a `Stream` of bytes.

    tail           wakes all streams that wait for a chain's next block, once for each change
    cache          the answers sent lately: streams of the same chain share one copy of a block
    send window    limits how many bytes are being sent at once (`send_window.py`)

A stream holds only the block that it writes, and reads the next one when the client has taken that
one (gRPC's flow control). So a client that stops reading costs one block and one coroutine, and
delays no other. The cache holds at most `CACHE_BYTES_MAX`, or one block.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

from multicast.errors import AmcastError
from ordering_osn.api.broadcast import Stream
from ordering_osn.api.channels import Channel, Channels, Refused, Status
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.responses import block_answer, read_answer, status_answer
from ordering_osn.api.seek import (
    ReadAccess,
    Seek,
    SeekRequest,
    channel_of,
    read_request,
    seek_info,
)
from ordering_osn.api.send_window import SendWindow
from ordering_osn.chain.blocks import is_config
from ordering_osn.ledger.errors import Pruned
from ordering_osn.protos import Block, SeekInfo

# About 30 blocks of 2 MB (PreferredMaxBytes in docs/ordering.md). Streams at a chain's end need its
# newest block only; with ten times less, a few streams that read old blocks would push it out.
CACHE_BYTES_MAX = 64 << 20
# Threads that read ledgers: while one waits for the disk, the other serves the remaining chains.
# A block is read once, however many streams wait for it, so few reads run at the same time.
_READER_THREADS = 2
_log = logging.getLogger("amcast.osn.deliver")


class _Tail:
    """Wakes streams on the event loop when a chain changes, in whichever thread it changed."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._loop = asyncio.get_running_loop()
        self._wake_is_due = False
        self.next_change = asyncio.Event()  # which sets it; take it BEFORE reading the chain
        self.unwatch = channel.watch(self._schedule_wake)

    def wake(self) -> None:
        """Wake all waiting streams; on the event loop."""
        self._wake_is_due = False
        event, self.next_change = self.next_change, asyncio.Event()
        event.set()

    def _schedule_wake(self) -> None:
        if not self._wake_is_due and not self._loop.is_closed():
            self._wake_is_due = True
            self._loop.call_soon_threadsafe(self.wake)


class _Cache:
    """Answers by (chain, block number), least recently used first; one read serves all waiters."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, int], asyncio.Future[bytes]] = OrderedDict()
        self._bytes = 0
        self._threads = ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="amcast-deliver")

    async def answer(self, channel: Channel, number: int) -> bytes:
        """Return the answer that holds the block; raises what `ledger.read` raises."""
        key = (channel.name, number)
        read = self._answers.get(key)
        if read is None:
            read = asyncio.get_running_loop().run_in_executor(
                self._threads, lambda: block_answer(channel.ledger.read(number))
            )
            self._answers[key] = read
            read.add_done_callback(lambda done: self._keep(key, done))
        else:
            self._answers.move_to_end(key)
        return read.result() if read.done() else await asyncio.shield(read)

    def _keep(self, key: tuple[str, int], read: asyncio.Future[bytes]) -> None:
        if read.cancelled() or read.exception() is not None:
            self._answers.pop(key, None)
            return
        self._bytes += len(read.result())
        for old in list(self._answers):
            if self._bytes <= CACHE_BYTES_MAX or len(self._answers) == 1:
                break
            if self._answers[old].done():
                self._bytes -= len(self._answers.pop(old).result())

    def close(self) -> None:
        """Let the reader threads end; does not wait for them."""
        self._threads.shutdown(wait=False)


class Deliver:
    """All Deliver streams of a node."""

    def __init__(
        self, channels: Channels, *, metrics: Metrics, clock: Callable[[], datetime]
    ) -> None:
        self._channels = channels
        self._metrics = metrics
        self._clock = clock
        self._tails: dict[str, _Tail] = {}
        self._cache = _Cache()
        self._send_window = SendWindow()
        self._closing = False

    async def serve(self, stream: Stream, tls_hash: bytes | None) -> str:
        """Answer one request after another, until the client ends or a status is not SUCCESS.

        Returns the reason for that status: Fabric's answer has no field for it.
        """
        self._metrics.deliver_streams_opened.add()
        try:
            while (raw := await stream.read()) is not None:
                status, why = await self._request(stream, raw, tls_hash)
                del raw  # too large a one, perhaps: the client may not read for minutes
                await stream.write(status_answer(status))
                if status != Status.SUCCESS:
                    return why
        finally:
            self._metrics.deliver_streams_closed.add()
        return ""

    def close(self) -> None:
        """End all streams with 503."""
        self._closing = True
        for tail in self._tails.values():
            tail.unwatch()
            tail.wake()
        self._cache.close()

    async def _request(
        self, stream: Stream, raw: bytes, tls_hash: bytes | None
    ) -> tuple[Status, str]:
        try:
            request = read_request(raw, now=self._clock(), tls_hash=tls_hash)
            channel = channel_of(self._channels, request.channel)
        except Refused as refused:
            return _refusal("a request", refused)
        labels = (channel.name, "false", "block")  # channel, filtered, data_type
        self._metrics.deliver_requests_received.add(*labels)
        # This is counted where the client disconnects while its stream waits.
        status, why = Status.INTERNAL_SERVER_ERROR, ""
        try:
            status = await self._blocks(stream, channel, request)
        except Refused as refused:
            status, why = _refusal(channel.name, refused)
        finally:
            success = "true" if status == Status.SUCCESS else "false"
            self._metrics.deliver_requests_completed.add(*labels, success)
        return status, why

    async def _blocks(self, stream: Stream, channel: Channel, request: SeekRequest) -> Status:
        info = seek_info(request.data)
        strict = info.error_response == SeekInfo.STRICT
        bare = info.content_type == SeekInfo.HEADER_WITH_SIG
        self._check_up(channel, strict=strict)
        access = ReadAccess([channel], request.signed)
        access.check(self._clock())
        party = (stream.granted(request.signed.creator), channel.name)
        ledger = channel.ledger
        seek = Seek(info, base=ledger.base, height=ledger.height)
        tail = self._tail(channel)
        while True:
            change = tail.next_change
            self._check_up(channel, strict=strict)
            number = seek.next(ledger.height)
            if number is None:
                await change.wait()
                continue
            answer = await self._read(channel, number)
            access.check(self._clock())
            await self._send_window.send(stream, _without_data(answer) if bare else answer, party)
            self._metrics.deliver_blocks_sent.add(channel.name, "false", "block")
            if seek.delivered():
                return Status.SUCCESS

    def _check_up(self, channel: Channel, *, strict: bool) -> None:
        if self._closing:
            raise Refused(Status.SERVICE_UNAVAILABLE, "this node is stopping")
        if strict and channel.errored:
            raise Refused(Status.SERVICE_UNAVAILABLE, channel.why_errored)

    async def _read(self, channel: Channel, number: int) -> bytes:
        try:
            return await self._cache.answer(channel, number)
        except Pruned as error:
            raise Refused(Status.NOT_FOUND, str(error)) from error
        except (AmcastError, OSError, RuntimeError) as error:
            raise Refused(Status.SERVICE_UNAVAILABLE, str(error)) from error

    def _tail(self, channel: Channel) -> _Tail:
        tail = self._tails.get(channel.name)
        if tail is None or tail.channel is not channel:
            if tail is not None:
                tail.unwatch()
            tail = self._tails[channel.name] = _Tail(channel)
        return tail


def _refusal(what: str, refused: Refused) -> tuple[Status, str]:
    status = Status(refused.status)
    _log.info("%s: %s %s", what, status.name, refused)
    return status, refused.info


def _without_data(answer: bytes) -> bytes:
    """Return the answer without the block's data; a config block stays whole."""
    block: Any = Block.FromString(read_answer(answer))
    if is_config(block):
        return answer
    return block_answer(Block(header=block.header, metadata=block.metadata).SerializeToString())
