"""How many streams a node holds for whom, so that no client shuts out another.

    granted   a stream of a known client: by its TLS certificate where the server asks for one, else
              by who signed its first granted request, at one address. The first above
              `CLIENT_STREAMS_MAX` of a client is refused
    waiting   a stream that reads, and whose client is not known yet. Beyond `WAITING_MAX` the one
              that has waited longest is ended: who sends its request at once is served, however
              many others wait, at its own address, too

A stream's first message must come within `FIRST_REQUEST_S`; half a message is none. A client that
does not take a message within `STALLED_S`, and more for a large one, loses its connection.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from ordering_osn.api.channels import Refused, Status

# A fifth of a node's streams (`grpc_server.STREAMS_MAX`), and as many tails as are tested at once.
CLIENT_STREAMS_MAX = 2_000
# Where a node starts, all its clients come at once. Ten times more, and strangers hold 500 MB.
WAITING_MAX = 2_000
# Clients send the first message with the stream: time enough for 10 MB at 3 Mbit/s.
FIRST_REQUEST_S = 30.0
# A crowd of honest clients is known within that time; who waits longer is ended for another.
GRACE_S = 1.0
# What Kafka gives a consumer between two polls: a peer may write a block meanwhile, or a person
# read a page of them. Twice that for 75 MiB is 2 Mbit/s.
STALLED_S = 300.0
_DOUBLED_BYTES = 75 << 20
Client = tuple[str, bytes]  # an address, empty where a TLS certificate tells who it is; its digest


class ClientStreams:
    """The streams of a node, by their clients; all calls on one event loop."""

    def __init__(
        self,
        *,
        client_max: int = CLIENT_STREAMS_MAX,
        waiting_max: int = WAITING_MAX,
        first_s: float = FIRST_REQUEST_S,
        grace_s: float = GRACE_S,
        stalled_s: float = STALLED_S,
    ) -> None:
        self.first_s, self._stalled_s = first_s, stalled_s
        self._client_max, self._waiting_max, self._grace_s = client_max, waiting_max, grace_s
        self._granted: Counter[Client] = Counter()
        self._waiting: dict[asyncio.Timeout, float] = {}  # since when, oldest first

    def taken_within_s(self, size: int) -> float:
        """Give how long a client may take to read a message of `size` bytes."""
        return self._stalled_s * (1 + size / _DOUBLED_BYTES)

    def grant(self, client: Client) -> None:
        """Count a stream of this client; raises `Refused` 503 where it has too many."""
        if self._granted[client] >= self._client_max:
            raise Refused(
                Status.SERVICE_UNAVAILABLE,
                f"this client has {self._client_max} streams at this node, its most: end some",
            )
        self._granted[client] += 1

    def ended(self, client: Client) -> None:
        """Take back a `grant`."""
        self._granted[client] -= 1
        if not self._granted[client]:
            del self._granted[client]

    def waits(self, limit: asyncio.Timeout) -> None:
        """Count a read of an unknown client, until `served`; `limit` ends it."""
        now = asyncio.get_running_loop().time()
        self._waiting[limit] = now
        over = len(self._waiting) - self._waiting_max
        for oldest, since in self._waiting.items():
            if over <= 0 or now - since < self._grace_s:
                return
            over -= 1  # one whose time is over leaves at the loop's next turn
            if (oldest.when() or now + 1) > now:
                oldest.reschedule(now)

    def served(self, limit: asyncio.Timeout) -> None:
        """Take back `waits`, if it was not yet."""
        self._waiting.pop(limit, None)
