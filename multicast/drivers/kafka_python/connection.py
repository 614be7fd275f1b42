"""One event loop of kafka-python with its connections, driven by whoever waits.

In go requests and a time-out; out come answers or this project's errors. No thread is started
here; `run` may be called from any thread, one at a time.

Invariant: no wait lasts longer than the time-out that it was given.
"""

from __future__ import annotations

import os
import selectors
import ssl
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.net.inet import KafkaNetSocket, create_connection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest
from kafka.protocol.metadata import MetadataRequest

from multicast.drivers.access import Access, user_of
from multicast.drivers.client_settings import check_client
from multicast.drivers.kafka_python.quiet import QuietSelector, quiet
from multicast.drivers.protocol import TopicPartition
from multicast.errors import (
    AccessDenied,
    AmcastError,
    ClusterUnreachable,
    NotAuthorized,
    TopicMissing,
    UsageError,
)

RETRY_S = 0.03
# A topic that was just made may be unknown to a broker for a moment.
_UNKNOWN_TOPIC_S = 3.0
_FRAME_BYTES_MAX = 2**31 - 1

# OpenSSL's numbers for a certificate of another host name, or of another address.
_MISNAMED = (62, 64)
LATEST = -1
EARLIEST = -2

_NAMES = {
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "client.id": "client_id",
}


class _ClosedOnFailure(KafkaNetSocket):  # type: ignore[misc]
    """Sockets that are closed where they cannot connect: kafka-python 3.0.12 leaves them open.

    The package lets a class of one's own be chosen by the scheme of a proxy's address.
    """

    SCHEMES = ("amcast",)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: Any = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class _LastWords:
    """Hears what a broker said before it hung up, such as why it refuses a password.

    kafka-python 3.0.12 drops what came where the end of the connection came with it.
    """

    def _sock_recv(self) -> tuple[bytes, Any]:
        received, error = super()._sock_recv()  # type: ignore[misc]
        return received, None if received else error


class _Plain(_LastWords, KafkaTCPTransport):  # type: ignore[misc]
    pass


class _Tls(_LastWords, KafkaSSLTransport):  # type: ignore[misc]
    pass


class ConnectionManager(KafkaConnectionManager):  # type: ignore[misc]
    """Closes a connection whose TLS handshake failed: kafka-python 3.0.12 leaves it open.

    It also never makes a topic by asking for one: the package's own does not pass that setting on.
    And it remembers which brokers refuse us, and why: the package tries again until time is up,
    and then only says that it is.

        refusals   by broker, while its last connection was refused
        trouble    how the last connection failed, where none was made since
    """

    def __init__(self, net: Any, **settings: Any) -> None:
        super().__init__(net, **settings)
        self.cluster.config["allow_auto_create_topics"] = False
        user = user_of(self.config["sasl_plain_username"], self.config["ssl_certfile"])
        self.access = Access(str(self.config["bootstrap_servers"]), user)
        self.refusals: dict[Any, AccessDenied] = {}
        self.trouble: BaseException | None = None

    def get_connection(self, node_id: Any, **settings: Any) -> Any:
        """Give a connection; raise what was refused where no bootstrap address takes us."""
        if self.cluster.is_bootstrap(node_id):
            every = [one.node_id for one in self.cluster.bootstrap_brokers()]
            if self.refusals.keys() >= set(every):
                refused = [self.refusals.pop(one) for one in dict.fromkeys(every)]
                raise refused[0]  # the next bootstrap tries again
        return super().get_connection(node_id, **settings)

    async def _do_bootstrap(self, deadline: Any) -> Any:
        try:
            return await super()._do_bootstrap(deadline)
        except kafka_errors.KafkaTimeoutError as error:
            raise self.refusal or error from error

    @property
    def refusal(self) -> AccessDenied | None:
        """Why a broker refuses us now; None where none does."""
        return next(iter(self.refusals.values()), None)

    async def _connect(self, node: Any, conn: Any, **settings: Any) -> None:
        conn.init_future.add_callback(lambda _: self._connected(node.node_id))
        conn.init_future.add_errback(partial(self._failed, node.node_id))
        conn.close_future.add_errback(self._lost)
        await super()._connect(node, conn, **settings)

    def _connected(self, node_id: Any) -> None:
        self.refusals.pop(node_id, None)
        self.trouble = None

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
                transport = _Tls(self._net, sock, host=node.host, **tls)
            else:
                transport = _Plain(self._net, sock, host=node.host)
        except BaseException:
            sock.close()
            raise
        try:
            await transport.handshake()
        except BaseException as error:
            abort(transport)
            if not isinstance(error, Exception):
                raise
            raise kafka_errors.KafkaConnectionError(f"Handshake failed: {error}") from error
        return transport


