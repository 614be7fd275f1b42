"""Sockets and transports of kafka-python 3.0.12 with their defects corrected."""

from __future__ import annotations

from typing import Any

from kafka import errors as kafka_errors
from kafka.net.inet import KafkaNetSocket
from kafka.net.transport import KafkaSSLTransport, KafkaTCPTransport

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
