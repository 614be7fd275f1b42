"""What the core of a chain asks its shell to do: the actions that `Chain.step` returns.

`chain_node.py` carries them out in their order.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ordering_osn.chain.bundles.metadata import BundleMetadata
from ordering_osn.chain.bundles.rule import Outcome
from ordering_osn.protos import Block


class Cause(enum.StrEnum):
    """Why a record is not ordered; a label of metrics.

    It is the same at every node, except for INVALID and for what becomes of a stale record: there
    each node judges for itself.
    """

    UNPARSEABLE = "unparseable"  # not a KafkaMessage
    CONNECT = "connect"
    CUT_STALE = "cut_stale"  # a time-to-cut of a block that is cut already
    CUT_EMPTY = "cut_empty"  # of the next block, with nothing pending
    CUT_FUTURE = "cut_future"  # of a block after the next one: no correct node posts it
    COPY = "copy"  # another node's copy of a reposted record
    MALFORMED = "malformed"  # not an envelope
    MISPLACED = "misplaced"  # its class, its log or its `original` cannot be so
    REPLAYED = "replayed"  # its ID is in the window, or pending
    INVALID = "invalid"  # the rules refuse it


@dataclass(frozen=True, slots=True)
class Write:
    """Seal this block and append it to the ledger.

    AFTER every earlier `Write` and `Repost` is durable. A receipt for one of its `transactions`
    (IDs, in the order of the block's data) is given AFTER the block is durable. `config`: the block
    holds a config of this channel, on which `rules` are based now. `creates`: it holds the creation
    of a channel, which is carried out BEFORE the block is durable (a node that restarts in between
    writes the block again, and creating a channel twice is creating it once). `parts`: those of its
    transactions that are parts of bundles.
    """

    block: Block
    consenter: bytes
    last_config: int
    config: bool
    creates: bool
    transactions: tuple[str, ...]
    parts: tuple[BundleMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class Repost:
    """Append this record to the chain's own log.

    AFTER every earlier `Repost` is acknowledged: a copy that follows the copy of a later record is
    ignored as read already, and its transaction would be lost. Acknowledged BEFORE any later
    `Write` is durable: a node that restarts from that block does not post the copy again.
    """

    raw: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """Count and log a transaction that is not ordered here.

    The transaction may still be ordered: a REPLAYED one is in a block or will be, and another node
    may find a stale one valid that is INVALID here.
    """

    transaction: str
    reason: str
    counted_as: Cause


@dataclass(frozen=True, slots=True)
class Ignore:
    """Count a record that means nothing to this chain."""

    reason: str
    counted_as: Cause


@dataclass(frozen=True, slots=True)
class SetOutcome:
    """Report what a record of the log of a set means. BEFORE a `Write` with its part."""

    chains: tuple[str, ...]
    offset: int
    outcome: Outcome


Action = Write | Repost | Refuse | Ignore | SetOutcome
