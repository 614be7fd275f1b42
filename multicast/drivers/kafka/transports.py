"""Sockets, transports and connections of kafka-python 3.0.12 with their defects corrected."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Any

from kafka import errors as kafka_errors

from multicast.drivers.access import Access, user_of
from multicast.drivers.kafka.private import (
    KafkaConnectionManager,
    KafkaNetSocket,
    KafkaSSLTransport,
    KafkaTCPTransport,
    create_connection,
)
from multicast.errors import AccessDenied, AmcastError, ClusterUnreachable

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_MISNAMED = (62, 64)
_OUTDATED = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
_RECEIVE_BYTES = 64 * 1024  # more would come from the system, not from the heap


class ClosedOnFailure(KafkaNetSocket):  # type: ignore[misc]
    """Closes a socket that cannot connect: kafka-python 3.0.12 leaves it open.

    The package selects a class of sockets by the scheme of the proxy's address.
    """

    SCHEMES = ("amcast",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: Any = None) -> Any:
        """Connect a socket, or close it."""
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _LastWords:
    """Keeps what a broker sent before it closed the connection, such as why a password is wrong.

    kafka-python 3.0.12 drops bytes that arrive together with the end of the connection.
    """

    def _sock_recv(self) -> tuple[bytes, Any]:
        received, error = super()._sock_recv()  # type: ignore[misc]
        return received, None if received else error


class _LargeReads:
    """Receives large responses with fewer calls; kafka-python 3.0.12 receives 4 KiB at once."""

    def _sock_recv(self) -> tuple[bytes, Any]:
        received = []
        error = None
        try:
            while part := self._sock.recv(_RECEIVE_BYTES):  # type: ignore[attr-defined]
                received.append(part)
            error = kafka_errors.KafkaConnectionError("socket disconnected")
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as cause:
            error = kafka_errors.KafkaConnectionError(cause)
        return b"".join(received), error


class Plain(_LastWords, _LargeReads, KafkaTCPTransport):  # type: ignore[misc]
    """Plain text."""


class Tls(_LastWords, KafkaSSLTransport):  # type: ignore[misc]
    """TLS."""


class ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]
    """The package's manager on a `QuietSelector`; three defects of kafka-python 3.0.12 corrected.

    It closes a connection whose TLS handshake failed. It never creates a topic by requesting its
    metadata (the package does not pass that setting on). It remembers why brokers refuse this
    client; the package would retry until time is up and report only a time-out.

        refusals   why a broker refused its last connection, by broker
        trouble    why the last connection failed, until another one succeeds
        reached    whether it ever had a connection to where a broker says that it is
    """

    def __init__(self, net: Any, **settings: Any) -> None:
        super().__init__(net, **settings)
        self.cluster.config["allow_auto_create_topics"] = False
        name = self.config["sasl_plain_username"]
        if name and self.config["sasl_mechanism"] != "PLAIN":  # as `kafka_python_settings` wrote it
            name = name.replace("=2C", ",").replace("=3D", "=")
        user = user_of(name, self.config["ssl_certfile"])
        self.access = Access(str(self.config["bootstrap_servers"]), user)
        self.refusals: dict[Any, AccessDenied] = {}
        self.trouble: BaseException | None = None
        self.reached = False

    def get_connection(self, node_id: Any, **settings: Any) -> Any:
        """Return a connection; raise the first refusal if every bootstrap address refused."""
        if self.cluster.is_bootstrap(node_id):
            node_ids = [broker.node_id for broker in self.cluster.bootstrap_brokers()]
            if self.refusals.keys() >= set(node_ids):
                refused = [self.refusals.pop(number) for number in dict.fromkeys(node_ids)]
                raise refused[0]  # the next bootstrap tries again
        return super().get_connection(node_id, **settings)

    async def _do_bootstrap(self, deadline: Any) -> Any:
        try:
            return await super()._do_bootstrap(deadline)
        except kafka_errors.KafkaTimeoutError as error:
            raise self.refusal or error from error

    @property
    def refusal(self) -> AccessDenied | None:
        """Why a broker refuses this client now; None if none does."""
        return next(iter(self.refusals.values()), None)

    def unreachable(self, timeout_s: float, why: BaseException | None = None) -> AmcastError:
        """Return the error for a time-out, or for a refusal if a broker refused this client."""
        refusal = self.refusal
        if refusal is not None:
            return type(refusal)(str(refusal))  # a copy, because several threads may raise it
        places = self._named_elsewhere()
        why = self.trouble if places else why or self.trouble
        reason = f" ({why})" if why is not None and str(why) else ""
        if places:
            return ClusterUnreachable(
                f"The brokers at {self.access.bootstrap} answer and say that they are at {places}, "
                f"where none was reached within {timeout_s:g} s{reason}; check their "
                f"advertised.listeners."
            )
        if "disconnected" in reason or "EOF" in reason:
            protocol = self.config["security_protocol"]
            reason = (
                f" (a broker closed the connection; check that security.protocol {protocol} "
                f"matches that port)"
            )
        return ClusterUnreachable(
            f"No broker at {self.access.bootstrap} answered within {timeout_s:g} s{reason}."
        )

    def _named_elsewhere(self) -> str:
        """Where brokers say that they are, if that is elsewhere, and none was reached there."""
        given = {(broker.host, broker.port) for broker in self.cluster.bootstrap_brokers()}
        named = {(broker.host, broker.port) for broker in self.cluster.brokers()}
        if self.reached or named & given:
            return ""
        return ", ".join(f"{host}:{port}" for host, port in sorted(named))

    async def _connect(self, node: Any, conn: Any, **settings: Any) -> None:
        conn.init_future.add_callback(lambda _: self._connected(node.node_id))
        conn.init_future.add_errback(partial(self._failed, node.node_id))
        conn.close_future.add_errback(self._lost)
        await super()._connect(node, conn, **settings)

    def _connected(self, node_id: Any) -> None:
        self.refusals.pop(node_id, None)
        self.trouble = None
        self.reached |= not self.cluster.is_bootstrap(node_id)

    def _lost(self, error: BaseException) -> None:
        self.trouble = error

    def _failed(self, node_id: Any, error: BaseException) -> None:
        self.trouble = error
        refused = _refusal(self.access, error)
        if refused is None:
            self.refusals.pop(node_id, None)
        else:
            self.refusals[node_id] = refused

    async def _build_transport(self, node: Any, timeout_at: Any = None) -> Any:
        sock = await create_connection(
            self._net,
            node.host,
            node.port,
            self.config["socket_options"],
            proxy_url=self.config["proxy_url"],
            timeout_at=timeout_at,
        )
        try:
            if self.ssl_enabled:
                tls = {key: value for key, value in self.config.items() if key.startswith("ssl_")}
                transport = Tls(self._net, sock, host=node.host, **tls)
            else:
                transport = Plain(self._net, sock, host=node.host)
        except BaseException:
            sock.close()
            raise
        self._net.transports.add(transport)
        try:
            await transport.handshake()
        except BaseException as error:
            abort(transport)
            if not isinstance(error, Exception):
                raise
            raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
        return transport


def _refusal(access: Access, error: BaseException | None) -> AccessDenied | None:
    """Return the refusal behind a failed connection; None if there is none or it is unclear."""
    causes = (error, getattr(error, "__cause__", None), *getattr(error, "args", ()))
    tls = next((cause for cause in causes if isinstance(cause, ssl.SSLError)), None)
    match tls or error:
        case ssl.SSLCertVerificationError(verify_code=code, verify_message=why):
            if code in _OUTDATED:
                return access.outdated(why)
            return access.misnamed(why) if code in _MISNAMED else access.untrusted(why)
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return None  # a broker that closes the connection may be shutting down
        case ssl.SSLError(reason=str(why)):
            ours = "ALERT" in why and ("CERTIFICATE" in why or "UNKNOWN_CA" in why)
            words = why.lower().replace("_", " ")
            return access.unwelcome(words) if ours else access.no_tls(words)
        case kafka_errors.SaslAuthenticationFailedError():
            return access.rejected(_words(error).removeprefix("SaslAuthenticationFailedError: "))
        case kafka_errors.UnsupportedSaslMechanismError() | kafka_errors.IllegalSaslStateError():
            return access.rejected(_words(error))
        case _:
            return None


def _words(error: BaseException | None) -> str:
    """Return the text of an error of the package or the broker, without its numbers."""
    return ", ".join(map(str, getattr(error, "args", ()))) or getattr(error, "description", "")


def abort(transport: Any) -> None:
    """Close a transport and its socket at once.

    The package's own call leaves the socket to the event loop, which never runs again if it was
    closed while a coroutine waited.
    """
    opened = transport._sock  # noqa: SLF001
    try:
        transport.abort()
    finally:
        if opened is not None:
            opened.close()
