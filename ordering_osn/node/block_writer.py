"""Makes a chain's blocks durable: those that its core cuts, and those that a peer gives.

A block that the core cut is signed and appended to the ledger

    AFTER every earlier repost is stored: a restart from this block does not read the stale
          records again
    AFTER the channel that it creates exists: a node that restarts in between creates it again,
          and creating a channel twice is creating it once

and receipts for its transactions are given, and its parts of bundles reported, AFTER it is durable.
"""

from __future__ import annotations

import time
from typing import Any

from ordering_osn.chain.actions import Write
from ordering_osn.chain.blocks import is_config, seal
from ordering_osn.config.channel_creation import created_channel
from ordering_osn.ledger.errors import LedgerFull
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node.catch_up import VerifiedBlock
from ordering_osn.node.chain_status import ChainStatus, Stopped
from ordering_osn.node.changes import Changes
from ordering_osn.node.cut_timer import CutTimer
from ordering_osn.node.dependencies import Dependencies
from ordering_osn.node.own_records import OwnRecords
from ordering_osn.protos import KafkaMetadata

# A full disk is looked at again this often: the chain takes no envelope until there is room, so ten
# times more would keep clients out for 10 s more; the attempt costs one failed write.
_DISK_FULL_RETRY_S = 1.0


class BlockWriter:
    """Appends one chain's blocks to its ledger. For the chain's thread only."""

    def __init__(
        self,
        name: str,
        ledger: Ledger,
        dependencies: Dependencies,
        *,
        status: ChainStatus,
        records: OwnRecords,
        timer: CutTimer,
        ordered: Changes[str],
    ) -> None:
        """`ordered` has those who wait for a transaction, by its ID."""
        self._name = name
        self._ledger = ledger
        self._dependencies = dependencies
        self._metrics = dependencies.metrics
        self._status = status
        self._records = records
        self._timer = timer
        self._ordered = ordered

    def write(self, action: Write) -> None:
        """Sign a block and append it. Blocks until it is durable. Raises `Stopped`."""
        block = action.block
        number = block.header.number
        if not (action.config or action.creates):
            took_s = self._timer.fill_time_s(number, time.monotonic())
            self._metrics.blockcutter_block_fill_duration.labels(self._name).observe(took_s)
        seal(
            block,
            last_config=action.last_config,
            consenter=action.consenter,
            signer=self._dependencies.signer(),
        )
        if action.creates:
            self._create_channel(block)
        self._records.wait_for_reposts(self._status)
        self._append(number, block.SerializeToString())
        persisted = KafkaMetadata.FromString(action.consenter).last_offset_persisted
        self._metrics.consensus_kafka_last_offset_persisted.labels(self._name).set(persisted)
        for transaction in action.transactions:
            self._ordered.notify(transaction)
        if action.parts:
            self._dependencies.bundles.written(self._name, number, action.parts)

    def append_verified(self, verified: VerifiedBlock) -> None:
        """Append a block that a peer gave. Raises `LedgerFull`."""
        if is_config(verified.block):
            self._create_channel(verified.block)
        self._ledger.append(verified.number, verified.raw)

    def _create_channel(self, block: Any) -> None:
        for envelope in block.data.data:
            created = created_channel(envelope)
            if created is not None:
                self._dependencies.created(*created)

    def _append(self, number: int, raw: bytes) -> None:
        """Append a block; where the disk is full, wait until it is not."""
        began = time.monotonic()
        while True:
            try:
                self._ledger.append(number, raw)
                break
            except LedgerFull as error:
                self._status.waits_for(str(error))
                self._status.turned()
                self._status.pause(_DISK_FULL_RETRY_S)
                if self._status.stopping:
                    raise Stopped from error
        self._status.waits_for(None)
        took_s = time.monotonic() - began
        self._metrics.ledger_blockstorage_commit_time.labels(self._name).observe(took_s)
        self._metrics.ledger_blockchain_height.labels(self._name).set(number + 1)
