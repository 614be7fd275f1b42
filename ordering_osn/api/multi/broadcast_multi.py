"""One BroadcastMulti stream: answers each bundle, in order. A refused bundle does not end it.

Fabric's Broadcast ends its stream at the first refusal, as its answers do not say which envelope
they are for. Each answer here names its bundle, and bundles do not depend on one another.

Each bundle is submitted as it is read, so several are in flight at once. No gRPC here: the stream
is a `Stream` of bytes, of a Bundle each, answered by a BundleResponse each.

Invariant: answered <= submitted <= answered + `IN_FLIGHT_MAX`; the bundles in flight, all but the
newest, have at most `IN_FLIGHT_BYTES_MAX` bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from ordering_osn.api.broadcast import IN_FLIGHT_MAX, Panicked, Stream
from ordering_osn.api.channels import BundleAnswer, Channels
from ordering_osn.wire.multichain_pb2 import BundleResponse

# Two of the largest bundles (`bundle.BUNDLE_BYTES_MAX`). Each stream may hold so much memory.
IN_FLIGHT_BYTES_MAX = 17 << 20
_log = logging.getLogger("amcast.osn.broadcast")


class BroadcastMulti:
    """One stream, from its first bundle to its end."""

    def __init__(self, channels: Channels, stream: Stream) -> None:
        self._channels = channels
        self._stream = stream
        self._open: deque[tuple[asyncio.Task[BundleAnswer], int]] = deque()
        self._bytes = 0
        self._ended = False
        self._changed = asyncio.Event()

    async def serve(self) -> None:
        """Answer until the client ends the stream.

        Raises `Panicked`. Bundles that were submitted go on even if the client leaves.
        """
        reader = asyncio.create_task(self._read())
        reader.add_done_callback(_retrieve)
        try:
            while (submitted := await self._next()) is not None:
                task, size = submitted
                answer = await asyncio.shield(task)
                self._open.popleft()
                self._bytes -= size
                self._changed.set()
                await self._stream.write(_response(answer))
        finally:
            reader.cancel()
            for task, _ in self._open:
                task.add_done_callback(_retrieve)

    async def _read(self) -> None:
        try:
            while (raw := await self._stream.read()) is not None:
                self._bytes += len(raw)
                self._open.append((asyncio.create_task(self._submit(raw)), len(raw)))
                self._changed.set()
                while len(self._open) >= IN_FLIGHT_MAX or self._bytes > IN_FLIGHT_BYTES_MAX:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            self._ended = True
            self._changed.set()

    async def _submit(self, raw: bytes) -> BundleAnswer:
        try:
            return await self._channels.submit_bundle(raw)
        except Exception as error:
            _log.exception("submitting a bundle failed; its stream ends")
            raise Panicked(f"{type(error).__name__}: {error}") from error

    async def _next(self) -> tuple[asyncio.Task[BundleAnswer], int] | None:
        """Wait for the oldest bundle that is not answered; None once the client has ended."""
        while not self._open:
            if self._ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._open[0]


def _response(answer: BundleAnswer) -> bytes:
    response: bytes = BundleResponse(
        status=answer.status,
        info=answer.info,
        bundle_id=answer.bundle_id,
        chain=answer.chain,
    ).SerializeToString()
    return response


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Retrieve a task's error, so that asyncio does not log it: it is logged, or nobody waits."""
    if not task.cancelled():
        task.exception()
