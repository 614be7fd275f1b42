"""gRPC server and client of Fabric's `orderer.AtomicBroadcast` and of our own services.

No other module imports `grpc`. Messages pass as bytes: an envelope is ordered with exactly the
bytes that were received, and a block is sent with exactly the bytes of the ledger.

    /orderer.AtomicBroadcast/Broadcast   stream of Envelope → stream of BroadcastResponse
    /orderer.AtomicBroadcast/Deliver     stream of Envelope → stream of DeliverResponse
    /amcast.osn.Receipts/Wait            Envelope → JSON (`receipt_request.py`)
    /amcast.osn.MultiChain/…             `wire/multichain.proto`, `api/multi/`

Everything runs on the event loop that started it; blocking calls run in other threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
)
from datetime import UTC, datetime
from typing import Any, Protocol, Self

from multicast.errors import TimedOut, UsageError
from multicast.web import listen_at
from ordering_osn.api.broadcast import Panicked, serve_bundles, serve_envelopes
from ordering_osn.api.channels import Channels, Status
from ordering_osn.api.connection_errors import ConnectionLost, lost
from ordering_osn.api.deliver import Deliver
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.multi.deliver_multi import DeliverMulti
from ordering_osn.api.multi.log_end import log_end
from ordering_osn.api.multi.status import bundle_status
from ordering_osn.api.receipt_request import wait
from ordering_osn.api.responses import read_answer, read_status
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.identity import fingerprint
from topology import extra

with extra("osn"):
    import grpc
    from grpc import aio

_Messages = Iterable[bytes] | AsyncIterable[bytes]
_Hook = Callable[[], None] | None
_SERVICE, _RECEIPTS = "orderer.AtomicBroadcast", "amcast.osn.Receipts"
_MULTI = "amcast.osn.MultiChain"
MESSAGE_BYTES_MAX = 100 << 20  # Fabric's, in both directions
_INFO = "amcast-info-bin"  # the trailer with the reason why a request for blocks ended
# A client refuses a call whose trailers have more than 8 KiB together (gRPC's default), and then
# knows neither status nor reason. A sentence of ours has a few hundred bytes.
_INFO_BYTES_MAX = 1024
_CLIENT_DEFAULT_BYTES_MAX = 4 << 20  # the largest message that a gRPC client accepts by default
# A node waits up to 30 s for a chain to accept envelopes (`node.ingress.READY_S`), then for Kafka.
ANSWER_S = 60.0
# Calls that end in time get their answer; SIGTERM must stop a node within seconds.
_STOP_GRACE_S = 1.0
# A node of ours ends the call with its status, so the trailer arrives at once. Another server may
# keep the call open; then the client waits so long and reports the status without a reason.
_TRAILER_S = 5.0
# The sender ends when the call does, unless the caller's own iterator of envelopes is still busy;
# its error is then not reported.
_SENDER_ERROR_S = 1.0
_log = logging.getLogger("amcast.osn.wire")
# Each stream costs a coroutine and at most one block. 2,000 are tested (test_deliver_streams.py);
# with ten times less, the peers and clients of a large network would be refused.
STREAMS_MAX = 10_000
_SIZES = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
]
# Fabric's defaults: a ping after two hours of silence, 20 s for its answer. Clients may ping once a
# second, which is no load: Fabric's peers ping once a minute, and may come a moment early.
_SERVER_OPTIONS = [
    *_SIZES,
    ("grpc.keepalive_time_ms", 2 * 60 * 60 * 1000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # A second node on the same port is an error; gRPC would else share the port between both.
    ("grpc.so_reuseport", 0),
]
_CLIENT_OPTIONS = [
    *_SIZES,
    # Each client has its own connection, so that none inherits the back-off of another client that
    # was refused just before.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 120_000),  # twice the interval that Fabric's orderers allow
    ("grpc.keepalive_timeout_ms", 20_000),
]


class StatusAnswer(int):
    """The status that ended a request for blocks; `info` is the reason, empty if none was sent."""

    info: str = ""


class _ClientLeft(Exception):
    """The call ended while a message was written to it."""

    def __init__(self, peer: str, size: int) -> None:
        text = f"client {peer} ended the call while {size} bytes were sent to it"
        self.level = logging.INFO
        if size > _CLIENT_DEFAULT_BYTES_MAX:
            self.level = logging.WARNING
            text += (
                f"; gRPC clients accept {_CLIENT_DEFAULT_BYTES_MAX} bytes by default: "
                "raise the client's maximum receive message length"
            )
        super().__init__(text)


class _Answer(Protocol):
    async def __call__(
        self, channels: Channels, raw: bytes, /, *, now: datetime, tls_hash: bytes | None
    ) -> bytes: ...


class _Stream:
    """A `broadcast.Stream` on gRPC."""

    def __init__(self, context: Any, count: Callable[[str], None]) -> None:
        self._context, self._count = context, count
        self._peer = context.peer()  # gRPC no longer knows it after the call has ended

    async def read(self) -> bytes | None:
        message = await self._context.read()
        if message is aio.EOF:
            return None
        self._count("received")
        raw: bytes = message
        return raw

    async def write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except aio.InternalError as error:
            raise _ClientLeft(self._peer, len(message)) from error
        self._count("sent")


class Server:
    """The gRPC server of a node. `port` 0 takes a free one; after `start` it is the real one."""

    def __init__(
        self,
        channels: Channels,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: TlsFiles | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        streams_max: int = STREAMS_MAX,
    ) -> None:
        self.host, self.port = host, port
        self._channels, self._tls, self._clock = channels, tls, clock
        self._metrics = metrics or Metrics()
        self._streams_max = streams_max
        self._mutual = bool(tls and tls.authorities)

    async def start(self) -> None:
        """Listen; raises `UsageError` where the address or the TLS files cannot be used."""
        self._deliver = Deliver(self._channels, metrics=self._metrics, clock=self._clock)
        self._deliver_multi = DeliverMulti(self._channels, clock=self._clock)
        self._server = aio.server(
            options=[
                *_SERVER_OPTIONS,
                # Streams that arrive all at once wait for their turn; by default gRPC refuses some
                # of them at random above one thousand.
                ("grpc.server.max_pending_requests", self._streams_max),
                ("grpc.server.max_pending_requests_hard_limit", self._streams_max),
            ],
            maximum_concurrent_rpcs=self._streams_max,
        )
        broadcast = grpc.stream_stream_rpc_method_handler(self._serve_broadcast)
        deliver = grpc.stream_stream_rpc_method_handler(self._serve_deliver)
        broadcast_multi = grpc.stream_stream_rpc_method_handler(self._serve_broadcast_multi)
        status = grpc.unary_unary_rpc_method_handler(self._serve_status)
        waits = grpc.unary_unary_rpc_method_handler(self._serve_wait)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    _SERVICE, {"Broadcast": broadcast, "Deliver": deliver}
                ),
                grpc.method_handlers_generic_handler(_RECEIPTS, {"Wait": waits}),
                grpc.method_handlers_generic_handler(
                    _MULTI,
                    {
                        "BroadcastMulti": broadcast_multi,
                        "Status": status,
                        "LogEnd": grpc.unary_unary_rpc_method_handler(self._serve_log_end),
                        "DeliverMulti": grpc.unary_stream_rpc_method_handler(self._serve_multi),
                    },
                ),
            )
        )
        host = f"[{self.host}]" if ":" in self.host else self.host
        address = f"{host}:{self.port}"
        where = {"port_option": "--listen", "host_setting": "--listen"}
        # gRPC would give no reason where nobody can listen there.
        tried = await asyncio.to_thread(
            listen_at, self.host, self.port, what="Broadcast and Deliver", **where
        )
        tried.close()
        try:
            if self._tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials(self._tls))
            await self._server.start()
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"cannot listen on {address}: {error}") from error

    async def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """End the Deliver streams (503), give calls `grace_s` to end, then cancel the others."""
        self._deliver.close()
        self._deliver_multi.close()
        await self._server.stop(grace_s)
        await self._deliver_multi.ended()

    @staticmethod
    def _credentials(tls: TlsFiles) -> Any:
        if not tls.certificate or not tls.key:
            raise UsageError("TLS: a server needs a certificate and its key")
        return grpc.ssl_server_credentials(
            [(tls.key, tls.certificate)],
            root_certificates=tls.authorities or None,
            require_client_auth=bool(tls.authorities),
        )

    async def _serve_broadcast(self, _: Any, context: Any) -> None:
        await self._serve_stream(_SERVICE, "Broadcast", context, self._broadcast)

    async def _serve_deliver(self, _: Any, context: Any) -> None:
        await self._serve_stream(_SERVICE, "Deliver", context, self._deliver_stream)

    async def _serve_broadcast_multi(self, _: Any, context: Any) -> None:
        await self._serve_stream(_MULTI, "BroadcastMulti", context, self._broadcast_multi)

    async def _serve_multi(self, request: bytes, context: Any) -> None:
        async def serve(stream: _Stream, context: Any) -> None:
            await self._deliver_multi.serve(stream, request, self._tls_hash(context))

        await self._serve_stream(_MULTI, "DeliverMulti", context, serve)

    async def _broadcast(self, stream: _Stream, context: Any) -> None:
        await self._until_panicked(serve_envelopes(self._channels, stream), context)

    async def _broadcast_multi(self, stream: _Stream, context: Any) -> None:
        await self._until_panicked(serve_bundles(self._channels, stream), context)

    @staticmethod
    async def _until_panicked(serving: Coroutine[Any, Any, None], context: Any) -> None:
        try:
            await serving
        except Panicked:
            await context.abort(
                grpc.StatusCode.INTERNAL, "an unexpected error occurred; see the node's log"
            )

    async def _deliver_stream(self, stream: _Stream, context: Any) -> None:
        why = await self._deliver.serve(stream, self._tls_hash(context))
        if why:
            context.set_trailing_metadata(((_INFO, why.encode()[:_INFO_BYTES_MAX]),))

    async def _serve_stream(self, service: str, method: str, context: Any, serve: Any) -> None:
        metrics, name = self._metrics, (service, method)
        tallies = {
            "received": metrics.grpc_server_stream_messages_received,
            "sent": metrics.grpc_server_stream_messages_sent,
        }
        metrics.grpc_server_stream_requests_received.add(*name)
        code = "Unknown"
        try:
            await serve(_Stream(context, lambda what: tallies[what].add(*name)), context)
            code = "OK"
        except asyncio.CancelledError:
            code = "Canceled"
            raise
        except _ClientLeft as left:
            code = "Canceled"
            _log.log(left.level, "%s: %s", method, left)
            # gRPC raises the same where it notices first; any other error makes it send a status.
            raise asyncio.CancelledError from left
        finally:
            metrics.grpc_server_stream_requests_completed.add(*name, code)

    async def _serve_wait(self, request: bytes, context: Any) -> bytes:
        return await self._serve_unary((_RECEIPTS, "Wait"), request, context, wait)

    async def _serve_status(self, request: bytes, context: Any) -> bytes:
        return await self._serve_unary((_MULTI, "Status"), request, context, bundle_status)

    async def _serve_log_end(self, request: bytes, context: Any) -> bytes:
        return await self._serve_unary((_MULTI, "LogEnd"), request, context, log_end)

    async def _serve_unary(
        self, name: tuple[str, str], request: bytes, context: Any, answer: _Answer
    ) -> bytes:
        self._metrics.grpc_server_unary_requests_received.add(*name)
        code = "Unknown"
        try:
            tls_hash = self._tls_hash(context)
            answered = await answer(self._channels, request, now=self._clock(), tls_hash=tls_hash)
            code = "OK"
        finally:
            self._metrics.grpc_server_unary_requests_completed.add(*name, code)
        return answered

    def _tls_hash(self, context: Any) -> bytes | None:
        if not self._mutual:
            return None
        (certificate,) = context.auth_context()["x509_pem_cert"]
        return fingerprint(certificate)


class NodeClient:
    """A client of one node: `async with NodeClient("host:port") as client`.

    `name` is the name in the server's certificate, where that is not the address's host. Every
    error of gRPC is raised as `ConnectionLost`; the request may have taken effect.
    """

    def __init__(self, address: str, *, tls: TlsFiles | None = None, name: str = "") -> None:
        self.address, self._tls, self._name = address, tls, name

    async def __aenter__(self) -> Self:
        options = list(_CLIENT_OPTIONS)
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
        self._broadcast = self._channel.stream_stream(f"/{_SERVICE}/Broadcast")
        self._deliver = self._channel.stream_stream(f"/{_SERVICE}/Deliver")
        self._wait = self._channel.unary_unary(f"/{_RECEIPTS}/Wait")
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
        call = self._broadcast()
        async with contextlib.aclosing(self._exchange(call, envelopes, timeout_s)) as answers:
            async for answer in answers:
                status, info = read_status(answer)
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
                block_or_status = read_answer(answer)
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
            answer: dict[str, Any] = json.loads(await self._wait(request, timeout=timeout_s))
        except aio.AioRpcError as error:
            raise self._lost(error) from error
        return answer

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

    def _lost(self, error: aio.AioRpcError) -> ConnectionLost:
        return lost(self.address, error.code().name, error.details() or "", self._tls)


async def _info(call: Any) -> str:
    """Return the node's reason for ending a call; empty where it sent none, as Fabric's orderer."""
    with contextlib.suppress(aio.AioRpcError, TimeoutError):
        async with asyncio.timeout(_TRAILER_S):
            for name, value in await call.trailing_metadata() or ():
                if name == _INFO:
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
