"""Whether the process that orders a collector's logs has ended, asked of its machine's kernel.

A standby asks when an append has been due for a while. A datagram to a port at which nobody listens
is refused by the kernel of that machine: the process has ended. A process that is alive, however
busy or stalled, refuses nothing, and neither does a machine that is down or out of reach: for those
the standby's patience remains. A firewall may refuse in a process's name; then a standby takes over
too early, which costs time, never order (`standby.py`).
"""

from __future__ import annotations

import select
import socket
import time

from multicast.announcements import Address

# For the refusal to come back. One from the same machine is there at once, from the same network
# within a millisecond; the clock's thread waits meanwhile, so ten times longer delays ticks.
_ANSWER_MS = 2
# The collectors of a process that was killed all ask at once: one question serves them. A look
# comes every 50 ms (`clock.py`), and must not get the answer of the one before.
_FRESH_S = 0.04
# An ended process stays so, but another one may get its port: then a standby acts too early once.
# A tenth, and collectors one below the other on a message's way would each have to ask again.
_KNOWN_S = 2.0


class EndedProcesses:
    """Asks about other processes, for the collectors of this one. Safe from any thread."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, int], tuple[float, bool]] = {}

    def has_ended(self, address: Address) -> bool:
        """Say whether the process that published this address is known to have ended.

        Blocks for 2 ms at most. A host that is not an IP address is not asked, as its name would
        have to be looked up.
        """
        now = time.monotonic()
        place = address.host, address.port
        asked, ended = self._answers.get(place, (-_FRESH_S, False))
        if now - asked >= _FRESH_S:
            ended = _is_refused(*place)
            known = {key: of for key, of in self._answers.items() if _is_kept(of, now)}
            self._answers = {**known, place: (now, ended)}
        return ended

    def is_known(self, address: Address) -> bool:
        """Say, without a question, whether that process was found to have ended a moment ago."""
        answer = self._answers.get((address.host, address.port))
        return answer is not None and answer[1] and _is_kept(answer, time.monotonic())


def _is_kept(answer: tuple[float, bool], now: float) -> bool:
    since, ended = answer
    return now - since < (_KNOWN_S if ended else _FRESH_S)


def _is_refused(host: str, port: int) -> bool:
    try:
        family, kind, protocol, _, remote = socket.getaddrinfo(
            host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST
        )[0]
        with socket.socket(family, kind, protocol) as asking:
            asking.setblocking(False)
            asking.connect(remote)
            asking.send(b"")  # a listener drops it: it carries no token
            poll = select.poll()
            poll.register(asking, select.POLLIN)
            if poll.poll(_ANSWER_MS):
                asking.recv(1)
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False
