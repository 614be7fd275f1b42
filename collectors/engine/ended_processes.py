"""Whether the process that orders a collector's logs has ended, asked of its machine's kernel.

A standby asks when an append has been due for a while. The kernel of a machine refuses a connection
to a port at which nobody listens: the process that served its web pages there has ended. For a
process that is alive, however busy or stalled, it refuses none, and a machine that is down or out
of reach says nothing: then the standby's patience remains. A firewall may refuse in a process's
name; then a standby takes over too early, which costs time, never order (`standby.py`).
"""

from __future__ import annotations

import errno
import functools
import hashlib
import ipaddress
import select
import socket
import time
from pathlib import Path
from typing import NamedTuple

from multicast.control import MACHINE_BYTES, StatusPage

# For the refusal to come back. One from the same machine is there at once, from the same network
# within a millisecond; the clock's thread waits meanwhile, so ten times longer delays ticks.
_ANSWER_MS = 2
# The collectors of a process that was killed all ask at once: one question serves them. A look
# comes every 50 ms (`clock.py`), and must not get the answer of the one before.
_FRESH_S = 0.04
# An ended process stays so, but another one may get its port: then a standby acts too early once.
# A tenth, and collectors one below the other on a message's way would each have to ask again.
_KNOWN_S = 2.0


class ProcessPlace(NamedTuple):
    """Where a process listens, by an IP address."""

    host: str
    port: int


def place_of(page: StatusPage) -> ProcessPlace | None:
    """Say where to ask for the process that serves this page; None: only its machine could ask.

    A loopback address means another process on each machine. A name would have to be looked up.
    """
    try:
        is_local = ipaddress.ip_address(page.host).is_loopback
    except ValueError:
        return None
    if is_local and (not page.machine or page.machine != this_machine()):
        return None
    return ProcessPlace(page.host, page.port)


@functools.cache
def this_machine() -> bytes:
    """Name this machine since its start, and its network namespace; empty where it has no name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        network = Path("/proc/self/ns/net").stat().st_ino
    except OSError:
        return b""
    return hashlib.sha256(boot + b"%d" % network).digest()[:MACHINE_BYTES]


class EndedProcesses:
    """Asks about other processes, for the collectors of this one. Safe from any thread."""

    def __init__(self) -> None:
        self._answers: dict[ProcessPlace, tuple[float, bool]] = {}

    def has_ended(self, place: ProcessPlace) -> bool:
        """Say whether the process that listened there is known to have ended.

        Blocks for 2 ms at most.
        """
        now = time.monotonic()
        asked, ended = self._answers.get(place, (-_FRESH_S, False))
        if now - asked >= _FRESH_S:
            ended = _is_refused(place)
            known = {key: of for key, of in self._answers.items() if _is_kept(of, now)}
            self._answers = {**known, place: (now, ended)}
        return ended

    def is_known(self, place: ProcessPlace) -> bool:
        """Say, without a question, whether that process was found to have ended a moment ago."""
        answer = self._answers.get(place)
        return answer is not None and answer[1] and _is_kept(answer, time.monotonic())


def _is_kept(answer: tuple[float, bool], now: float) -> bool:
    since, ended = answer
    return now - since < (_KNOWN_S if ended else _FRESH_S)


def _is_refused(place: ProcessPlace) -> bool:
    try:
        family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as asking:
            asking.setblocking(False)
            refused = asking.connect_ex(tuple(place))
            poll = select.poll()
            poll.register(asking, select.POLLOUT)
            if refused == errno.EINPROGRESS and poll.poll(_ANSWER_MS):
                refused = asking.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            return refused == errno.ECONNREFUSED
    except (OSError, OverflowError):
        return False