def _refusal(access: Access, error: BaseException | None) -> AccessDenied | None:
    """Say what of a failed connection was a refusal; None: it was none, or nobody knows."""
    tls = next(
        (
            one
            for one in (error, getattr(error, "__cause__", None), *getattr(error, "args", ()))
            if isinstance(one, ssl.SSLError)
        ),
        None,
    )
    match tls or error:
        case ssl.SSLCertVerificationError(verify_code=code, verify_message=why):
            return access.misnamed(why) if code in _MISNAMED else access.untrusted(why)
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError():
            return None  # who hangs up may be going down
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
    """Give what the package or the broker said, without its numbers."""
    return ", ".join(map(str, getattr(error, "args", ()))) or getattr(error, "description", "")


def abort(transport: Any) -> None:
    """End a transport for good: the package's own way waits for a loop that may never turn again.

    So it is where a coroutine is given up in the middle, because its loop was closed.
    """
    opened = transport._sock  # noqa: SLF001
    try:
        transport.abort()
    finally:
        if opened is not None:
            opened.close()


def client_of_ours(**settings: Any) -> KafkaNetClient:
    """Make what the package's producer and admin client talk through (`kafka_client`)."""
    net = QuietSelector(**settings)
    return KafkaNetClient(net=net, manager=ConnectionManager(net, **settings), **settings)


