"""One thread for the answers to direct appends."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable

from collectors.engine.loops import Loop
from multicast.drivers.protocol import DirectAppender

_POLL_S = 0.5  # `wake` ends a poll, so this bounds no delay; ten times as long changes nothing


class AnswerLoop:
    """Waits on the sockets of the direct appender, and has it take what arrives."""

    def __init__(self, direct: DirectAppender, *, failed: Callable[[Exception], None]) -> None:
        self._direct = direct
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._ready = select.poll()
        self._ready.register(self._woken, select.POLLIN)
        self._ready.register(direct.fileno(), select.POLLIN)
        self.loop = Loop("answers", self._turn, wake=self._wake, failed=failed)

    def close(self) -> None:
        """Close the sockets of `wake`; the loop has ended."""
        self._woken.close()
        self._waker.close()

    def _turn(self) -> None:
        self._ready.poll(1000 * _POLL_S)
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1024)
        self._direct.receive()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # enough bytes wait there, or the loop has ended
            self._waker.send(b"\0")
