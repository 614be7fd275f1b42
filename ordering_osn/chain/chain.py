"""The core of a chain: turns the records of its order stream into blocks.

`Chain.step` takes the records one after the other, each with its position, and returns actions for
`chain_node.py` to carry out in their order. No I/O, no clock, no keys. Every node steps the same
records, so every node writes the same blocks: neither the time a record arrived, nor the node that
posted it, nor a restart has an influence on a block.

    position   right after a record: its number in the order stream (from 1; -3 before the first)
               and the cursor from which a consumer reads the next one. A block's position: where
               a node that restarts from this block reads on
    current    judged under the config in force (the record's `config_seq` is its sequence)
    stale      judged under an older config. It is judged again, and if it is valid, *reposted* with
               its own number as `original`. It is not ordered here, because the second judgement
               depends on the time (an identity expires), so nodes may disagree on it
    copy       a record with an `original`. Each node that finds the original valid posts one; the
               first copy counts
    window     the newest `window_max` transactions of the blocks. A transaction in the window, or
               pending, is not ordered again. All nodes of a chain have the same `window_max`
    resubmission cursors
               `last_original`: the newest original of which a copy was read;
               `last_resubmitted_config`: the newest stale config that this node reposts, or of
               which a copy was read

Invariants:
    the state is a function of the blocks and of the records after the last block's position: a
        chain made by `state_from` and stepped from there writes the blocks it would have written;
    a transaction is in any `window_max` consecutive ones at most once;
    ingress is open if and only if last_resubmitted_config <= last_original.

A transaction that is addressed to several chains (`spans`) was judged at ingress and is never
judged again, whatever config is in force when it is ordered: otherwise one of its chains could drop
it and another not. Ingress no longer accepts such transactions. Those that an earlier version
stored are ordered as that version did, so that every node makes the same blocks of one log.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from ordering_osn.chain.blockcutter import BatchLimits, BlockCutter
from ordering_osn.chain.blocks import header_hash, new_block
from ordering_osn.chain.records import (
    Connect,
    Regular,
    RegularKind,
    TimeToCut,
    Unparseable,
    decode,
    encode,
)
from ordering_osn.chain.state import WINDOW_MAX, ChainState, IdleCheckpoint, StreamPosition
from ordering_osn.chain.transactions import EnvelopeFacts, Malformed, read
from ordering_osn.protos import Block, HeaderType, KafkaMetadata

_CONFIG = int(HeaderType.CONFIG)
_CONFIG_UPDATE = int(HeaderType.CONFIG_UPDATE)
_ORDERER_TRANSACTION = int(HeaderType.ORDERER_TRANSACTION)


class Invalid(ValueError):
    """The rules of the channel refuse a transaction; the text says why."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the channel's config tells the orderer. `sequence` counts the configs.

    `resubmission`: the capability of that name. Without it a transaction is judged where it is
    consumed, and every node must then come to the same verdict.
    """

    sequence: int
    messages_max: int
    bytes_preferred: int
    bytes_absolute: int
    timeout_s: float
    resubmission: bool


class Rules(Protocol):
    """The channel's config in force. Immutable: a new config is a new object."""

    @property
    def parameters(self) -> Parameters:
        """What the config tells the orderer."""

    def judge(self, envelope: bytes, kind: RegularKind) -> bytes:
        """Judge a stale transaction now. Gives the envelope to order; of a config, a new envelope.

        Raises `Invalid`.
        """

    def after(self, envelope: bytes) -> Rules:
        """Give the rules once this config is in a block: the same at every node, at any time.

        The creation of a channel (ORDERER_TRANSACTION) does not change them. Raises `Invalid` for
        an envelope that holds no config of this channel, or not the next one.
        """


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
    writes the block again, and creating a channel twice is creating it once).
    """

    block: Block
    consenter: bytes
    last_config: int
    config: bool
    creates: bool
    transactions: tuple[str, ...]


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


Action = Write | Repost | Refuse | Ignore


class _ResubmissionCursors(NamedTuple):
    last_original: int
    last_resubmitted_config: int


class Chain:
    """One chain at one node. `window_max` is the same at all nodes, for the life of the chain."""

    def __init__(self, rules: Rules, state: ChainState, *, window_max: int = WINDOW_MAX) -> None:
        self._apply(rules)
        self.height = state.height
        self._previous_hash = state.previous_hash
        self._last_config = state.last_config
        self._position = state.position
        self._resubmission_cursors = _ResubmissionCursors(
            state.last_original, state.last_resubmitted_config
        )
        self._window_max = window_max
        self._window = OrderedDict((name, (block, index)) for name, block, index in state.window)
        self._cutter = BlockCutter()
        self._pending: dict[str, None] = {}  # the IDs of what the cutter holds, in its order
        self._first_pending = 0  # the number of the first pending record
        self._actions: list[Action] = []

    def _apply(self, rules: Rules) -> None:
        self.rules = rules
        parameters = rules.parameters
        self._limits = BatchLimits(parameters.messages_max, parameters.bytes_preferred)
        self._sequence = parameters.sequence
        self._resubmission = parameters.resubmission

    @property
    def position(self) -> StreamPosition:
        """Right after the newest record that was stepped."""
        return self._position

    @property
    def pending(self) -> int:
        """How many transactions wait for their block to be cut."""
        return len(self._pending)

    @property
    def ingress_open(self) -> bool:
        """Whether to accept transactions: no reposted config is still on its way."""
        return (
            self._resubmission_cursors.last_resubmitted_config
            <= self._resubmission_cursors.last_original
        )

    @property
    def wanted_cut(self) -> tuple[int, int] | None:
        """The number of the pending block, and that of its first record; None: nothing is pending.

        A `TimeToCut` of this block is due `timeout_s` after this value first appeared, and is
        needed until the value changes: a post that failed is posted again.
        """
        return (self.height, self._first_pending) if self._pending else None

    def idle_checkpoint(self) -> IdleCheckpoint | None:
        """Give where the chain stands; None where something is pending.

        The blocks and the checkpoint are the whole state: `IdleCheckpoint.advance` restores it.
        """
        if self._pending:
            return None
        return IdleCheckpoint(
            self.height, self._previous_hash, self._position, *self._resubmission_cursors
        )

    def find(self, transaction: str) -> tuple[int, int] | None:
        """Give block and index of a transaction in the window. From any thread."""
        return self._window.get(transaction)

    def step(
        self, position: StreamPosition, raw: bytes | None, *, spans: bool = False
    ) -> tuple[Action, ...]:
        """Take the next record. `position`: after it; `spans`: its log is of several chains."""
        assert position.number == max(self._position.number, 0) + 1, "a record was left out"
        try:
            record = decode(raw)
        except Unparseable as error:
            self._ignore(str(error), Cause.UNPARSEABLE)
        else:
            if isinstance(record, Regular):
                self._regular(position, record, spans=spans)
            elif isinstance(record, TimeToCut):
                self._time_to_cut(position, record.block)
            elif isinstance(record, Connect):
                self._ignore("a CONNECT record", Cause.CONNECT)
        self._position = position
        actions = tuple(self._actions)
        self._actions.clear()
        return actions

    def _time_to_cut(self, position: StreamPosition, block: int) -> None:
        if block < self.height:
            self._ignore(f"block {block} is already cut", Cause.CUT_STALE)
        elif block > self.height:
            self._ignore(f"block {block} is not the next one, {self.height}", Cause.CUT_FUTURE)
        elif not self._pending:
            self._ignore(f"nothing is pending for block {block}", Cause.CUT_EMPTY)
        else:
            self._write(self._cutter.cut(), position, self._resubmission_cursors)

    def _regular(self, position: StreamPosition, record: Regular, *, spans: bool) -> None:
        try:
            facts = read(record.payload)
        except Malformed as error:
            self._refuse("", str(error), Cause.MALFORMED)
            return
        kind = self._kind(position, record, facts, spans=spans)
        cursors = self._resubmission_cursors
        original = record.original
        if kind is None:
            header = f"class {record.kind.name}, type {facts.type}, original {original}"
            where = "a log of several chains" if spans else "the chain's log"
            reason = f"{header}, channel {facts.channel!r} in {where}"
            self._refuse(facts.transaction, reason, Cause.MISPLACED)
        elif 0 < original <= cursors.last_original:
            self._ignore(f"a copy of record {original}", Cause.COPY)
        else:
            if original:
                # Whether it is ordered or not: later copies are ignored, and ingress opens again.
                resubmitted = original if kind is RegularKind.CONFIG else 0
                cursors = _ResubmissionCursors(
                    original, max(resubmitted, cursors.last_resubmitted_config)
                )
            self._resubmission_cursors = self._decide(position, record, facts, kind, cursors)

    def _kind(
        self, position: StreamPosition, record: Regular, facts: EnvelopeFacts, *, spans: bool
    ) -> RegularKind | None:
        """Give a transaction's class; None where no correct node would have posted it so."""
        if not 0 <= record.original < position.number or spans != facts.spans:
            return None
        if spans and (record.kind is not RegularKind.NORMAL or record.original):
            return None
        if facts.type == _CONFIG_UPDATE:
            return None
        configs = facts.type in (_CONFIG, _ORDERER_TRANSACTION)
        kind = RegularKind.CONFIG if configs else RegularKind.NORMAL
        class_counts = self._resubmission or spans  # without the capability the type decides alone
        fits = record.kind in (kind, RegularKind.UNKNOWN)
        return kind if fits or not class_counts else None

    def _decide(
        self,
        position: StreamPosition,
        record: Regular,
        facts: EnvelopeFacts,
        kind: RegularKind,
        cursors: _ResubmissionCursors,
    ) -> _ResubmissionCursors:
        """Order a transaction, repost or refuse it. Gives the cursors after its record."""
        transaction = facts.transaction
        if transaction in self._window or transaction in self._pending:
            self._refuse(transaction, "it was ordered before", Cause.REPLAYED)
            return cursors
        try:
            if not facts.spans:
                if record.kind is RegularKind.UNKNOWN or not self._resubmission:
                    # It is ordered here and now, so its verdict must not depend on a clock: class
                    # UNKNOWN says so. A config that the judge makes anew is signed by this node
                    # alone; the one in the record is ordered, because all nodes have it.
                    self.rules.judge(record.payload, RegularKind.UNKNOWN)
                elif record.config_seq < self._sequence:
                    return self._repost(position, record, cursors)
            if kind is RegularKind.CONFIG:
                self._config(position, record.payload, facts, cursors)
            else:
                self._normal(position, record.payload, facts, cursors)
        except Invalid as error:
            self._refuse(transaction, str(error), Cause.INVALID)
        return cursors

    def _repost(
        self, position: StreamPosition, record: Regular, cursors: _ResubmissionCursors
    ) -> _ResubmissionCursors:
        envelope = self.rules.judge(record.payload, record.kind)
        again = Regular(envelope, self._sequence, record.kind, position.number)
        self._actions.append(Repost(encode(again)))
        if record.kind is RegularKind.CONFIG:
            return cursors._replace(last_resubmitted_config=position.number)
        return cursors

    def _normal(
        self,
        position: StreamPosition,
        envelope: bytes,
        facts: EnvelopeFacts,
        cursors: _ResubmissionCursors,
    ) -> None:
        batches, pending = self._cutter.ordered(envelope, facts.size, self._limits)
        if len(batches) == 2 or (batches and pending):
            # The message is not in the first batch: a node that resumes there reads it again.
            self._write(batches[0], self._position, self._resubmission_cursors)
            batches = batches[1:]
        if not self._pending:
            self._first_pending = position.number
        self._pending[facts.transaction] = None
        for batch in batches:
            self._write(batch, position, cursors)

    def _config(
        self,
        position: StreamPosition,
        envelope: bytes,
        facts: EnvelopeFacts,
        cursors: _ResubmissionCursors,
    ) -> None:
        rules = self.rules.after(envelope)
        if self._pending:
            self._write(self._cutter.cut(), self._position, self._resubmission_cursors)
        self._apply(rules)
        if facts.type == _CONFIG:
            self._last_config = self.height
        self._pending[facts.transaction] = None
        self._write((envelope,), position, cursors, kind=facts.type)

    def _write(
        self,
        data: Sequence[bytes],
        position: StreamPosition,
        cursors: _ResubmissionCursors,
        *,
        kind: int | None = None,
    ) -> None:
        """Write all pending transactions as the next block."""
        assert len(data) == len(self._pending), "the cutter holds what is pending"
        block = new_block(self.height, self._previous_hash, data)
        transactions = tuple(self._pending)
        self._pending.clear()
        window = self._window
        for index, transaction in enumerate(transactions):
            window[transaction] = (self.height, index)
        while len(window) > self._window_max:
            window.popitem(last=False)
        self._actions.append(
            Write(
                block,
                _consenter(position, cursors),
                self._last_config,
                kind == _CONFIG,
                kind == _ORDERER_TRANSACTION,
                transactions,
            )
        )
        self._previous_hash = header_hash(block.header)
        self.height += 1

    def _refuse(self, transaction: str, reason: str, counted_as: Cause) -> None:
        self._actions.append(Refuse(transaction, reason, counted_as))

    def _ignore(self, reason: str, counted_as: Cause) -> None:
        self._actions.append(Ignore(reason, counted_as))


def _consenter(position: StreamPosition, cursors: _ResubmissionCursors) -> bytes:
    raw: bytes = KafkaMetadata(
        last_offset_persisted=position.number,
        last_original_offset_processed=cursors.last_original,
        last_resubmitted_config_offset=cursors.last_resubmitted_config,
        cursor=str(position.cursor).encode(),
    ).SerializeToString()
    return raw
