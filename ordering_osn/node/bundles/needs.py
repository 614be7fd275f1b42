"""What the desk for bundles needs of its node; tests give it small ones."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from multicast.drivers.protocol import AppendOutcome
from ordering_osn.chain.bundles.log_records import ConfigMarker
from ordering_osn.config.channel_config import ChannelConfig


class Readiness(Protocol):
    """The part of `chain_status.ChainStatus` that the desk uses."""

    async def ready(self, timeout_s: float) -> bool:
        """Wait until the chain takes envelopes; False where it is in trouble, or time ran out."""

    def trouble(self) -> str | None:
        """Say what is wrong; None where nothing is."""


class BundleChain(Protocol):
    """What the desk needs of a chain of the node; `chain_node.ChainNode` has it."""

    @property
    def config(self) -> ChannelConfig:
        """The configuration in force."""

    @property
    def status(self) -> Readiness:
        """Whether the chain takes envelopes."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, from any thread, after each change; gives what ends it."""

    def markers(self, chains: tuple[str, ...]) -> tuple[ConfigMarker | None, ...]:
        """Give each chain's newest marker in the set's log, as far as this chain has read it."""


class BundlePosts(Protocol):
    """What the desk needs of the node's producer; `outbox.Posts` has it."""

    async def declares(self, to: tuple[str, ...]) -> bool:
        """Whether exactly this set has a log."""

    async def end(self, to: tuple[str, ...]) -> int:
        """Give the end of the log of a declared set. Raises `AmcastError`."""

    async def start(self, raw: bytes, to: tuple[str, ...]) -> asyncio.Future[AppendOutcome]:
        """Post a record; give its future outcome."""
