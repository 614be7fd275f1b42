"""The datagram socket at which all collectors of a process take announcements.

It hands datagrams on as they arrive. `multicast.announcements` decides which of them are
announcements, and whose: each collector has a token of its own. Whoever can send to the socket can
at most keep it busy.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import socket
from contextlib import ExitStack

from multicast.announcements import TOKEN_BYTES, Address
from multicast.errors import UsageError

# The longest announcement has 1,019 bytes (50 counts). A longer datagram is cut here, and what is
# left of it is not a whole number of counts, so `decode` refuses it.
_DATAGRAM_BYTES_MAX = 2048
# A flood of datagrams must not keep the thread from the answers to direct appends.
_DATAGRAMS_MAX = 64
# A thousand of the longest announcements, while the thread is busy. The kernel may grant less
# (`net.core.rmem_max`); what it drops costs time, never order.
_RECEIVE_BUFFER_BYTES = 1 << 20


class Listener:
    """Listens at a free port of a host. `poll` is for one thread.

    `also` is another descriptor (-1: none) that ends the wait of a poll when it can be read.
    Raises `UsageError` where the host is not an address of this machine.
    """

    def __init__(self, host: str, *, also: int = -1) -> None:
        try:
            family, kind, protocol, _, local = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[
                0
            ]
            with ExitStack() as opened:
                self._socket = opened.enter_context(socket.socket(family, kind, protocol))
                self._socket.bind(local)
                opened.pop_all()
        except OSError as error:
            raise UsageError(
                f"announcements cannot be taken at {host}: {error}; set 'listen' in amcast.toml or "
                f"AMCAST_LISTEN to an address of this machine"
            ) from error
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        self._socket.setblocking(False)
        self._ready = select.poll()
        self._ready.register(self._socket, select.POLLIN)
        if also >= 0:
            self._ready.register(also, select.POLLIN)
        self._host = host
        self._port = int(self._socket.getsockname()[1])

    def address(self) -> Address:
        """Make an address here, with a random token that no other address has."""
        return Address(self._host, self._port, secrets.token_bytes(TOKEN_BYTES))

    def poll(self, timeout_s: float) -> list[bytes]:
        """Give the datagrams that have arrived; wait at most so long for the first one."""
        datagrams: list[bytes] = []
        if self._ready.poll(1000 * timeout_s):
            with contextlib.suppress(OSError):
                while len(datagrams) < _DATAGRAMS_MAX:
                    datagrams.append(self._socket.recv(_DATAGRAM_BYTES_MAX))
        return datagrams

    def wake(self) -> None:
        """End the wait of a poll in another thread, by an empty datagram to this socket."""
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", self._socket.getsockname())

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def address_towards(bootstrap: str) -> str:
    """Give the local address from which this machine reaches the first bootstrap broker.

    Raises `UsageError` where no route leads there.
    """
    host, _, port = bootstrap.split(",", maxsplit=1)[0].strip().rpartition(":")
    try:
        family, kind, protocol, _, remote = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(remote)  # of a datagram socket: chooses a route, sends nothing
            return str(probe.getsockname()[0])
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no route leads to the bootstrap address {bootstrap}: {error}; correct it, or set "
            f"'listen' in amcast.toml or AMCAST_LISTEN"
        ) from error
