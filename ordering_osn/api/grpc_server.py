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
import hashlib
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from multicast.errors import UsageError
from multicast.web import listen_at
from ordering_osn.api.broadcast import Panicked, serve_bundles, serve_envelopes
from ordering_osn.api.channels import Channels, Refused
from ordering_osn.api.connections import Connections
from ordering_osn.api.deliver import Deliver
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.multi.deliver_multi import DeliverMulti
from ordering_osn.api.multi.status import bundle_status, log_end
from ordering_osn.api.receipt_request import wait
from ordering_osn.api.services import (
    BROADCAST,
    INFO_TRAILER,
    MESSAGE_BYTES_MAX,
    MULTI_CHAIN,
    RECEIPTS,
    sizes,
)
from ordering_osn.api.streams import Client, ClientStreams
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
_UNARY = ("Wait", "Status", "LogEnd")  # methods of a single request and a single answer
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
    ("grpc.keepalive_time_ms", 2 * 60 * 60 * 1000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    # Of one connection, the least that RFC 9113 recommends; more wait for the end of others, at the
    # client. A new stream takes 0.7 ms, behind all that came before it, and 28 kB: ten connections
    # of a stranger, with 250 streams each, delayed others by 1.2 s.
    ("grpc.max_concurrent_streams", 100),
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


_Serve = Callable[["_Stream"], Awaitable[None]]


class _Stream:
    """A `broadcast.Stream` on gRPC, of any method.

    `tls_hash`: of the client's TLS certificate, under mutual TLS. `why`: this side has ended the
    stream, as if the client had, for this reason. A client that does not read loses its connection.
    """

    def __init__(
        self,
        context: Any,
        streams: ClientStreams,
        connections: Connections,
        tls_hash: bytes | None,
        count: Callable[[str], None],
    ) -> None:
        self.context, self.tls_hash, self.why = context, tls_hash, ""
        self._streams, self._connections, self._count = streams, connections, count
        self._peer = context.peer()  # gRPC no longer knows it after the call has ended
        self._client: Client | None = None
        self._first_s: float | None = streams.first_s
        self._limit = asyncio.timeout(None)  # of the read that goes on
        if tls_hash is not None:
            self._known_as(("", tls_hash))

    def granted(self, creator: bytes) -> Client:
        if self._client is None:
            address = self._peer.rpartition(":")[0]
            return self._known_as((address, hashlib.sha256(creator).digest()))
        return self._client

    def _known_as(self, client: Client) -> Client:
        self._streams.grant(client)
        self._client = client
        self._streams.served(self._limit)
        return client

    def end(self) -> None:
        if self._client is not None:
            self._streams.ended(self._client)

    async def read(self) -> bytes | None:
        if self._client is not None and self._first_s is None:
            message = await self.context.read()
        else:
            message = await self._read_bounded()
        if message is aio.EOF:
            return None
        self._count("messages_received")
        raw: bytes = message
        return raw

    async def _read_bounded(self) -> Any:
        """Read a first message, or one of a client that is not known yet."""
        first_s, self._first_s = self._first_s, None
        try:
            async with asyncio.timeout(first_s) as self._limit:
                if self._client is None:
                    self._streams.waits(self._limit)
                return await self.context.read()
        except TimeoutError:
            self.why = (
                f"no request that could be granted came within {self._streams.first_s:g} s, or "
                "before others needed the place"
            )
            return aio.EOF
        finally:
            self._streams.served(self._limit)

    async def write(self, message: bytes) -> None:
        self._limit_write(len(message))
        try:
            await self.context.write(message)
        except aio.InternalError as error:
            if self._peer in self._connections.ending:  # it is said why
                raise asyncio.CancelledError from error
            raise _ClientLeft(self._peer, len(message)) from error
        finally:
            self._timer.cancel()
        self._count("messages_sent")

    def _limit_write(self, size: int) -> None:
        within_s = self._streams.taken_within_s(size)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(within_s, self._stalled, size, within_s)

    def _stalled(self, size: int, within_s: float) -> None:
        why = f"it has not read {size} bytes that were sent to it within {within_s:.3g} s"
        self._connections.end(self._peer, why)
        self._limit_write(size)  # where it could not be


class Server:
    """The gRPC server of a node. `port` 0 takes a free one; after `start` it is the real one.

    `renew` replaces `tls` at any time: connections from then on use it. Under mutual TLS, which
    stays as it was at the start, the TLS CAs in the channels' configs are authorities, too.
    """

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
        streams: ClientStreams | None = None,
    ) -> None:
        self.host, self.port = host, port
        self._channels, self.tls, self._clock = channels, tls, clock
        self._in_force: list[Any] = []  # the TLS files, and all authorities
        self._metrics = metrics or Metrics()
        self._streams_max, self._streams = streams_max, streams or ClientStreams()
        self._mutual = bool(tls and tls.authorities)

    async def start(self) -> None:
        """Listen; raises `UsageError` where the address or the TLS files cannot be used."""
        self._deliver = Deliver(self._channels, metrics=self._metrics, clock=self._clock)
        self._deliver_multi = DeliverMulti(self._channels, clock=self._clock)
        channels = filter(None, map(self._channels.get, self._channels.names()))
        largest = (each.config.parameters.bytes_absolute for each in channels)
        received_max = min(max((_RECEIVED_BYTES_MIN, *largest)) + _AROUND_BYTES, MESSAGE_BYTES_MAX)
        self._channels.received_max = received_max
        self._server = aio.server(
            options=[
                *_SERVER_OPTIONS,
                *sizes(received_max),
                # Streams that arrive all at once wait for their turn; by default gRPC refuses some
                # of them at random above one thousand.
                ("grpc.server.max_pending_requests", self._streams_max),
                ("grpc.server.max_pending_requests_hard_limit", self._streams_max),
            ],
            maximum_concurrent_rpcs=self._streams_max,
        )
        # Every method is served as streams in both directions, whatever it is to clients: the bytes
        # are the same, and gRPC would wait for a single request without a limit.
        methods: dict[str, dict[str, _Serve]] = {
            BROADCAST: {
                "Broadcast": partial(serve_envelopes, self._channels),
                "Deliver": self._deliver_stream,
            },
            RECEIPTS: {"Wait": partial(self._answer, wait)},
            MULTI_CHAIN: {
                "BroadcastMulti": partial(serve_bundles, self._channels),
                "Status": partial(self._answer, bundle_status),
                "LogEnd": partial(self._answer, log_end),
                "DeliverMulti": lambda stream: self._deliver_multi.serve(stream, stream.tls_hash),
            },
        }
        self._server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(
                    service,
                    {
                        method: grpc.stream_stream_rpc_method_handler(
                            partial(self._serve, service, method, serve)
                        )
                        for method, serve in served.items()
                    },
                )
                for service, served in methods.items()
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
            if self.tls is None:
                self.port = self._server.add_insecure_port(address)
            else:
                self.port = self._server.add_secure_port(address, self._credentials(self.tls))
            self._connections = Connections(self.port, self._metrics)
            await self._server.start()
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"cannot listen on {address}: {error}") from error

    async def stop(self, grace_s: float = _STOP_GRACE_S) -> None:
        """End the Deliver streams (503), give calls `grace_s` to end, then cancel the others."""
        self._deliver.close()
        self._deliver_multi.close()
        await self._server.stop(grace_s)
        await self._deliver_multi.ended()

    def renew(self, tls: TlsFiles) -> None:
        """Use these for connections from now on; raises `UsageError` if gRPC cannot use them.

        It would go on with what it had, and say so to nobody: it does not know all of OpenSSL's.
        """
        tried = grpc.server(ThreadPoolExecutor(1))
        credentials = grpc.ssl_server_credentials(
            [(tls.key, tls.certificate)], tls.authorities or None, self._mutual
        )
        try:
            tried.add_secure_port("127.0.0.1:0", credentials)
        except RuntimeError as error:
            raise UsageError("TLS: gRPC cannot use this certificate and key") from error
        finally:
            tried.stop(None)
        self.tls = tls

    def _credentials(self, tls: TlsFiles) -> Any:
        if not tls.certificate or not tls.key:
            raise UsageError("TLS: a server needs a certificate and its key")
        return grpc.dynamic_ssl_server_credentials(
            self._renewed(), self._renewed, require_client_authentication=self._mutual
        )

    def _renewed(self) -> Any:
        """Give what new connections use if that has changed; gRPC asks at each handshake."""
        tls = self.tls
        assert tls is not None
        channels = map(self._channels.get, self._channels.names() if self._mutual else ())
        theirs = (each.config.msps.tls_authorities for each in channels if each is not None)
        wanted: list[Any] = [tls, tls.authorities, *theirs]
        if wanted == self._in_force:
            return None
        self._in_force = wanted
        authorities = b"\n".join(dict.fromkeys(wanted[1:])) if self._mutual else None
        return grpc.ssl_server_certificate_configuration(
            [(tls.key, tls.certificate)], root_certificates=authorities
        )

    async def _deliver_stream(self, stream: _Stream) -> None:
        why = await self._deliver.serve(stream, stream.tls_hash)
        if why:
            stream.context.set_trailing_metadata(((INFO_TRAILER, why.encode()[:_INFO_BYTES_MAX]),))

    async def _answer(self, answer: _Answer, stream: _Stream) -> None:
        """Answer a single request with a single message."""
        request = await stream.read()
        if request is not None:
            stream.granted(b"")  # who may not ask is refused at once: these are counted by address
            answered = await answer(
                self._channels, request, now=self._clock(), tls_hash=stream.tls_hash
            )
            del request  # too large a one, perhaps: the client may not read for minutes
            await stream.write(answered)

    async def _serve(self, service: str, method: str, serve: _Serve, _: Any, context: Any) -> None:
        name, code, why = (service, method), "Unknown", ""
        kind = "unary" if method in _UNARY else "stream"

        def count(what: str) -> None:
            if kind == "stream" or what.startswith("requests"):
                getattr(self._metrics, f"grpc_server_{kind}_{what}").add(*name)

        count("requests_received")
        stream: _Stream | None = None
        try:
            tls_hash = self._tls_hash(context)
            stream = _Stream(context, self._streams, self._connections, tls_hash, count)
            await serve(stream)
            why = stream.why
            code = "ResourceExhausted" if why else "OK"
        except asyncio.CancelledError:
            code = "Canceled"
            raise
        except Refused as refused:
            code, why = "ResourceExhausted", str(refused)
        except Panicked:
            code, why = "Internal", "an unexpected error occurred; see the node's log"
        except _ClientLeft as left:
            code = "Canceled"
            _log.log(left.level, "%s: %s", method, left)
            # gRPC raises the same where it notices first; any other error makes it send a status.
            raise asyncio.CancelledError from left
        finally:
            if stream is not None:
                stream.end()
            getattr(self._metrics, f"grpc_server_{kind}_requests_completed").add(*name, code)
        if why:
            _log.info("%s: %s", method, why)
            internal = code == "Internal"
            status = grpc.StatusCode.INTERNAL if internal else grpc.StatusCode.RESOURCE_EXHAUSTED
            await context.abort(status, why)

    def _tls_hash(self, context: Any) -> bytes | None:
        if not self._mutual:
            return None
        (certificate,) = context.auth_context()["x509_pem_cert"]
        return fingerprint(certificate)
