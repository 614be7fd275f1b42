"""A node's chains: which ones it has, and what its clients may do with them.

Goes in: a folder with a genesis block for each chain, a log, envelopes from clients. Comes out:
`channels.Channels`, which the wire serves. The folder holds, for each chain,

    NAME/genesis.block    put there by `join`, or when the system channel creates the chain
    NAME/ledger/          the blocks; block 0 is the genesis block
    NAME/rest.json        where the log is read on, if not behind the last block (`checkpoint.py`)

A genesis block that appears in the folder of a running node is started within a second. What opens
the log, and again and again where it is away, is each chain's own thread.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from multicast.errors import AmcastError, Conflict, UsageError
from ordering_osn.api.metrics import Metrics
from ordering_osn.chain.blocks import CorruptMetadata, Signer
from ordering_osn.chain.chain import WINDOW_MAX
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node.catch_up import Alone, Peers
from ordering_osn.node.chain_node import ChainNode
from ordering_osn.node.dependencies import Dependencies
from ordering_osn.node.filters import ChannelRules
from ordering_osn.node.ingress import READY_S, Ingress
from ordering_osn.node.joining import genesis_of, joined, ledger_folder, place_created, rest_file
from ordering_osn.node.kafka_connection import KafkaConnection
from ordering_osn.node.order_watch import PROBE_S, STALLED_S
from ordering_osn.node.outbox import Posts
from ordering_osn.protos import SerializedIdentity

_log = logging.getLogger("amcast.osn")
_LOOK_S = 1.0
_AGAIN_S = 10.0


class StrangeSigner(UsageError):
    """A channel has no orderers of this node's organisation."""


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Registrar:
    """The chains of one node (`channels.Channels`), from `start` to `stop`."""

    def __init__(
        self,
        folder: Path,
        cluster: KafkaConnection,
        signer: Signer,
        *,
        peers: Peers | None = None,
        metrics: Metrics | None = None,
        fsync: Literal["block", "never"] = "block",
        clock: Callable[[], datetime] = _utc_now,
        window_max: int = WINDOW_MAX,
        look_s: float = _LOOK_S,
        ready_s: float = READY_S,
        stalled_s: float = STALLED_S,
        probe_s: float = PROBE_S,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._signer = signer
        self._peers = peers or Alone()
        self.metrics = metrics or Metrics()
        self._fsync = fsync
        self._clock = clock
        self._look_s = look_s
        self._posts = Posts(cluster.producer)
        self._window_max = window_max
        self._stalled_s = stalled_s
        self._probe_s = probe_s
        self._chains: dict[str, ChainNode] = {}
        self._failed: dict[str, str] = {}  # chains whose ledger cannot be opened, and why
        self._strange: dict[str, StrangeSigner] = {}
        self._again_at: dict[str, float] = {}
        self._ingress = Ingress(
            self._chains,
            self._posts,
            signer=signer,
            metrics=self.metrics,
            clock=clock,
            plan=cluster.plan,
            closed=self._failed,
            ready_s=ready_s,
        )
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._look_after, name="osn-registrar", daemon=True)

    # -- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start every chain of the folder; then look for new ones, and at the log.

        Raises `UsageError` where the folder cannot be used, or no chain knows this node's MSP ID.
        """
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise UsageError(f"{self._folder} is a file, not a node's folder") from error
        except OSError as error:
            raise UsageError(f"{self._folder} cannot be made: {error.strerror}") from error
        self._start_joined()
        if self._strange and not self._chains:
            raise self._strange[min(self._strange)]
        for strange in self._strange.values():
            _log.error("%s", strange)
        self._thread.start()

    def stop(self) -> None:
        """End all loops, then release the log; blocks for seconds at most."""
        self._stopping = True
        self._wake.set()
        for chain in list(self._chains.values()):
            chain.stop()
        for chain in list(self._chains.values()):
            chain.join()
        self._posts.close()
        if self._thread.ident is not None:
            self._thread.join(10.0)
        self._cluster.close()

    def _look_after(self) -> None:
        while not self._stopping:
            self._wake.wait(self._look_s)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._start_joined()
                self._ask_the_log()
                self._failed.pop("", None)
            except Exception as error:  # noqa: BLE001 - looked at again, and seen by who looks
                _log.exception("looking after the chains failed")
                self._failed[""] = f"looking after the chains failed: {error}"

    def _start_joined(self) -> None:
        now = time.monotonic()
        for name in joined(self._folder):
            if name not in self._chains and now >= self._again_at.get(name, 0.0):
                self._again_at[name] = now + _AGAIN_S  # where it cannot be opened
                self._start_chain(name)

    def _start_chain(self, name: str) -> None:
        try:
            chain = self._opened(name)
        except (AmcastError, InvalidConfig, CorruptMetadata, OSError) as error:
            starts = self._thread.ident is None and isinstance(error, StrangeSigner)
            if self._failed.get(name) != str(error) and not starts:
                _log.error("chain %s cannot be started: %s", name, error)
            self._failed[name] = str(error)
            if isinstance(error, StrangeSigner):
                self._strange[name] = error
            return
        self._failed.pop(name, None)
        self._chains[name] = chain
        chain.start()

    def _opened(self, name: str) -> ChainNode:
        genesis = genesis_of(self._folder, name)
        ledger = Ledger.open(ledger_folder(self._folder, name), fsync=self._fsync)
        try:
            self.metrics.torn_tails.add(name, amount=float(ledger.torn_bytes > 0))
            if ledger.height == 0:
                ledger.append(0, genesis)
            chain = ChainNode(name, ledger, rest_file(self._folder, name), self._surroundings())
            _refuse_strange(self._signer, chain.config)
        except BaseException:
            ledger.close()
            raise
        return chain

    def _surroundings(self) -> Dependencies:
        return Dependencies(
            signer=self._signer,
            rules=self._rules,
            connect=self._posts.open,
            consumer=self._cluster.consumer,
            post=lambda raw, chain, done: self._posts.post(raw, (chain,), done),
            created=self._create,
            peers=self._peers,
            metrics=self.metrics,
            window_max=self._window_max,
            stalled_s=self._stalled_s,
            # Nodes that all post at the same moment would each post for nothing.
            probe_s=self._probe_s * random.uniform(1.0, 1.5),  # noqa: S311
        )

    def _rules(self, config: ChannelConfig) -> ChannelRules:
        return ChannelRules(
            config, signer=self._signer, clock=self._clock, channels=lambda: len(self._chains)
        )

    def _create(self, name: str, envelope: bytes) -> None:
        """Make a chain that a block of the system channel creates; on that chain's thread."""
        try:
            place_created(self._folder, name, envelope)
        except Conflict:
            # Two creations of one channel may both be admitted before either is ordered.
            _log.warning("channel %s exists already: its second creation is ignored", name)
            return
        self._wake.set()

    def _ask_the_log(self) -> None:
        """Tell each chain whether the log answers."""
        chains = list(self._chains.values())
        told = self._cluster.troubles([chain.name for chain in chains])
        for chain in chains:
            chain.log_answers(told.get(chain.name))
            chain.order.grown(self._cluster.ends.get(chain.name, {}))

    # -- what the wire asks -------------------------------------------------------------------

    def get(self, name: str) -> ChainNode | None:
        """Look a chain up."""
        return self._chains.get(name)

    def names(self) -> list[str]:
        """List the chains that run or ran, sorted."""
        return sorted(self._chains)

    def health(self) -> list[tuple[str, str]]:
        """List what is wrong, as (component, reason), under Fabric's names for components."""
        found = [(f"{name}/0" if name else "node", why) for name, why in list(self._failed.items())]
        for name, chain in list(self._chains.items()):
            # A doubt keeps nobody out: where only controllers are away, the log goes on.
            why = chain.unhealthy() or self._cluster.doubt
            if why is not None:
                found.append((f"{name}/0", why))
        return sorted(found)

    async def submit(self, envelope: bytes) -> tuple[int, str]:
        """Do what Broadcast does with one envelope; its status, and why where it is not 200."""
        return await self._ingress.submit(envelope)

    async def receipt(
        self, channel: str, transaction: str, timeout_s: float
    ) -> tuple[int, int] | None:
        """Say in which block of a chain a transaction stands, and where in it: (number, index).

        Waits for it; None where time ran out. Transactions older than the chain's window are not
        found any more.
        """
        chain = self._chains.get(channel)
        return None if chain is None else await chain.receipt(transaction, timeout_s)


def _refuse_strange(signer: Signer, config: ChannelConfig) -> None:
    """Raise `StrangeSigner` where nobody would accept a block that this node signs."""
    msp_id = SerializedIdentity.FromString(signer.creator).mspid
    known = config.orderer_msp_ids
    if known and msp_id not in known:
        raise StrangeSigner(
            f"channel {config.channel_id} knows no orderers of the MSP ID {msp_id!r}, only of "
            f"{', '.join(known)}: give the --msp and --msp-id of one of these"
        )
