"""gRPC client of a node, and of Fabric's orderers.

Messages pass as bytes. Everything runs on the event loop that opened the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from typing import Any, Self, TypeVar

from multicast.errors import TimedOut, UsageError
from multicast.web import is_loopback
from ordering_osn.api.channels import Status
from ordering_osn.api.connection_errors import ConnectionLost, lost
from ordering_osn.api.responses import read_answer, read_status
from ordering_osn.api.services import BROADCAST, INFO_TRAILER, RECEIPTS, sizes
from ordering_osn.api.tls_files import TlsFiles
from topology import extra

with extra("osn"):
    import grpc
    from grpc import aio

_Messages = Iterable[bytes] | AsyncIterable[bytes]
_Hook = Callable[[], None] | None
_Read = TypeVar("_Read")
# A node waits up to 30 s for a chain to accept envelopes (`node.ingress.READY_S`), then for Kafka.
ANSWER_S = 60.0
_ADDRESS = re.compile(r"(?P<host>\[[^]]+\]|[^:\[\]]+):(?P<port>[0-9]{1,5})")
_PORT_MAX = 65535  # TCP's
# A node of ours ends the call with its status, so the trailer arrives at once. Another server may
# keep the call open; then the client waits so long and reports the status without a reason.
_TRAILER_S = 5.0
# The sender ends when the call does, unless the caller's own iterator of envelopes is still busy;
# its error is then not reported.
_SENDER_ERROR_S = 1.0
_CLIENT_OPTIONS = [
    *sizes(),
    # Each client has its own connection, so that none inherits the back-off of another client that
    # was refused just before.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 120_000),  # twice the interval that Fabric's orderers allow
    ("grpc.keepalive_timeout_ms", 20_000),
]


def host_and_port(address: str) -> tuple[str, int]:
    """Read HOST:PORT, an IPv6 address in brackets; raises `UsageError`.

    gRPC itself takes an address without a port for one with the port 443.
    """
    read = _ADDRESS.fullmatch(address)
    if read is None or int(read["port"]) > _PORT_MAX:
        raise UsageError(
            f"{address!r} is not an address; give HOST:PORT, the port at most {_PORT_MAX}"
        )
    return read["host"].strip("[]"), int(read["port"])


def is_own_machine(address: str) -> bool:
    """Whether an address "host:port" is this machine's, which no proxy of http_proxy can reach."""
    return is_loopback(host_and_port(address)[0])


class StatusAnswer(int):
    """The status that ended a request for blocks; `info` is the reason, empty if none was sent."""

    info: str = ""


