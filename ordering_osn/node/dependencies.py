"""What the loop of a chain needs of its node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from multicast.consumer import Consumer
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.envelopes import Signer
from ordering_osn.chain.state import WINDOW_MAX
from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.node.catch_up import Peers
from ordering_osn.node.filters import ChannelRules
from ordering_osn.node.order_watch import PROBE_S, STALLED_S
from ordering_osn.node.outbox import OnOutcome


@dataclass(frozen=True, slots=True)
class Dependencies:
    """What a chain's loop needs of its node."""

    signer: Signer
    rules: Callable[[ChannelConfig], ChannelRules]
    connect: Callable[[], None]  # reaches Kafka, so that `post` works; may raise
    consumer: Callable[[str, str], Consumer]  # of a chain, from a cursor
    post: Callable[[bytes, str, OnOutcome], None]  # a record to one chain's log
    created: Callable[[str, bytes], None]  # a channel is created: its name and CONFIG envelope
    peers: Peers
    metrics: Metrics
    window_max: int = WINDOW_MAX
    stalled_s: float = STALLED_S
    probe_s: float = PROBE_S
