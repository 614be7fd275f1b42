"""The protocols between the API and a node: what gRPC and HTTP need of its chains.

No gRPC and no Kafka here, so that tests can serve chains held in memory. The coroutines run on the
server's event loop and must not block it; everything else may be called from any thread and
returns at once.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from multicast.consuming.consumer import Consumer
from multicast.errors import AmcastError
from ordering_osn.chain.bundles.rule import VoidReason
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.wire.multichain_pb2 import BundleResponse

# A config update of more bytes is judged in a thread: that takes 10 ms and more, up to 0.3 s.
HEAVY_BYTES = 16 << 10


class Status(enum.IntEnum):
    """The values of Fabric's common.Status that an orderer answers with."""

    SUCCESS = 200
    BAD_REQUEST = 400
    FORBIDDEN = 403
    NOT_FOUND = 404
    INTERNAL_SERVER_ERROR = 500
    SERVICE_UNAVAILABLE = 503


class Refused(AmcastError):
    """What a client sent is refused: the status, the text and the chain of the answer."""

    def __init__(self, status: int, info: str, chain: str = "") -> None:
        super().__init__(info)
        self.status, self.info, self.chain = int(status), info, chain
        self.retriable = status == Status.SERVICE_UNAVAILABLE


class FateKind(enum.Enum):
    """What a node knows of a bundle."""

    UNKNOWN = "unknown"
    ACCEPTED = "accepted"  # taken in, or it counts; its parts are not in all blocks yet
    VOID = "void"
    COMMITTED = "committed"  # its parts are in durable blocks of all chains that the node runs


@dataclass(frozen=True, slots=True)
class BundleFate:
    """What a node knows of a bundle. `final`: waiting does not change it, as far as is known.

    `reason` and `void_chain` say why it is VOID. `places`: block number and index of the parts that
    are in durable blocks, by chain. `chains` is empty where the bundle is unknown.
    """

    kind: FateKind = FateKind.UNKNOWN
    chains: tuple[str, ...] = ()
    final: bool = False
    reason: VoidReason | None = None
    void_chain: str = ""
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)


class Channel(Protocol):
    """One chain of this node. Its values change at any time; each read returns one whole value."""

    @property
    def name(self) -> str:
        """The channel ID."""

    @property
    def ledger(self) -> Ledger:
        """The blocks."""

    @property
    def config(self) -> ChannelConfig:
        """The configuration in force."""

    @property
    def errored(self) -> bool:
        """Whether its loop has ended or its log cannot be reached: strict readers get a 503."""

    @property
    def why_errored(self) -> str:
        """What strict readers are told then."""

    def settled(self, log: str) -> int:
        """Give the offset in a log below which each record is in a durable block, or never is."""

    async def receipt(self, transaction: str, timeout_s: float) -> tuple[int, int] | None:
        """Wait until a transaction is in a block; returns (block number, index in the block).

        None where it is in no block within `timeout_s`. Transactions older than the chain's window
        are not found any more.
        """

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, AFTER each change of one of the values above.

        The callback must not block. Returns the function that ends the watch.
        """


class Channels(Protocol):
    """The chains of a node, and the calls that concern the whole node."""

    received_max: int
    """The bytes of a message that the server takes; the server sets it when it starts."""

    def get(self, name: str) -> Channel | None:
        """Return the chain of that name; None where the node does not run it."""

    def names(self) -> list[str]:
        """Return the chains' names, sorted."""

    def why_stalled(self, name: str) -> str | None:
        """Say why nothing more of a chain is ordered now; None: it is, or nothing waits."""

    async def submit(self, envelope: bytes) -> tuple[int, str]:
        """Order one envelope as Broadcast demands; returns status and info, in bounded time.

        Filters it, waits until its chain accepts envelopes, multicasts it, and waits for the
        acknowledgement by all in-sync replicas. Calls may overlap: envelopes for the same chain
        are ordered as their calls began. An envelope that is refused for its content (any status
        but 503) is refused before the call first waits, so that the caller submits no later one.
        Neither holds for a config update of more than `HEAVY_BYTES`: the caller waits for it.
        """

    async def submit_bundle(self, raw: bytes) -> BundleResponse:
        """Take in a serialized bundle; answers in bounded time.

        200 means that the record of the bundle is on all in-sync replicas, or that this node knows
        the bundle already. Whether it counts is its fate. Calls may overlap: bundles for the same
        set are appended in the order in which their calls began.
        """

    async def bundle_status(self, bundle_id: bytes, wait_s: float) -> BundleFate:
        """Give what this node knows of a bundle; wait for a final fate, for `wait_s` at most."""

    async def log_end(self, chains: tuple[str, ...]) -> int:
        """Give the offset behind the last record of the log of exactly this set (sorted).

        As Kafka says it now; raises `Refused`.
        """

    def open_order(self, chains: Sequence[str], start: str) -> Consumer:
        """Open the order of some chains from a cursor's text, "earliest" or "latest".

        Blocks for a request to Kafka; raises `AmcastError`.
        """

    def health(self) -> list[tuple[str, str]]:
        """Return each problem as (component, reason); empty where healthy. Writes no record."""
