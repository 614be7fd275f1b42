"""Streams of Broadcast and BroadcastMulti: each message is answered in its turn.

Each message is submitted as it is read, so several are in flight at once. A stream may end with an
answer: Broadcast's does with the first but SUCCESS, because its answers do not say which envelope
they are for. Then no message is read behind one that was refused before its submission first waited
(for its content), so no later envelope is ordered, as with Fabric. Behind an envelope that could
not be stored (503), others may have been in flight: they get no answer, and the client does not
know whether they are ordered. BroadcastMulti's answers name their bundles, so a refusal ends
nothing.

No gRPC here: the stream is a `Stream` of bytes.

A large config update is judged in a thread; no message is read before it is answered.

Invariant: answered <= submitted <= answered + `IN_FLIGHT_MAX`; the messages in flight, all but the
newest, have at most `IN_FLIGHT_BYTES_MAX` bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from ordering_osn.api.channels import HEAVY_BYTES, Channels, Refused, Status
from ordering_osn.api.responses import SUCCESS, status_answer
from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope
from ordering_osn.chain.transactions import Malformed, channel_header
from ordering_osn.protos import DecodeError, HeaderType
from ordering_osn.wire.multichain_pb2 import Bundle, BundleContent

# Messages. At 10 ms for an acknowledgement by all replicas, one stream reaches 25,600 envelopes/s,
# more than a node verifies. With ten times less, the round trip to Kafka could be the limit; with
# ten times more, ten times as many envelopes would get no answer behind one that failed.
IN_FLIGHT_MAX = 256
# Above Fabric's default for the largest envelope (AbsoluteMaxBytes, 10 MB), so the next envelope is
# read while one of that size is stored; two of the largest bundles (`bundle.BUNDLE_BYTES_MAX`).
# Each stream may hold so much memory.
IN_FLIGHT_BYTES_MAX = 17 << 20
_CONFIG_UPDATE = int(HeaderType.CONFIG_UPDATE)
_log = logging.getLogger("amcast.osn.broadcast")


class Stream(Protocol):
    """A stream of messages to and from one client. At most one read and one write at a time."""

    async def read(self) -> bytes | None:
        """Wait for the next message; None once the client has ended its side."""

    async def write(self, message: bytes) -> None:
        """Send a message; returns when flow control allows another."""

    def granted(self, creator: bytes) -> Hashable:
        """Note that a request which `creator` signed was granted; give the client that it names.

        The first one names it. Raises `seek.Refused` where that client has too many streams.
        """


class Panicked(Exception):
    """Submitting a message raised an unexpected error; this stream ends, others go on."""


class Answered(NamedTuple):
    """The answer to one message, and whether the stream ends with it."""

    raw: bytes
    ends: bool


class AnsweredStream:
    """One stream, from its first message to its end. `submit` gives the answer to a message."""

    def __init__(
        self,
        stream: Stream,
        submit: Callable[[bytes], Awaitable[Answered]],
        *,
        waits: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Take a stream; `waits`: whether a message is answered before the next one is read."""
        self._stream, self._waits = stream, waits
        self._call = submit
        self._open: deque[tuple[asyncio.Task[Answered], int]] = deque()
        self._bytes = 0
        self._refused = False
        self._ended = False
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        """Answer until the client ends the stream, or until an answer that ends it.

        Raises `Panicked`. What was submitted is ordered even if the client leaves.
        """
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(forget)
        try:
            while await self._answer_next():
                pass
        finally:
            reader.cancel()
            for task, _ in self._open:
                task.add_done_callback(forget)

    async def _read(self) -> None:
        try:
            while (message := await self._stream.read()) is not None and not self._refused:
                self._bytes += len(message)
                task = asyncio.create_task(self._submit(message))
                self._open.append((task, len(message)))
                self._changed.set()
                waits = self._waits(message)
                del message  # BEFORE all waiting: a client may not send for hours
                if waits:
                    await asyncio.wait({task})
                while len(self._open) >= IN_FLIGHT_MAX or self._bytes > IN_FLIGHT_BYTES_MAX:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._ended = True
            self._changed.set()

    async def _submit(self, message: bytes) -> Answered:
        try:
            answer = await self._call(message)
        except Exception as error:
            self._refused = True
            _log.exception("submitting a message failed; its stream ends")
            raise Panicked(f"{type(error).__name__}: {error}") from error
        self._refused |= answer.ends
        return answer

    async def _answer_next(self) -> bool:
        while not self._open:
            if self._ended:
                return False
            self._changed.clear()
            await self._changed.wait()
        task, size = self._open[0]
        answer = task.result() if task.done() else await asyncio.shield(task)
        self._open.popleft()
        self._bytes -= size
        self._changed.set()
        await self._stream.write(answer.raw)
        return not answer.ends


def forget(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error, so that asyncio does not log it: it is logged, or nobody waits."""
    if not task.cancelled():
        task.exception()


async def serve_envelopes(channels: Channels, stream: Stream) -> None:
    """Serve one Broadcast stream; raises `Panicked`."""
    granted = False

    async def submit(envelope: bytes) -> Answered:
        nonlocal granted
        status, info = await channels.submit(envelope)
        if status == Status.SUCCESS and not granted:
            granted = True
            with suppress(BadEnvelope, Refused):  # it goes on as a stream of nobody known
                stream.granted(ParsedEnvelope(envelope).signature_header.creator)
        if status == Status.SUCCESS and not info:
            return Answered(SUCCESS, ends=False)
        return Answered(status_answer(status, info), ends=status != Status.SUCCESS)

    await AnsweredStream(stream, submit, waits=_is_heavy).serve()


def _is_heavy(envelope: bytes) -> bool:
    """Whether an envelope is a config update that is judged in a thread."""
    try:
        return len(envelope) > HEAVY_BYTES and channel_header(envelope).type == _CONFIG_UPDATE
    except Malformed:
        return False


async def serve_bundles(channels: Channels, stream: Stream) -> None:
    """Serve one BroadcastMulti stream, of a Bundle and a BundleResponse each; raises `Panicked`."""
    granted = False

    async def submit(bundle: bytes) -> Answered:
        nonlocal granted
        answer = await channels.submit_bundle(bundle)
        if answer.status == Status.SUCCESS and not granted:
            granted = True
            with suppress(DecodeError, Refused):
                content = BundleContent.FromString(Bundle.FromString(bundle).content)
                stream.granted(content.submitter)
        return Answered(answer.SerializeToString(), ends=False)

    await AnsweredStream(stream, submit).serve()
