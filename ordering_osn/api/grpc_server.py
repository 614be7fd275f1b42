"""gRPC server of Fabric's `orderer.AtomicBroadcast` and of our own services.

Only `grpc_client.py` imports `grpc`, too. Messages pass as bytes: an envelope is ordered with
exactly the bytes that were received, and a block is sent with exactly the bytes of the ledger.

    /orderer.AtomicBroadcast/Broadcast   stream of Envelope → stream of BroadcastResponse
    /orderer.AtomicBroadcast/Deliver     stream of Envelope → stream of DeliverResponse
    /amcast.osn.Receipts/Wait            Envelope → JSON (`receipt_request.py`)
    /amcast.osn.MultiChain/…             `wire/multichain.proto`, `api/multi/`

Everything runs on the event loop that started it; blocking calls run in other threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Protocol

from multicast.errors import UsageError
from multicast.web import listen_at
from ordering_osn.api.broadcast import Panicked, serve_bundles, serve_envelopes
from ordering_osn.api.channels import Channels
from ordering_osn.api.deliver import Deliver
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.multi.deliver_multi import DeliverMulti
from ordering_osn.api.multi.log_end import log_end
from ordering_osn.api.multi.status import bundle_status
from ordering_osn.api.receipt_request import wait
from ordering_osn.api.services import (
    BROADCAST,
    INFO_TRAILER,
    MESSAGE_BYTES_MAX,
    MULTI_CHAIN,
    RECEIPTS,
    SIZES,
)
from ordering_osn.api.tls_files import TlsFiles
from ordering_osn.identity import fingerprint
from topology import extra

with extra("osn"):
    import grpc
    from grpc import aio

# A client refuses a call whose trailers have more than 8 KiB together (gRPC's default), and then
# knows neither status nor reason. A sentence of ours has a few hundred bytes.
_INFO_BYTES_MAX = 1024
_CLIENT_DEFAULT_BYTES_MAX = 4 << 20  # the largest message that a gRPC client accepts by default
# Calls that end in time get their answer; SIGTERM must stop a node within seconds.
_STOP_GRACE_S = 1.0
_log = logging.getLogger("amcast.osn.wire")
# Each stream costs a coroutine and at most one block. 2,000 are tested (test_deliver_streams.py);
# with ten times less, the peers and clients of a large network would be refused.
STREAMS_MAX = 10_000
# Half a message of anybody is held in memory until its stream ends: so a node takes no larger ones
# than its channels can use. Fabric's default AbsoluteMaxBytes is the least; bundles have less.
_RECEIVED_BYTES_MIN = 10 << 20
_AROUND_BYTES = 64 << 10  # an envelope a little over the limit is answered 400
# Fabric's defaults: a ping after two hours of silence, 20 s for its answer. Clients may ping once a
# second, which is no load: Fabric's peers ping once a minute, and may come a moment early.
_SERVER_OPTIONS = [
    *SIZES,
    ("grpc.keepalive_time_ms", 2 * 60 * 60 * 1000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # A second node on the same port is an error; gRPC would else share the port between both.
    ("grpc.so_reuseport", 0),
]


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
                ("grpc.max_receive_message_length", self._received_bytes_max()),
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
                    BROADCAST, {"Broadcast": broadcast, "Deliver": deliver}
                ),
                grpc.method_handlers_generic_handler(RECEIPTS, {"Wait": waits}),
                grpc.method_handlers_generic_handler(
                    MULTI_CHAIN,
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

    def _received_bytes_max(self) -> int:
        channels = (self._channels.get(name) for name in self._channels.names())
        largest = (each.config.parameters.bytes_absolute for each in channels if each is not None)
        needed = max(_RECEIVED_BYTES_MIN, *largest) + _AROUND_BYTES
        return min(MESSAGE_BYTES_MAX, needed)

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
        await self._serve_stream(BROADCAST, "Broadcast", context, self._broadcast)

    async def _serve_deliver(self, _: Any, context: Any) -> None:
        await self._serve_stream(BROADCAST, "Deliver", context, self._deliver_stream)

    async def _serve_broadcast_multi(self, _: Any, context: Any) -> None:
        await self._serve_stream(MULTI_CHAIN, "BroadcastMulti", context, self._broadcast_multi)

    async def _serve_multi(self, request: bytes, context: Any) -> None:
        async def serve(stream: _Stream, context: Any) -> None:
            await self._deliver_multi.serve(stream, request, self._tls_hash(context))

        await self._serve_stream(MULTI_CHAIN, "DeliverMulti", context, serve)

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
            context.set_trailing_metadata(((INFO_TRAILER, why.encode()[:_INFO_BYTES_MAX]),))

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
        return await self._serve_unary((RECEIPTS, "Wait"), request, context, wait)

    async def _serve_status(self, request: bytes, context: Any) -> bytes:
        return await self._serve_unary((MULTI_CHAIN, "Status"), request, context, bundle_status)

    async def _serve_log_end(self, request: bytes, context: Any) -> bytes:
        return await self._serve_unary((MULTI_CHAIN, "LogEnd"), request, context, log_end)

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
