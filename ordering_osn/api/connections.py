"""Ends connections of clients, which gRPC cannot: it waits until they have read what is sent.

`abort` and the end of a cancelled call are sent behind the message that is being written, and a
call that is let go keeps that message. So the client's socket itself is shut down. Then gRPC
cancels all streams of the connection, and frees what it holds for them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
from collections.abc import Collection
from contextlib import suppress
from ipaddress import ip_address
from urllib.parse import unquote

from ordering_osn.api.metrics import Metrics

# What the kernel still holds for the client is dropped with the socket.
_NO_LINGER = struct.pack("ii", 1, 0)
# Their streams end meanwhile; and with 20,000 open files no more than a tenth of a core is busy.
_PAUSE_S = 1.0
_log = logging.getLogger("amcast.osn.wire")


class Connections:
    """The connections of a server at `port`; all calls on one event loop."""

    def __init__(self, port: int, metrics: Metrics) -> None:
        self._port, self._metrics = port, metrics
        self.ending: set[str] = set()  # of these clients, as gRPC names them
        self._work: asyncio.Task[None] | None = None

    def end(self, peer: str, why: str) -> None:
        """Have the connection of `peer`, as gRPC names it, ended in a thread, for this reason."""
        if peer in self.ending:
            return  # for another stream
        _log.warning("the connection of client %s is ended: %s", peer, why)
        self._metrics.stalled_connections_ended.add()
        self.ending.add(peer)
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._end())

    async def _end(self) -> None:
        while self.ending:
            peers = frozenset(self.ending)
            try:
                await asyncio.to_thread(shut_down, peers, self._port)
            except (OSError, ValueError) as error:  # each is tried again at its next time-out
                _log.error("stalled connections could not be ended: %s", error)
            await asyncio.sleep(_PAUSE_S)
            self.ending -= peers


def shut_down(peers: Collection[str], port: int) -> None:
    """Shut down this process's connections of these peers to its `port`; blocks for a second."""
    ends = {_end_of(*peer.partition(":")[2].rpartition(":")[::2]) for peer in peers}
    ports = {number for _, number in ends}
    for entry in os.scandir("/proc/self/fd"):
        # A copy: meanwhile another file may get the number. What is no socket, or none with another
        # end, raises an error; what its family is, the kernel knows.
        with suppress(OSError):
            copy = os.dup(int(entry.name))
            with socket.socket(socket.AF_INET6, socket.SOCK_STREAM, 0, copy) as connection:
                peer = connection.getpeername()
                if not isinstance(peer, tuple) or peer[1] not in ports:
                    continue
                if connection.getsockname()[1] == port and _end_of(*peer[:2]) in ends:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
                    connection.shutdown(socket.SHUT_RDWR)


def _end_of(host: str, port: str | int) -> tuple[str, int]:
    """Give address and port of one end, as gRPC or the kernel writes it, in one form."""
    # Without the zone of a link's own address, which the kernel does not name.
    address = ip_address(unquote(host).strip("[]").partition("%")[0])
    return str(getattr(address, "ipv4_mapped", None) or address), int(port)
