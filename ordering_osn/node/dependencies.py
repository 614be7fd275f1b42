"""What the loop of a chain needs of its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from multicast.consuming.consumer import Consumer
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.bundles.log_records import RecordReader
from ordering_osn.chain.envelopes import Signer
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.node.filters import ChannelRules
from ordering_osn.node.outbox import OnOutcome
from ordering_osn.node.peers import PeerNodes

if TYPE_CHECKING:  # it imports this module
    from ordering_osn.node.bundles.desk import BundleDesk


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a chain's loop needs of its node."""

    signer: Signer
    rules: Callable[[ChannelConfig], ChannelRules]
    connect: Callable[[], None]  # reaches Kafka, so that `post` works; may raise
    consumer: Callable[[str, str], Consumer]  # of a chain, from a cursor
    topic_of: Callable[[str], tuple[str, str] | None]  # a chain's topic and its ID; AFTER `connect`
    post: Callable[[bytes, tuple[str, ...], OnOutcome], None]  # a record to the log of a set
    created: Callable[[str, bytes], None]  # a channel is created: its name and CONFIG envelope
    peers: PeerNodes | None
    accepts_loss: Callable[[str], bool]  # of a chain: an operator accepts what Kafka has lost
    metrics: Metrics
    bundles: BundleDesk  # hears what the chains read and write of bundles
    read_bundle: RecordReader  # of the log of a set
    window_max: int
    stalled_s: float
    probe_s: float
