"""Where the collectors of a process take announcements: one datagram socket for all of them.

Out come datagrams as they arrived; whether they are announcements, and for whom, is decided by
`multicast.announcements`: each collector has a token of its own. Whoever can send to the socket can
at most make it busy.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
from contextlib import ExitStack

from multicast.announcements import TOKEN_BYTES, Address
from multicast.errors import UsageError

_BYTES_MAX = 2048
_AT_ONCE = 64
_BUFFER_BYTES = 1 << 20


class Listener:
    """Listens at a free port of that host. `poll` is for one thread.

    A poll also returns early where there is something to read at `also`, another descriptor (-1:
    none).
    """

    def __init__(self, host: str, *, also: int = -1) -> None:
        try:
            family, kind, protocol, _, at = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
            with ExitStack() as opened:
                self._socket = opened.enter_context(socket.socket(family, kind, protocol))
                self._socket.bind(at)
                opened.pop_all()
        except OSError as error:
            raise UsageError(f"announcements cannot be taken at {host}: {error}") from error
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.setblocking(False)
        self._ready = select.poll()
        self._ready.register(self._socket, select.POLLIN)
        if also >= 0:
            self._ready.register(also, select.POLLIN)
        self._host = host
        self._port = int(self._socket.getsockname()[1])

    def address(self) -> Address:
        """Give an address here with a token that no other has."""
        return Address(self._host, self._port, secrets.token_bytes(TOKEN_BYTES))

    def poll(self, timeout_s: float) -> list[bytes]:
        """Give the datagrams that are there; wait for the first one, at most so long."""
        found: list[bytes] = []
        if self._ready.poll(1000 * timeout_s):
            with contextlib.suppress(OSError):
                while len(found) < _AT_ONCE:
                    found.append(self._socket.recv(_BYTES_MAX))
        return found

    def wake(self) -> None:
        """Make a poll in another thread return early, with an empty datagram."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", self._socket.getsockname())

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def address_towards(bootstrap: str) -> str:
    """Give the address of the interface through which this machine reaches a cluster."""
    host, _, port = bootstrap.split(",", maxsplit=1)[0].strip().rpartition(":")
    try:
        family, kind, protocol, _, at = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(at)  # sends nothing
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UsageError(f"no way leads to the bootstrap address {bootstrap}: {error}") from error
