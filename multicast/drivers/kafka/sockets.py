"""Opens a raw socket to a broker, connected and authenticated by kafka-python.

The socket does not block (with TLS neither) and is removed from the package's event loop, so a
caller that repeats one request pays no overhead of the package. The socket never authenticates
again (KIP-368): a broker that requires it closes the socket in the end, and the caller opens
another one.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from kafka import errors as kafka_errors

from multicast.drivers.client_settings import CONNECT_S
from multicast.drivers.kafka.connection import Connection
from multicast.drivers.kafka.private import KafkaConnection
from multicast.drivers.kafka.transports import abort
from multicast.errors import AmcastError


async def open_socket(connection: Connection, node: int, key: int, version: int) -> socket.socket:
    """Open a socket to broker `node` for requests with this API key and version.

    Raises the package's errors and OSError within `CONNECT_S` and the connection's time-out, and
    `AmcastError` if the broker does not support that version of the request.
    """
    manager = connection.manager
    broker = connection.cluster.broker_metadata(node)
    if broker is None:
        raise kafka_errors.NodeNotReadyError(node)
    until = time.monotonic() + min(CONNECT_S, connection.timeout_s)
    transport = await manager._build_transport(broker, timeout_at=until)  # noqa: SLF001
    protocol = KafkaConnection(
        connection.net,
        node_id=node,
        broker_version_data=manager.broker_version_data,
        **manager.config,
    )
    try:
        protocol.connection_made(transport)
        await protocol.initialize(timeout_at=until)
        await protocol
    except BaseException:
        abort(transport)
        raise
    oldest, newest = protocol.broker_version_data.api_versions.get(key, (0, -1))
    if not oldest <= version <= newest:
        abort(transport)
        raise AmcastError(
            f"Broker {node} does not support version {version} of the request with API key {key}."
        )
    return _detached(connection, protocol, transport)


def _detached(connection: Connection, protocol: Any, transport: Any) -> socket.socket:
    """Remove a socket from the event loop; the package has no call for it."""
    opened: socket.socket = transport._sock  # noqa: SLF001
    transport._sock = None  # noqa: SLF001
    protocol._reauth.cancel()  # noqa: SLF001
    connection.net.cancel(transport._read_task)  # noqa: SLF001
    connection.net.unregister_event(opened, selectors.EVENT_READ | selectors.EVENT_WRITE)
    return opened
