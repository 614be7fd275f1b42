"""What the wire asks of a node's chains: the protocols that a node fulfils.

In: what arrives over gRPC or HTTP, as bytes. Out: statuses, blocks, and what is wrong with the
node. No gRPC and no log here, so that the API can be tried against chains held in memory.
`submit` and `receipt` run on the server's event loop and must not block it; everything else may
be called from any thread and returns at once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

from ordering_osn.config.policies import SignedData


class Status(enum.IntEnum):
    """Fabric's common.Status, as far as an orderer answers with it."""

    SUCCESS = 200
    BAD_REQUEST = 400
    FORBIDDEN = 403
    NOT_FOUND = 404
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503


class Blocks(Protocol):
    """The part of `ledger.Ledger` that readers use."""

    @property
    def height(self) -> int:
        """The number of the next block."""

    @property
    def base(self) -> int:
        """The number of the oldest block that is kept."""

    def read(self, number: int) -> bytes:
        """Give the serialized block; raises `ledger.Pruned` or `ledger.NotYet`."""


class ReaderPolicies(Protocol):
    """`policies.Policies`, as far as readers are judged."""

    def evaluate(self, path: str, signed: Sequence[SignedData]) -> None:
        """Return where the policy at `path` is met; raises `policies.PolicyNotMet`."""


class Configuration(Protocol):
    """`channel_config.ChannelConfig`, as far as readers are judged."""

    @property
    def sequence(self) -> int:
        """Grows by one with each config update."""

    @property
    def policies(self) -> ReaderPolicies:
        """The channel's policies."""

    @property
    def maintenance(self) -> bool:
        """Whether the orderer group is in maintenance mode."""


class Channel(Protocol):
    """One chain of this node. Values change under the reader's feet; each is read in one go."""

    @property
    def name(self) -> str:
        """The channel ID."""

    @property
    def ledger(self) -> Blocks:
        """The blocks."""

    @property
    def config(self) -> Configuration:
        """The configuration now in force."""

    @property
    def errored(self) -> bool:
        """Whether its loop died or its log cannot be reached: strict readers are sent away."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Have `callback` called, from any thread, AFTER each change of what stands above.

        The callback does not block. Gives the call that ends it.
        """


class Channels(Protocol):
    """The chains of a node, and what only the node as a whole can do."""

    def get(self, name: str) -> Channel | None:
        """Give the chain of that name, or None."""

    def names(self) -> list[str]:
        """Give the chains' names, sorted."""

    async def submit(self, envelope: bytes) -> tuple[int, str]:
        """Do all that Broadcast does with one envelope: gives status and info, bounded in time.

        Filters, waiting until the chain takes it, multicast, acknowledgement by all in-sync
        replicas. Calls overlap; the envelopes of overlapping calls are ordered as the calls
        began, as far as they go to the same chain. A call that refuses an envelope for what it is
        (not 503) does so before it first waits, so that nothing behind it is let in.
        """

    async def receipt(
        self, channel: str, transaction: str, timeout_s: float
    ) -> tuple[int, int] | None:
        """In which block a transaction stands, and where in it: (number, index).

        None where it stood in none before the time was over.
        """

    def health(self) -> list[tuple[str, str]]:
        """Say what is wrong, as (component, reason); empty where nothing is. Writes nothing."""
