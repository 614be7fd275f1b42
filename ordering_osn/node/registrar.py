"""The chains of a node: starts them, checks their logs, and passes clients' calls to them.

`Registrar` is the `channels.Channels` that the gRPC server serves. The node's folder holds, for
each chain,

    NAME/genesis.block    put there by `join`, or when the system channel creates the chain
    NAME/ledger/          the blocks; block 0 is the genesis block
    NAME/rest.json        the idle checkpoint (`checkpoint.py`)

A chain whose genesis block appears in the folder of a running node is started within a second. Each
chain's own thread connects to Kafka, and tries again while Kafka cannot be reached.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from multicast.errors import AmcastError, Conflict, UsageError
from ordering_osn.api.metrics import Metrics
from ordering_osn.api.services import MESSAGE_BYTES_MAX
from ordering_osn.chain.blocks import CorruptMetadata
from ordering_osn.chain.envelopes import Signer
from ordering_osn.chain.state import WINDOW_MAX
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node.bundles.desk import BundleDesk
from ordering_osn.node.bundles.shared_reading import SharedReading
from ordering_osn.node.catch_up import BLOCK_VALIDATION
from ordering_osn.node.chain_node import ChainNode
from ordering_osn.node.dependencies import Dependencies
from ordering_osn.node.filters import ChannelRules
from ordering_osn.node.ingress import READY_S, Ingress
from ordering_osn.node.joining import (
    checkpoint_file,
    genesis_of,
    joined,
    ledger_folder,
    place_created,
    warn_of_size,
    warn_of_type,
)
from ordering_osn.node.kafka_connection import KafkaConnection
from ordering_osn.node.order_watch import PROBE_S, STALLED_S
from ordering_osn.node.outbox import Posts
from ordering_osn.node.peers import PeerNodes
from ordering_osn.protos import SerializedIdentity

_log = logging.getLogger("amcast.osn")
# How often the folder and the logs are looked at. A health check sees a lost log one second late at
# most; ten times as often would be ten requests a second to the brokers from every node.
_LOOK_S = 1.0
# A chain that cannot be opened is tried again after this time: a person must repair the folder
# first, and each attempt logs the error where it is a new one.
_REOPEN_S = 10.0
_JOIN_S = 10.0  # this thread ends after its request to Kafka, which takes 5 s at most
# Two nodes that probe at the same moment both store a record where one would do: each node of a
# chain waits for its own random time in this range, so one of them comes first and serves all.
_PROBE_SPREAD = (1.0, 1.5)


# Signed and judged as a block would be, to learn whether this node's blocks would be valid.
_SIGNED_PROBE = b"amcast: may this node sign blocks?"


class UnknownSigner(UsageError):
    """No peer of a channel would accept a block that this node signs."""


class Registrar:
    """The chains of one node (`channels.Channels`), from `start` to `stop`."""

    def __init__(
        self,
        folder: Path,
        cluster: KafkaConnection,
        signer: Signer,
        *,
        peers: PeerNodes | None = None,
        accept_loss: Collection[str] = (),
        metrics: Metrics | None = None,
        fsync: Literal["block", "never"] = "block",
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        window_max: int = WINDOW_MAX,
        look_s: float = _LOOK_S,
        ready_s: float = READY_S,
        stalled_s: float = STALLED_S,
        probe_s: float = PROBE_S,
    ) -> None:
        self._folder = folder
        self._cluster = cluster
        self._signer = signer
        self._peers = peers
        self._accept_loss = frozenset(accept_loss)
        self.metrics = metrics or Metrics()
        self.received_max = MESSAGE_BYTES_MAX
        self._fsync = fsync
        self._clock = clock
        self._look_s = look_s
        self._posts = Posts(cluster.producer, cluster.end_of)
        self._window_max = window_max
        self._stalled_s = stalled_s
        self._probe_s = probe_s
        self._chains: dict[str, ChainNode] = {}
        self._failed: dict[str, str] = {}  # chains whose ledger cannot be opened, and why
        self._unknown_signers: dict[str, UnknownSigner] = {}
        self._reopen_at: dict[str, float] = {}
        self._signer_judged_by: dict[str, ChannelConfig] = {}
        self._refused_signers: dict[str, str] = {}  # open chains that refuse its blocks, and why
        self._ingress = Ingress(
            self._chains,
            self._posts,
            signer=self._signing,
            metrics=self.metrics,
            clock=clock,
            plan=cluster.plan,
            closed=self._failed,
            ready_s=ready_s,
        )
        self._reading = SharedReading()
        self._desk = BundleDesk(
            self._chains,
            self._posts,
            metrics=self.metrics,
            clock=clock,
            closed=self._failed,
            ready_s=ready_s,
            encode=self._reading.encoded,
        )
        # What the API calls, and others answer: `channels.Channels` says what each does.
        self.submit = self._ingress.submit
        self.submit_bundle, self.bundle_status = self._desk.submit, self._desk.status
        self.log_end, self.open_order = self._desk.log_end, cluster.order_reader
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="osn-registrar", daemon=True)

    # -- its life -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start every chain of the folder; afterwards look for new ones, and check the logs.

        Raises `UsageError` where the folder cannot be used, or where there are chains and no peer
        of any of them would accept a block that this node signs.
        """
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise UsageError(f"{self._folder} is a file, not a node's folder") from error
        except OSError as error:
            raise UsageError(f"{self._folder} cannot be made: {error.strerror}") from error
        self._start_joined()
        if self._unknown_signers and not self._chains:
            raise self._unknown_signers[min(self._unknown_signers)]
        for unknown in self._unknown_signers.values():
            _log.error("%s", unknown)
        self._thread.start()

    def stop(self) -> None:
        """Stop all loops, then disconnect from Kafka; blocks for seconds at most."""
        self._stopping = True
        self._wake.set()
        for chain in list(self._chains.values()):
            chain.stop()
        for chain in list(self._chains.values()):
            chain.join()
        self._posts.close()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)
        self._cluster.close()

    def _run(self) -> None:
        while not self._stopping:
            self._wake.wait(self._look_s)
            self._wake.clear()
            if self._stopping:
                return
            try:
                self._start_joined()
                self._check_signer()
                for chain in list(self._chains.values()):
                    ledger = chain.ledger
                    chain.status.ledger_looked_at(missing=ledger.missing(), unread=ledger.unread())
                self._check_logs()
                self._failed.pop("", None)
            except Exception as error:  # noqa: BLE001 - done again, and shown by the health check
                _log.exception("starting or checking the chains failed")
                self._failed[""] = f"starting or checking the chains failed: {error}"

    def _start_joined(self) -> None:
        now = time.monotonic()
        for name in joined(self._folder):
            if name not in self._chains and now >= self._reopen_at.get(name, 0.0):
                self._reopen_at[name] = now + _REOPEN_S  # where it cannot be opened
                self._start_chain(name)

    def _start_chain(self, name: str) -> None:
        try:
            chain = self._open(name)
        except (AmcastError, InvalidConfig, CorruptMetadata, OSError) as error:
            # While the node starts, `start` raises or logs this one itself.
            reported_later = self._thread.ident is None and isinstance(error, UnknownSigner)
            if self._failed.get(name) != str(error) and not reported_later:
                _log.error("chain %s cannot be started: %s", name, error)
            self._failed[name] = str(error)
            if isinstance(error, UnknownSigner):
                self._unknown_signers[name] = error
            return
        self._failed.pop(name, None)
        self._chains[name] = chain
        chain.start()

    def _open(self, name: str) -> ChainNode:
        genesis = genesis_of(self._folder, name)
        ledger = Ledger.open(ledger_folder(self._folder, name), fsync=self._fsync)
        try:
            self.metrics.ledger_torn_tails.add(name, amount=float(ledger.torn_bytes > 0))
            if ledger.height == 0:
                ledger.append(0, genesis)
            checkpoint = checkpoint_file(self._folder, name)
            chain = ChainNode(name, ledger, checkpoint, self._dependencies())
            _refuse_unknown_signer(self._signer, chain.config)
        except BaseException:
            ledger.close()
            raise
        return chain

    def _topic_of(self, chain: str) -> tuple[str, str] | None:
        topic = self._posts.topic_of(chain)
        topic_id = None if topic is None else self._cluster.topic_id(topic)
        return None if topic is None or topic_id is None else (topic, topic_id)

    def _dependencies(self) -> Dependencies:
        return Dependencies(
            signer=self._signing,
            rules=self._rules,
            connect=self._posts.open,
            consumer=self._cluster.consumer,
            topic_of=self._topic_of,
            post=self._posts.post,
            created=self._create,
            peers=self._peers,
            accepts_loss=lambda name: name in self._accept_loss,
            metrics=self.metrics,
            bundles=self._desk,
            read_bundle=self._reading.read,
            window_max=self._window_max,
            stalled_s=self._stalled_s,
            probe_s=self._probe_s * random.uniform(*_PROBE_SPREAD),  # noqa: S311
        )

    def _rules(self, config: ChannelConfig) -> ChannelRules:
        return ChannelRules(
            config, signer=self._signing, clock=self._clock, channels=lambda: len(self._chains)
        )

    def _create(self, name: str, envelope: bytes) -> None:
        """Create a chain that a block of the system channel holds; on that chain's thread."""
        try:
            place_created(self._folder, name, envelope)
        except Conflict:
            # Two creations of one channel can both pass the filters before either is ordered.
            _log.warning("channel %s exists already: its second creation is ignored", name)
            return
        self._wake.set()

    def _signing(self) -> Signer:
        return self._signer

    def renew(self, signer: Signer) -> None:
        """Sign with this identity from now on.

        Raises `UnknownSigner` where peers of a channel accept this node's blocks, and would not
        accept these: then nothing has changed.
        """
        for name, chain in list(self._chains.items()):
            if name not in self._refused_signers:
                _refuse_unknown_signer(signer, chain.config)
        self._signer = signer
        self._signer_judged_by.clear()

    def _check_signer(self) -> None:
        """Note which chains' new configs make this node's signature worthless; warn of others."""
        for name, chain in list(self._chains.items()):
            config = chain.config
            if self._signer_judged_by.get(name) is not config:
                self._signer_judged_by[name] = config
                warn_of_type(config)
                warn_of_size(config, self.received_max)
                problem = _signer_problem(self._signer, config)
                if problem is None:
                    self._refused_signers.pop(name, None)
                else:
                    self._refused_signers[name] = problem
                    _log.error("%s", problem)

    def _check_logs(self) -> None:
        """Report to each chain whether its log answers, and how far its logs reach."""
        if self._posts.plan is None:
            return  # no chain follows its log yet; each says what it waits for
        chains = list(self._chains.values())
        troubles = self._cluster.troubles([chain.name for chain in chains])
        for chain in chains:
            chain.status.log_answers(troubles.get(chain.name))
            relayed = self._cluster.relayed.get(chain.name)
            chain.order.grown(self._cluster.ends.get(chain.name, {}), relayed)

    # -- what the API calls -------------------------------------------------------------------

    def get(self, name: str) -> ChainNode | None:
        """Give the chain of that name, or None."""
        return self._chains.get(name)

    def names(self) -> list[str]:
        """List the chains that were started, sorted."""
        return sorted(self._chains)

    def why_stalled(self, name: str) -> str | None:
        """Say why nothing more of a chain is ordered now; None: it is, or nothing waits."""
        chain = self._chains.get(name)
        return chain.order.trouble if chain is not None and chain.order.stalled else None

    def health(self) -> list[tuple[str, str]]:
        """List what is wrong, as (component, reason), under Fabric's names for components."""
        problems = [
            (f"{name}/0" if name else "node", reason) for name, reason in list(self._failed.items())
        ]
        for name, chain in list(self._chains.items()):
            # A doubt is shown here, but refuses no envelope: without controllers, logs still work.
            # Nor does a refused signature: the block's data is the same at the other nodes.
            reason = (
                chain.status.unhealthy() or self._refused_signers.get(name) or self._cluster.doubt
            )
            if reason is not None:
                problems.append((f"{name}/0", reason))
        return sorted(problems)


def _refuse_unknown_signer(signer: Signer, config: ChannelConfig) -> None:
    """Raise `UnknownSigner` where no peer would accept a block that this node signs."""
    problem = _signer_problem(signer, config)
    if problem is not None:
        raise UnknownSigner(problem)


def _signer_problem(signer: Signer, config: ChannelConfig) -> str | None:
    """Say why no peer would accept a block that this node signs; None where peers do."""
    msp_id = SerializedIdentity.FromString(signer.creator).mspid
    known = config.orderer_msp_ids
    if known and msp_id not in known:
        return (
            f"channel {config.channel_id} knows no orderers of the MSP ID {msp_id!r}, only of "
            f"{', '.join(known)}: give the --msp and --msp-id of one of these"
        )
    if not config.policies.has(BLOCK_VALIDATION):
        return None
    try:
        signature = signer.sign(_SIGNED_PROBE)
        config.policies.evaluate(
            BLOCK_VALIDATION, [SignedData(_SIGNED_PROBE, signer.creator, signature)]
        )
    except PolicyNotMet as error:
        return (
            f"peers of channel {config.channel_id} accept no block that this node signs: {error}; "
            f"give the --msp and --msp-id of an orderer of this channel"
        )
    return None
