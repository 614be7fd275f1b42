"""Sockets, transports and connections of kafka-python 3.0.12 with their defects corrected."""

from __future__ import annotations

import errno
import random
import ssl
import time
import weakref
from functools import partial
from typing import Any

from kafka import errors as kafka_errors

from multicast.drivers.access import Access, user_of
from multicast.drivers.certificates import watch_files
from multicast.drivers.client_settings import CONNECT_S, LOST_S, RECONNECT_BACKOFF_MAX_MS
from multicast.drivers.kafka.private import (
    DescribeClusterRequest,
    FindCoordinatorRequest,
    KafkaConnectionManager,
    KafkaNetSocket,
    KafkaSSLTransport,
    KafkaTCPTransport,
    MetadataRequest,
    TaggedFields,
    UnsignedVarInt32,
    create_connection,
)
from multicast.errors import AccessDenied, AmcastError, ClusterUnreachable

# OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH.
_MISNAMED = (62, 64)
_OUTDATED = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED
_RECEIVE_BYTES = 64 * 1024  # more would come from the system, not from the heap
_WATCHED = {"ssl.certificate.location": "ssl_certfile", "ssl.ca.location": "ssl_cafile"}
# Any broker answers these from its memory, so another one is asked if one is silent for `LOST_S`.
_ASKED_OF_ANY = (FindCoordinatorRequest, MetadataRequest)


def _read_no_tags(raw: Any) -> None:
    """Read that no tags follow; kafka-python 3.0.12 does so in an assert, which -O leaves out."""
    if UnsignedVarInt32.decode(raw) != 0:
        raise ValueError("tags where none may be")


TaggedFields.decode_empty = staticmethod(_read_no_tags)


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

    async def shake_hands(self, _timeout_at: float | None) -> None:
        """Need nothing."""


class Tls(_LastWords, KafkaSSLTransport):  # type: ignore[misc]
    """TLS."""

    async def shake_hands(self, timeout_at: float | None) -> None:
        """Shake hands in time; kafka-python 3.0.12 waits for ever for a broker that is silent."""
        while True:
            try:
                self._sock.do_handshake()
            except ssl.SSLWantReadError:
                await self._net.wait_read(self._sock, timeout_at=timeout_at)
            except ssl.SSLWantWriteError:
                await self._net.wait_write(self._sock, timeout_at=timeout_at)
            else:
                return


class ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]
    """The package's manager on a `QuietSelector`; four defects of kafka-python 3.0.12 corrected.

    It closes a connection whose TLS handshake failed. It never creates a topic by requesting its
    metadata (the package does not pass that setting on). It remembers why brokers refuse this
    client; the package would retry until time is up and report only a time-out. It asks the
    bootstrap addresses again where all known brokers are *lost*: none has answered for `LOST_S`.
    The package asks only those that it knows, and never finds one that has moved.

        refusals   why a broker refused its last connection, by broker
        trouble    why the last connection failed, until another one succeeds
        reached    whether it ever had a connection to where a broker says that it is
    """

    def __init__(self, net: Any, **settings: Any) -> None:
        settings["reconnect_backoff_max_ms"] = RECONNECT_BACKOFF_MAX_MS
        for end in ("", "_max"):
            settings[f"socket_connection_setup_timeout{end}_ms"] = int(1000 * CONNECT_S)
        super().__init__(net, **settings)
        self.cluster.config["allow_auto_create_topics"] = False
        name = self.config["sasl_plain_username"]
        if name and self.config["sasl_mechanism"] != "PLAIN":  # as `kafka_python_settings` wrote it
            name = name.replace("=2C", ",").replace("=3D", "=")
        user = user_of(name, self.config["ssl_certfile"])
        self.access = Access(str(self.config["bootstrap_servers"]), user)
        self.refusals: dict[Any, AmcastError] = {}
        self.trouble: BaseException | None = None
        self.reached = False
        self._down_since: float | None = None  # without a connection to a known broker
        leave = weakref.WeakMethod(self._leave_moved)  # the package lets no cycle hold a manager
        self.cluster.add_listener(lambda cluster: (call := leave()) and call(cluster))

    def least_loaded_node(self) -> Any:
        """Return whom to ask next: who answers, else who has failed least; None: all failed now."""
        now = time.monotonic()
        brokers = self.cluster.brokers()
        if self._lost(now):
            brokers += (again := self.cluster.bootstrap_brokers())
            for conn in filter(None, (self._conns.get(broker.node_id) for broker in again)):
                if conn.connected and _is_silent(conn, now):  # the address may lead elsewhere now
                    conn.close(kafka_errors.KafkaConnectionError("no answer"))
        nodes = [broker.node_id for broker in brokers if self.connection_delay(broker.node_id) <= 0]
        random.shuffle(nodes)  # the first of equals is taken
        ranks = {node: rank for node in nodes if (rank := self._rank(node, now))}
        return min(ranks, key=ranks.__getitem__, default=None)

    def _rank(self, node: Any, now: float) -> tuple[int, ...]:
        """Give a broker's rank, the best first; () while its connection takes no request."""
        failures = self._backoff.get(node, (0,))[0]
        conn = self._conns.get(node)
        if conn is None:
            return (3 if failures else 1), failures
        if conn.paused:
            return ()
        if not conn.connected or _is_silent(conn, now):
            return 4, failures
        waiting = len(conn.in_flight_requests)
        return (2 if waiting else 0), waiting

    def _lost(self, now: float) -> bool:
        """Whether no known broker has answered for `LOST_S`."""
        conns = [conn for node, conn in self._conns.items() if not self.cluster.is_bootstrap(node)]
        connected = [conn for conn in conns if conn.connected]
        if connected:
            return all(_is_silent(conn, now) for conn in connected)
        return self._down_since is not None and now - self._down_since > LOST_S

    def _leave_moved(self, cluster: Any) -> None:
        """Close connections to where no broker is any more; if all were lost, those in the making.

        A name is resolved anew then.
        """
        lost = self._lost(time.monotonic())
        for node, conn in list(self._conns.items()):
            broker = None if cluster.is_bootstrap(node) else cluster.broker_metadata(node)
            if broker is None or conn.closed:
                continue
            if conn.place != (broker.host, broker.port) or (lost and not conn.connected):
                conn.close(kafka_errors.KafkaConnectionError("the broker may be elsewhere"))

    def send(
        self, request: Any, node_id: Any = None, request_timeout_ms: float | None = None
    ) -> Any:
        """Send a request, as the package does; what any broker knows is not waited for long."""
        answer = super().send(request, node_id, request_timeout_ms)
        if isinstance(request, _ASKED_OF_ANY):
            return self.call_soon(self.wait_for, answer, 1000 * LOST_S)
        return answer

    def get_connection(self, node_id: Any, **settings: Any) -> Any:
        """Return a connection; raise the first refusal if every bootstrap address refused."""
        if not self.bootstrapped and self.cluster.is_bootstrap(node_id):
            node_ids = [broker.node_id for broker in self.cluster.bootstrap_brokers()]
            if self.refusals.keys() >= set(node_ids):
                refused = [self.refusals.pop(number) for number in dict.fromkeys(node_ids)]
                raise refused[0]  # the next bootstrap tries again
        if settings.get("timeout_ms") is not None:  # the bootstrap's own: for all that it tries
            settings["timeout_ms"] = min(settings["timeout_ms"], 1000 * CONNECT_S)
        refreshing = self.cluster._refresh_loop_future  # noqa: SLF001
        if refreshing is not None and refreshing.is_done:  # an error ended it: the next use begins
            self.cluster._refresh_loop_future = None  # noqa: SLF001
        conn = super().get_connection(node_id, **settings)
        broker = self.cluster.broker_metadata(node_id)
        if not hasattr(conn, "place") and broker is not None:
            conn.place = broker.host, broker.port
        return conn

    async def _do_bootstrap(self, deadline: Any) -> Any:
        try:
            done = await super()._do_bootstrap(deadline)
        except kafka_errors.KafkaTimeoutError as error:
            raise self.refusal or error from error
        try:
            self.broker_version_data.api_version(FindCoordinatorRequest, min_version=4)
        except kafka_errors.IncompatibleBrokerVersion as error:
            raise AmcastError(
                f"The brokers at {self.access.bootstrap} are older than Kafka 3.0, which is needed."
            ) from error
        return done

    def describe_cluster(self) -> Any:
        """Describe the cluster; the package's own call fails with brokers before Kafka 3.7."""
        answer = self.run(self.send, DescribeClusterRequest(include_fenced_brokers=True))
        if answer.error_code:
            raise kafka_errors.for_code(answer.error_code)(answer.error_message)
        return answer

    @property
    def refusal(self) -> AmcastError | None:
        """Why a broker refuses this client now; None if none does."""
        return next(iter(self.refusals.values()), None)

    def unreachable(self, timeout_s: float, why: BaseException | None = None) -> AmcastError:
        """Return the error for a time-out, or for what the brokers did instead."""
        refusal = self.refusal
        if refusal is not None:
            return type(refusal)(str(refusal))  # a copy, because several threads may raise it
        if throttled_s := self.throttled_s():
            return ClusterUnreachable(
                f"The brokers at {self.access.bootstrap} throttle {self.access.user} for "
                f"{throttled_s:.1f} s more: a quota is used up; raise it, or try again then."
            )
        places = self._named_elsewhere()
        why = self.trouble if places else why or self.trouble
        reason = f" ({why})" if why is not None and str(why) else ""
        if places:
            return ClusterUnreachable(
                f"The brokers at {self.access.bootstrap} answer and say that they are at {places}, "
                f"where none was reached within {timeout_s:g} s{reason}; check their "
                f"advertised.listeners."
            )
        if f"Errno {errno.EMFILE}]" in reason:
            return ClusterUnreachable(
                f"This process has no file descriptor left for a connection to "
                f"{self.access.bootstrap}; raise its limit (ulimit -n), or close some clients."
            )
        if "disconnected" in reason or "EOF" in reason:
            protocol = self.config["security_protocol"]
            reason = (
                f" (a broker closed the connection; check that security.protocol {protocol} "
                f"matches that port, and that max.connections of the broker allow one more)"
            )
        return ClusterUnreachable(
            f"No broker at {self.access.bootstrap} answered within {timeout_s:g} s{reason}."
        )

    def throttled_s(self) -> float:
        """Return for how many seconds a quota still holds requests back; 0: no quota does."""
        now = time.monotonic()
        conns = [conn for conn in self._conns.values() if "throttle" in conn.paused]
        return max((max(0.0, conn._throttle_time - now) for conn in conns), default=0.0)  # noqa: SLF001

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
        conn.close_future.add_errback(partial(self._ended, node.node_id))
        await super()._connect(node, conn, **settings)

    def _connected(self, node_id: Any) -> None:
        self.refusals.pop(node_id, None)
        self.trouble = None
        if not self.cluster.is_bootstrap(node_id):
            self.reached = True
            self._down_since = None

    def _ended(self, node_id: Any, error: BaseException) -> None:
        if self.trouble is None or "timed out" not in f"{error}":  # which may be the call's own
            self.trouble = error
        if _is_undecodable(error):
            self.refusals[node_id] = AmcastError(
                f"What answers at {self.access.bootstrap} sends what cannot be read as Kafka's "
                f"protocol ({error}); check the address, its port and security.protocol."
            )
        if self._down_since is None and not self.cluster.is_bootstrap(node_id):
            self._down_since = time.monotonic()

    def _failed(self, node_id: Any, error: BaseException) -> None:
        self._ended(node_id, error)
        refused = _refusal(self.access, error)
        if _is_undecodable(error):
            return
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
                watch_files({name: tls[key] for name, key in _WATCHED.items()})
                transport = Tls(self._net, sock, host=node.host, **tls)
            else:
                transport = Plain(self._net, sock, host=node.host)
        except BaseException:
            sock.close()
            raise
        self._net.transports.add(transport)
        try:
            await transport.shake_hands(timeout_at)
        except BaseException as error:
            abort(transport)
            if not isinstance(error, Exception):
                raise
            raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
        return transport


def _is_undecodable(error: BaseException) -> bool:
    """Whether an answer was none of Kafka's; one to another request may be late."""
    protocol = isinstance(error, kafka_errors.KafkaProtocolError)
    return protocol and not isinstance(error, kafka_errors.CorrelationIdError)


def _is_silent(conn: Any, now: float) -> bool:
    """Whether the oldest request that has no answer was sent more than `LOST_S` ago."""
    waiting = conn.in_flight_requests
    return bool(waiting) and now - waiting[0][2] > LOST_S


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