class NodeClient:
    """A client of one node: `async with NodeClient("host:port") as client`.

    `name` is the name in the server's certificate, where that is not the address's host. Raises
    `UsageError` where the address is none. Every error of gRPC, and an answer that cannot be read,
    is raised as `ConnectionLost`; the request may have taken effect.
    """

    def __init__(self, address: str, *, tls: TlsFiles | None = None, name: str = "") -> None:
        host_and_port(address)
        self.address, self._tls, self._name = address, tls, name

    async def __aenter__(self) -> Self:
        options = list(_CLIENT_OPTIONS)
        if is_own_machine(self.address):
            options.append(("grpc.enable_http_proxy", 0))
        if self._name:
            options.append(("grpc.ssl_target_name_override", self._name))  # type: ignore[arg-type]
        if self._tls is None:
            self._channel = aio.insecure_channel(self.address, options)
        else:
            credentials = grpc.ssl_channel_credentials(
                self._tls.authorities or None,
                self._tls.key or None,
                self._tls.certificate or None,
            )
            self._channel = aio.secure_channel(self.address, credentials, options)
        self._broadcast = self._channel.stream_stream(f"/{BROADCAST}/Broadcast")
        self._deliver = self._channel.stream_stream(f"/{BROADCAST}/Deliver")
        self._wait = self._channel.unary_unary(f"/{RECEIPTS}/Wait")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def broadcast(
        self, envelopes: _Messages, *, timeout_s: float | None = ANSWER_S
    ) -> AsyncIterator[tuple[int, str]]:
        """Send envelopes as they arrive; yields (status, info) for each, in the same order.

        Ends after the first status that is not 200. Raises `TimedOut` where an answer does not
        come within `timeout_s` of the one before it; None waits without limit.
        """
        # A node ends a stream without a first message; a pipe may give it later.
        envelopes = await _begun(envelopes)
        call = self._broadcast()
        async with contextlib.aclosing(self._exchange(call, envelopes, timeout_s)) as answers:
            async for answer in answers:
                status, info = self._understood(read_status, answer)
                yield status, info
                if status != Status.SUCCESS:
                    return

    async def deliver(
        self, *requests: bytes, timeout_s: float | None = None
    ) -> AsyncIterator[bytes | int]:
        """Send requests for blocks (`seek.seek_envelope`); yields blocks (bytes) and statuses.

        A request's blocks come before its status. Ends after the last status, or after the first
        that is not 200. Raises `TimedOut` where the next answer takes longer than `timeout_s`;
        None waits without limit.
        """
        call = self._deliver()
        async with contextlib.aclosing(self._exchange(call, requests, timeout_s)) as answers:
            async for answer in answers:
                block_or_status = self._understood(read_answer, answer)
                if isinstance(block_or_status, int) and block_or_status != Status.SUCCESS:
                    block_or_status = StatusAnswer(block_or_status)
                    block_or_status.info = await _info(call)
                yield block_or_status

    def exchange(
        self,
        method: str,
        messages: _Messages,
        *,
        timeout_s: float | None = None,
        connected: _Hook = None,
    ) -> AsyncGenerator[bytes]:
        """Call `method` ("/SERVICE/METHOD") with serialized messages; yields the answers.

        Messages are sent as they arrive. For each kind of method: one that takes a single message
        gets one. Raises `TimedOut` where the next answer takes longer than `timeout_s`; None
        waits without limit. `connected` is called once the call has a connection to the node.
        Close the iterator (`contextlib.aclosing`) to end the call early.
        """
        return self._exchange(self._channel.stream_stream(method)(), messages, timeout_s, connected)

    async def _exchange(
        self, call: Any, messages: _Messages, timeout_s: float | None, connected: _Hook = None
    ) -> AsyncGenerator[bytes]:
        """Send messages and yield the answers; raises the error of the caller's iterator, too."""
        answers = aiter(call)
        sender = asyncio.create_task(_send(call, messages, connected))
        try:
            while (answer := await self._read(answers, timeout_s)) is not None:
                yield answer
            await asyncio.wait({sender}, timeout=_SENDER_ERROR_S)
            if sender.done() and (error := sender.exception()) is not None:
                raise error
        finally:
            sender.cancel()
            call.cancel()

    async def wait(self, request: bytes, *, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """Wait for a receipt (`receipt_request.receipt_envelope`), at most `timeout_s`."""
        try:
            answer = await self._wait(request, timeout=timeout_s)
        except aio.AioRpcError as error:
            raise self._lost(error) from error
        return self._understood(lambda raw: dict(json.loads(raw)), answer)

    async def _read(self, answers: AsyncIterator[bytes], timeout_s: float | None) -> bytes | None:
        # The iterator yields every answer received, even if writing to the call has failed since:
        # a server that refuses an envelope ends the stream while others are being sent.
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(answers, None)
        except aio.AioRpcError as error:
            raise self._lost(error) from error
        except TimeoutError as error:
            raise TimedOut(f"{self.address} did not answer within {timeout_s:g} s") from error

    def _understood(self, read: Callable[[bytes], _Read], answer: bytes) -> _Read:
        try:
            return read(answer)
        except (ValueError, TypeError, RecursionError) as error:
            raise ConnectionLost(
                f"{self.address} sent no answer of its service: {error}"
            ) from error

    def _lost(self, error: aio.AioRpcError) -> ConnectionLost:
        return lost(self.address, error.code().name, error.details() or "", self._tls)


async def _begun(messages: _Messages) -> _Messages:
    """Wait for the first of messages that come with time; give all."""
    if not isinstance(messages, AsyncIterable):
        return messages
    rest = aiter(messages)
    try:
        first = await anext(rest)
    except StopAsyncIteration:
        return ()

    async def with_first() -> AsyncIterator[bytes]:
        yield first
        async for message in rest:
            yield message

    return with_first()


async def _info(call: Any) -> str:
    """Return the node's reason for ending a call; empty where it sent none, as Fabric's orderer."""
    with contextlib.suppress(aio.AioRpcError, TimeoutError):
        async with asyncio.timeout(_TRAILER_S):
            for name, value in await call.trailing_metadata() or ():
                if name == INFO_TRAILER:
                    return bytes(value).decode(errors="replace")
    return ""


async def _send(call: Any, messages: _Messages, connected: _Hook) -> None:
    """Write messages as flow control allows. A broken stream is reported by the reading side.

    An error of the `messages` iterator is raised after the call's sending side was closed, so that
    the envelopes sent before it are still answered.
    """
    failed = None
    try:
        if connected is not None:
            await call.wait_for_connection()
            connected()
        if isinstance(messages, AsyncIterable):
            async for message in messages:
                await call.write(message)
        else:
            for message in messages:
                await call.write(message)
    except (aio.AioRpcError, asyncio.InvalidStateError):
        return
    except Exception as error:  # noqa: BLE001 - of the iterator; raised below
        failed = error
    with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
        await call.done_writing()
    if failed is not None:
        raise failed
