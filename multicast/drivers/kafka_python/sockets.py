"""A socket of one's own to a broker: connected, greeted and authenticated by kafka-python.

In goes a broker's number; out comes a socket that does not block (TLS included), taken out of the
package's event loop, so that who asks one question for ever pays for the question only. A broker
that wants its clients to authenticate again (KIP-368) closes it in the end, and another is opened.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any

from kafka import errors as kafka_errors
from kafka.net.connection import KafkaConnection

from multicast.drivers.kafka_python.connection import Connection, abort
from multicast.errors import AmcastError


async def open_socket(connection: Connection, node: int, key: int, version: int) -> socket.socket:
    """Open a socket to a broker; raises the package's errors and OSError within the time-out.

    Raises `AmcastError` where the broker does not take the request that the socket is for: its key
    and version.
    """
    manager = connection.manager
    broker = connection.cluster.broker_metadata(node)
    if broker is None:
        raise kafka_errors.NodeNotReadyError(node)
    until = time.monotonic() + connection.timeout_s
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
        raise AmcastError(f"Broker {node} does not take version {version} of request {key}.")
    return _taken_out(connection, protocol, transport)


def _taken_out(connection: Connection, protocol: Any, transport: Any) -> socket.socket:
    """End what the loop does with a socket; the package has no call for it."""
    taken: socket.socket = transport._sock  # noqa: SLF001
    transport._sock = None  # noqa: SLF001
    protocol._reauth.cancel()  # noqa: SLF001
    connection.net.cancel(transport._read_task)  # noqa: SLF001
    connection.net.unregister_event(taken, selectors.EVENT_READ | selectors.EVENT_WRITE)
    return taken