def kafka_python_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Translate Kafka's dotted names to the package's keyword arguments."""
    check_client(client)
    settings: dict[str, Any] = {"client_id": "amcast", "proxy_url": "amcast://direct"}
    for name, value in client.items():
        if name == "ssl.endpoint.identification.algorithm":
            settings["ssl_check_hostname"] = value.lower() not in {"", "none"}
        elif name == "security.protocol":
            settings["security_protocol"] = value.upper()
        else:
            settings[_NAMES[name]] = value
    return settings


class Connection:
    """Connections to the brokers of one cluster; the constructor finds the cluster or raises."""

    def __init__(self, bootstrap: str, client: Mapping[str, str], *, timeout_s: float) -> None:
        settings = kafka_python_settings(client)
        for name in [name for name in client if name.endswith(".location")]:
            if not os.access(client[name], os.R_OK):
                raise UsageError(f"The file {client[name]} of {name} cannot be read.")
        self.bootstrap = bootstrap
        self.access = Access.of(bootstrap, client)
        self.timeout_s = timeout_s
        self._turn = threading.Lock()
        self.selector = selectors.DefaultSelector()
        self.net = QuietSelector(client_id=settings["client_id"], selector=lambda: self.selector)
        try:
            self.manager = ConnectionManager(
                self.net,
                bootstrap_servers=bootstrap,
                request_timeout_ms=int(timeout_s * 1000),
                socket_connection_setup_timeout_ms=int(timeout_s * 1000),
                reconnect_backoff_max_ms=500,
                receive_message_max_bytes=_FRAME_BYTES_MAX,
                **settings,
            )
            self.cluster = self.manager.cluster
            self.run(self._find_cluster)
        except ValueError as error:
            self.close()
            raise UsageError(
                f"The bootstrap addresses {bootstrap} are not usable: {error}."
            ) from error
        except BaseException:
            self.close()
            raise

    def run(
        self,
        coroutine: Callable[..., Coroutine[Any, Any, Any]],
        *arguments: object,
        timeout_s: float | None = None,
    ) -> Any:
        """Drive the loop until the coroutine has ended; raise `ClusterUnreachable` in time."""
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        if not self._turn.acquire(timeout=timeout_s):
            raise self.unreachable(timeout_s)
        try:
            future = self.net.call_soon_with_future(coroutine, *arguments)
            self.net.poll(timeout_ms=max(0.0, deadline - time.monotonic()) * 1000, future=future)
        except RuntimeError as error:
            raise UsageError("This was closed before.") from error
        finally:
            self._turn.release()
        if not future.is_done:
            raise self.unreachable(timeout_s)
        if future.exception is not None:
            raise self.wrapped(future.exception)
        return future.value

    def unreachable(self, timeout_s: float, why: BaseException | None = None) -> AmcastError:
        """Say that nobody answered, or why a broker that did refuses us."""
        refusal = self.manager.refusal
        if refusal is not None:
            return type(refusal)(str(refusal))  # another raises the first one, too
        why = why or self.manager.trouble
        reason = f" ({why})" if why is not None and str(why) else ""
        if "disconnected" in reason:
            protocol = self.manager.config["security_protocol"]
            reason = f" (it hung up; see whether security.protocol {protocol} fits that port)"
        return ClusterUnreachable(
            f"No broker at {self.bootstrap} answered within {timeout_s:g} s{reason}."
        )

    def wrapped(self, error: BaseException) -> BaseException:
        """Turn what the package raised into an error of ours."""
        if isinstance(error, AmcastError):
            return error
        if isinstance(error, kafka_errors.AuthorizationError):
            return NotAuthorized(f"The brokers at {self.bootstrap} deny this: {error}.")
        if isinstance(error, kafka_errors.KafkaError | OSError):
            return self.unreachable(self.timeout_s, error)
        return error

    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition, int],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """Ask the leaders for offsets by time (or LATEST, EARLIEST); -1 is none."""
        found: dict[TopicPartition, int] = {}
        began = time.monotonic()
        while True:
            missing = {one: time_ms for one, time_ms in wanted.items() if one not in found}
            if not missing:
                return found
            self.refuse_unknown(list(missing), since=began)
            found.update(await self.list_offsets_once(missing, isolation))
            if len(found) < len(wanted):
                await self.net.sleep(RETRY_S)

    async def list_offsets_once(
        self,
        wanted: Mapping[TopicPartition, int],
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> dict[TopicPartition, int]:
        """Ask once; what has no leader now, or whose leader does not answer, is left out."""
        found: dict[TopicPartition, int] = {}
        futures = [
            self.manager.send(
                _list_offsets_request({one: wanted[one] for one in at}, isolation), node
            )
            for node, at in (await self.leaders(wanted)).items()
        ]
        for future in futures:
            try:
                found.update(self._offsets_of(await future))
            except kafka_errors.AuthorizationError:
                raise
            except (kafka_errors.KafkaError, OSError):
                self.cluster.request_update()
        return found

    async def leaders(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        """Group by leader; those without a known one are left out, and the metadata refreshed."""
        wanted = list(partitions)
        self.follow(wanted)
        if any(self.leader(one) is None for one in wanted):
            try:
                await self.cluster.refresh_metadata()
            except (kafka_errors.KafkaError, OSError):
                await self.net.sleep(RETRY_S)
        grouped: dict[int, list[TopicPartition]] = defaultdict(list)
        for one in wanted:
            leader = self.leader(one)
            if leader is not None:
                grouped[leader].append(one)
        return grouped

    async def ends_led_by(self, node: int, topic: str) -> dict[TopicPartition, int]:
        """Ask a broker for the ends of what it leads of a topic; none where there is no such topic.

        The topic's metadata are not kept: asking for a topic that does not exist is no error.
        """
        asked = MetadataRequest.MetadataRequestTopic(name=topic)
        request = MetadataRequest(topics=[asked], allow_auto_topic_creation=False, min_version=4)
        response = await self.manager.send(request, node)
        led = [
            TopicPartition(topic, partition.partition_index)
            for found in response.topics
            for partition in found.partitions
            if partition.leader_id == node
        ]
        if not led:
            return {}
        ends = _list_offsets_request(dict.fromkeys(led, LATEST), IsolationLevel.READ_COMMITTED)
        return self._offsets_of(await self.manager.send(ends, node))

    def follow(self, partitions: Iterable[TopicPartition]) -> None:
        """Keep the metadata of these topics from now on."""
        for topic in dict.fromkeys(one.topic for one in partitions):
            try:
                self.cluster.add_topic(topic)
            except ValueError as error:
                raise UsageError(f"No topic can be called {topic!r}: {error}.") from error

    def leader(self, partition: TopicPartition) -> int | None:
        """Give the node that leads, or None where there is none or it is not known."""
        leader: int | None = self.cluster.leader_for_partition(partition)
        return None if leader is None or leader < 0 else leader

    def refuse_unknown(self, missing: Sequence[TopicPartition], *, since: float) -> None:
        """Raise where the brokers answer, but for a while have not known a Kafka partition."""
        hidden = self.cluster.unauthorized_topics
        for one in missing:
            if one.topic in hidden and self._refreshed_after(since):
                raise self.access.lacks("Describe", "topic", one.topic)
        if time.monotonic() - since < min(_UNKNOWN_TOPIC_S, self.timeout_s / 2):
            return
        for one in missing:
            if self.leader(one) is None and self._refreshed_after(since):
                known = self.cluster.partitions_for_topic(one.topic)
                if known is None or one.partition not in known:
                    raise TopicMissing(
                        f"{one.topic}/{one.partition} does not exist at {self.bootstrap}."
                    ).about(one)

    def close(self) -> None:
        """Close every socket, once whoever is waiting has had its time-out."""
        turn = self._turn.acquire(timeout=self.timeout_s)
        try:
            manager = getattr(self, "manager", None)
            if manager is not None:
                with quiet():
                    manager.close()
            self.net.close()
        finally:
            if turn:
                self._turn.release()

    async def _find_cluster(self) -> None:
        await self.manager.bootstrap_async(int(self.timeout_s * 1000))

    def _refreshed_after(self, since: float) -> bool:
        return bool(self.cluster._last_successful_refresh_ms > since * 1000)  # noqa: SLF001

    def _offsets_of(self, response: Any) -> dict[TopicPartition, int]:
        offsets = {}
        for topic in response.topics:
            for partition in topic.partitions:
                at = TopicPartition(topic.name, partition.partition_index)
                error = kafka_errors.for_code(partition.error_code)
                if error is kafka_errors.NoError:
                    offsets[at] = partition.offset
                elif issubclass(error, kafka_errors.AuthorizationError):
                    raise self.access.lacks("Describe", "topic", at.topic)
                else:
                    self.cluster.request_update()
        return offsets


def _list_offsets_request(wanted: Mapping[TopicPartition, int], isolation: IsolationLevel) -> Any:
    partition_type = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition
    by_topic: dict[str, list[Any]] = defaultdict(list)
    for at, timestamp_ms in wanted.items():
        by_topic[at.topic].append(
            partition_type(
                partition_index=at.partition, current_leader_epoch=-1, timestamp=timestamp_ms
            )
        )
    return ListOffsetsRequest(
        isolation_level=isolation,
        topics=list(by_topic.items()),
        min_version=2,
    )
