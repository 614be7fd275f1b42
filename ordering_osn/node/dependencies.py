"""What the loop of a chain needs of its node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from multicast.consuming.consumer import Consumer
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.bundles.log_records import RecordReader
from ordering_osn.chain.bundles.metadata import BundleMetadata
from ordering_osn.chain.bundles.restart import RestoredSet
from ordering_osn.chain.bundles.rule import Outcome
from ordering_osn.chain.envelopes import Signer
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.node.filters import ChannelRules
from ordering_osn.node.outbox import OnOutcome
from ordering_osn.node.peers import PeerNodes


class BundleListener(Protocol):
    """Hears what the chains of a node read and write of bundles. Called on the chains' threads."""

    def read(self, chain: str, chains: tuple[str, ...], offset: int, outcome: Outcome) -> None:
        """Take the outcome of a record of the log of a set, as `chain` has read it.

        BEFORE the block with its part is durable. A record may be read again after a gap.
        """

    def written(self, chain: str, block: int, parts: Sequence[BundleMetadata]) -> None:
        """Take the parts of bundles in a block of `chain`, AFTER the block is durable."""

    def restored(self, chain: str, sets: Sequence[RestoredSet]) -> None:
        """Take where the bundles of the windows stand, before `chain` reads its first record."""


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a chain's loop needs of its node."""

    signer: Callable[[], Signer]  # this node's identity as it is now
    rules: Callable[[ChannelConfig], ChannelRules]
    connect: Callable[[], None]  # reaches Kafka, so that `post` works; may raise
    consumer: Callable[[str, str], Consumer]  # of a chain, from a cursor
    topic_of: Callable[[str], tuple[str, str] | None]  # a chain's topic and its ID; AFTER `connect`
    post: Callable[[bytes, tuple[str, ...], OnOutcome], None]  # a record to the log of a set
    created: Callable[[str, bytes], None]  # a channel is created: its name and CONFIG envelope
    peers: PeerNodes | None
    accepts_loss: Callable[[str], bool]  # of a chain: an operator accepts what Kafka has lost
    metrics: Metrics
    bundles: BundleListener
    read_bundle: RecordReader  # of the log of a set
    window_max: int
    stalled_s: float
    probe_s: float
