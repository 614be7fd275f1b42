"""One event loop of kafka-python with its connections, driven by the thread that waits.

`run` sends requests and returns their answers, or raises this project's errors. This module starts
no thread; `run` may be called from any thread, one at a time.

Invariant: the wait of `run` <= its time-out.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from kafka import errors as kafka_errors

from multicast.drivers.access import Access
from multicast.drivers.client_settings import (
    CHECK_OF_NAMES,
    OF_GROUPS,
    OF_PRODUCERS,
    UNCHECKED,
    UNKNOWN_TOPIC_S,
    check_client,
)
from multicast.drivers.home_process import HomeProcess
from multicast.drivers.kafka.private import KafkaNetClient
from multicast.drivers.kafka.quiet import QuietSelector
from multicast.drivers.kafka.transports import ConnectionManager
from multicast.drivers.protocol import TopicPartition
from multicast.drivers.tls_files import check_files
from multicast.errors import AmcastError, NotAuthorized, TopicMissing, UsageError

# The pause before a request is repeated, such as while a leader is elected. A plain choice: 0.3 s
# would delay messages noticeably, and 3 ms would load brokers that are busy recovering.
RETRY_S = 0.03

# Five times a message of ours; what begins with a letter, such as an answer of HTTP, is more.
_FRAME_BYTES_MAX = 2**29 - 1

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


def client_of_ours(**settings: Any) -> KafkaNetClient:
    """Build the network client of the package's producer and admin client (`kafka_client`)."""
    net = QuietSelector(**settings)
    return KafkaNetClient(net=net, manager=ConnectionManager(net, **settings), **settings)


def kafka_python_settings(client: Mapping[str, str]) -> dict[str, Any]:
    """Translate Kafka's dotted names to the package's keyword arguments."""
    check_client(client)
    settings: dict[str, Any] = {"client_id": "amcast", "proxy_url": "amcast://direct"}
    for name, value in client.items():
        if name == CHECK_OF_NAMES:
            settings["ssl_check_hostname"] = value.lower() not in UNCHECKED
        elif name == "security.protocol":
            settings["security_protocol"] = value.upper()
        elif name not in (*OF_PRODUCERS, *OF_GROUPS):
            settings[_NAMES[name]] = value
    if client.get("sasl.mechanism", "").startswith("SCRAM") and "sasl.username" in client:
        # Version 3.0.12 sends a name as it is, though RFC 5802 wants these two written so.
        name = client["sasl.username"].replace("=", "=3D").replace(",", "=2C")
        settings["sasl_plain_username"] = name
    return settings


class Connection:
    """Connections to the brokers of one cluster; the constructor connects to it or raises."""

    def __init__(self, bootstrap: str, client: Mapping[str, str], *, timeout_s: float) -> None:
        settings = kafka_python_settings(client)
        check_files(client)
        self.bootstrap = bootstrap
        self.access = Access.of(bootstrap, client)
        self.timeout_s = timeout_s
        self.deadline = 0.0  # of the `run` whose coroutine begins: it takes it at once
        self.home = HomeProcess("client", self)
        self._settings = settings
        self._closed = False
        self._lock = threading.Lock()
        try:
            self._open_loop()
        except ValueError as error:
            raise UsageError(
                f"The bootstrap addresses {bootstrap} are not usable: {error}."
            ) from error
        try:
            self.run(_nothing)
        except BaseException:
            self.close()
            raise

    def run(
        self,
        coroutine: Callable[..., Coroutine[Any, Any, Any]],
        *arguments: object,
        timeout_s: float | None = None,
    ) -> Any:
        """Drive the loop until the coroutine ends; raise `ClusterUnreachable` after the time-out.

        `timeout_s` includes the wait for another thread's run. If an exception from outside, such
        as Ctrl-C, has cut off an earlier run, this one uses a new loop with new connections.
        """
        self.home.check()
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            raise self.manager.unreachable(timeout_s)
        try:
            if self.net.interrupted and not self._closed:
                self.net.close()
                self._open_loop()
            future = self.net.call_soon_with_future(
                self._with_cluster, deadline, coroutine, *arguments
            )
            self.net.poll(timeout_ms=max(0.0, deadline - time.monotonic()) * 1000, future=future)
        except RuntimeError as error:
            raise UsageError(f"The connection to {self.bootstrap} is closed.") from error
        finally:
            self._lock.release()
        if not future.is_done:
            raise self.manager.unreachable(timeout_s)
        if future.exception is not None:
            raise self.wrapped(future.exception)
        return future.value

    async def pause_before_retry(self, deadline: float) -> None:
        """Pause before a request is repeated; raise `ClusterUnreachable` after its `run`'s end.

        A coroutine that repeats its request must end by itself, though nobody waits for it any
        more. Otherwise each call to brokers that are away leaves one that asks them for ever.
        """
        if time.monotonic() >= deadline:
            raise self.manager.unreachable(self.timeout_s)
        await self.net.sleep(RETRY_S)

    def wrapped(self, error: BaseException) -> BaseException:
        """Translate an error of the package into one of this project."""
        if isinstance(error, AmcastError):
            return error
        if isinstance(error, kafka_errors.AuthorizationError):
            return NotAuthorized(
                f"The brokers at {self.bootstrap} deny {self.access.user} a right: {error}."
            )
        if isinstance(error, kafka_errors.KafkaError | OSError):
            return self.manager.unreachable(self.timeout_s, error)
        return error

    async def leaders(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[int, list[TopicPartition]]:
        """Group by leader, after a refresh of the metadata if one is unknown; drop the unknown."""
        wanted = list(partitions)
        self.follow(wanted)
        if any(self.leader(partition) is None for partition in wanted) and not await self.look_up():
            await self.net.sleep(RETRY_S)
        grouped: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in wanted:
            leader = self.leader(partition)
            if leader is not None:
                grouped[leader].append(partition)
        return grouped

    async def refresh(self) -> None:
        """Refresh the metadata now, without the package's back-off.

        Not by the package's own call: whatever that raises ends the package's loop that refreshes
        metadata, if this waits for the same answer, and no leader is ever found again
        (kafka-python 3.0.12; docs/hazards.md).
        """
        node = self.manager.least_loaded_node()
        if node is None:
            raise kafka_errors.NodeNotReadyError("metadata")
        self.cluster.update_metadata(await self.manager.send(self.cluster.metadata_request(), node))

    async def look_up(self) -> bool:
        """Refresh the metadata as `refresh` does; False where that fails."""
        try:
            await self.refresh()
        except (kafka_errors.KafkaError, OSError):
            return False
        return True

    def follow(self, partitions: Iterable[TopicPartition]) -> None:
        """Keep the metadata of these topics from now on."""
        for topic in dict.fromkeys(partition.topic for partition in partitions):
            try:
                self.cluster.add_topic(topic)
            except ValueError as error:
                raise UsageError(f"{topic!r} is no valid topic name: {error}.") from error

    def leader(self, partition: TopicPartition) -> int | None:
        """Return the broker that leads, or None if there is none or it is unknown."""
        leader: int | None = self.cluster.leader_for_partition(partition)
        return None if leader is None or leader < 0 else leader

    def raise_if_unknown(self, missing: Sequence[TopicPartition], *, since: float) -> None:
        """Raise if metadata that arrived after `since` lacks a Kafka partition for some seconds.

        A topic that the user may not see raises at once.
        """
        hidden = self.cluster.unauthorized_topics
        for log in missing:
            if log.topic in hidden and self._refreshed_after(since):
                raise self.access.lacks("Describe", "topic", log.topic)
        if time.monotonic() - since < min(UNKNOWN_TOPIC_S, self.timeout_s / 2):
            return
        for log in missing:
            if self.leader(log) is None and self._refreshed_after(since):
                known = self.cluster.partitions_for_topic(log.topic)
                if known is None or log.partition not in known:
                    raise TopicMissing(
                        f"{log.topic}/{log.partition} does not exist at {self.bootstrap}."
                    ).about(log)

    def close(self) -> None:
        """Close every socket, after the run of another thread or its time-out.

        In a forked process it does nothing: that would end the connections of the parent.
        """
        if self.home.is_left:
            return
        locked = self._lock.acquire(timeout=self.timeout_s)
        try:
            self._closed = True
            if not self.net.interrupted:
                with self.net.ends():
                    self.manager.close()
            self.net.close()
        finally:
            if locked:
                self._lock.release()

    def _open_loop(self) -> None:
        """Make an event loop, with no connection yet."""
        selector = selectors.DefaultSelector()
        net = QuietSelector(client_id=self._settings["client_id"], selector=lambda: selector)
        try:
            manager = ConnectionManager(
                net,
                bootstrap_servers=self.bootstrap,
                request_timeout_ms=int(self.timeout_s * 1000),
                receive_message_max_bytes=_FRAME_BYTES_MAX,
                **self._settings,
            )
        except BaseException:
            net.close()
            raise
        self.selector, self.net = selector, net
        self.manager, self.cluster = manager, manager.cluster

    async def _with_cluster(
        self, deadline: float, coroutine: Callable[..., Any], *arguments: object
    ) -> Any:
        """Find the brokers, then run a coroutine; after the deadline, nobody waits for it."""
        while not self.manager.bootstrapped and time.monotonic() < deadline:
            try:
                # What an earlier run has begun ends with that run; then it begins anew.
                await self.manager.bootstrap_async(1000 * (deadline - time.monotonic()))
            except kafka_errors.KafkaTimeoutError:
                if self.manager.closed:
                    raise
        if time.monotonic() >= deadline:
            raise self.manager.unreachable(self.timeout_s)
        self.deadline = deadline
        return await coroutine(*arguments)

    def _refreshed_after(self, since: float) -> bool:
        return bool(self.cluster._last_successful_refresh_ms > since * 1000)  # noqa: SLF001


async def _nothing() -> None:
    """Need nothing but the brokers."""
