"""A chain: the records of its order stream go in, blocks come out.

Goes in: the records, one after the other, each with its place; the rules of the channel's config.
Comes out: actions, for `chain_node.py` to carry out in their order. No I/O, no clock, no keys.
Every node steps the same records, so every node writes the same blocks; when a record arrived,
which node posted it and how often a node started again show in no block.

    position   a record's number in the order stream, from 1; -3 before the first
    cursor     where a consumer resumes to read the record after it
    place      position and cursor; a block's place: up to where the stream is in the blocks
    current    valid under the config in force (the record's `config_seq` is its sequence)
    stale      found valid under an older config: judged again, and if valid *posted again* with the
               position of the stale record as `original`. It is not ordered here: what a judge
               says may change with the hour (an identity expires), so nodes may differ about it
    copy       a record with an `original`. Every node posts one; the first counts
    window     the newest `window_max` transactions of the blocks. A transaction in the window, or
               pending, is not ordered again. Its size is one for all nodes of a chain
    marks      `last_original`: the newest original of which a copy was read;
               `last_resubmitted_config`: the newest config that was, or is to be, posted again

Invariants:
    state is a function of the blocks and of the records behind the last block's place: a chain made
    by `state_from` and stepped from there writes the blocks that it would have written anyway;
    each transaction stands at most once in any `window_max` consecutive ones;
    ingress is open if, and only if, last_resubmitted_config <= last_original.

A transaction of several chains (`spans`) was judged at ingress and is never judged again, whatever
config is in force when it is ordered: one chain alone would drop it, and tear it. Ingress accepts
none any more; what an earlier version stored is ordered as that version did, so that every node,
new or old, makes the same blocks of one log.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from ordering_osn.chain.blockcutter import BatchLimits, BlockCutter
from ordering_osn.chain.blocks import consenter_of, header_hash, last_config_of, new_block
from ordering_osn.chain.records import (
    Connect,
    Regular,
    RegularKind,
    TimeToCut,
    Unparseable,
    decode,
    encode,
)
from ordering_osn.chain.transactions import EnvelopeFacts, Malformed, read, transaction_id
from ordering_osn.protos import Block, HeaderType, KafkaMetadata

WINDOW_MAX = 100_000
_CONFIG = int(HeaderType.CONFIG)
_CONFIG_UPDATE = int(HeaderType.CONFIG_UPDATE)
_ORDERER_TRANSACTION = int(HeaderType.ORDERER_TRANSACTION)


class Invalid(ValueError):
    """The rules say no to a transaction; the text says why."""


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """Right behind a record of the order stream.

    `cursor` is the cursor's text, or what `str` makes it of: only a block's is ever needed.
    """

    position: int
    cursor: object


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the channel's config says to the orderer. `sequence` counts the configs.

    `resubmission`: the capability of that name; without it a transaction is judged where it is
    consumed, and what the judge says must then be the same at every node.
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
        """What the config says to the orderer."""

    def judge(self, envelope: bytes, kind: RegularKind) -> bytes:
        """Judge a transaction again, now. Gives the envelope to order: a config is made anew.

        Raises `Invalid`.
        """

    def after(self, envelope: bytes) -> Rules:
        """Give the rules once this config stands in a block. The same at every node, at any hour.

        A channel's creation (ORDERER_TRANSACTION) leaves them as they are. Raises `Invalid` for
        what is no config of this channel, or not the next one.
        """


class Cause(enum.StrEnum):
    """Why a record is not ordered: what it is counted as. The same at every node.

    (But INVALID and what a stale record comes to: there each node has its own judge.)
    """

    UNPARSEABLE = "unparseable"  # no KafkaMessage
    CONNECT = "connect"
    CUT_STALE = "cut_stale"  # a time-to-cut of a block that is cut
    CUT_EMPTY = "cut_empty"  # of the next block, with nothing pending
    CUT_FUTURE = "cut_future"  # of a block behind the next one: nobody of ours posts it
    COPY = "copy"  # another node's copy of what was posted again
    MALFORMED = "malformed"  # no envelope
    MISPLACED = "misplaced"  # of a class, for a log or with an original that it cannot have
    REPLAYED = "replayed"  # its ID is in the window, or pending
    INVALID = "invalid"  # the rules say no


@dataclass(frozen=True, slots=True)
class Write:
    """Seal this block and append it to the ledger.

    AFTER every `Write` and every `Repost` before it is durable. A receipt for one of its
    `transactions` (their IDs, index for index with the block's data) is given AFTER it is durable.
    `config`: it holds a config of this channel, the one that `rules` now are. `creates`: it holds
    a channel's creation, carried out BEFORE it is durable (whoever starts again in between writes
    it again; making a channel twice is making it once).
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

    AFTER every `Repost` before it is acknowledged: a copy that stands behind a copy of a later
    record counts as read already, and its transaction would be lost. Acknowledged BEFORE any later
    `Write` is durable: a node that starts again behind that block does not post it again.
    """

    raw: bytes


@dataclass(frozen=True, slots=True)
class Refuse:
    """Count and log a transaction that is not ordered here.

    Not always its end: one that is REPLAYED stands in a block or will, and of a stale one that is
    INVALID another node's judge may say otherwise.
    """

    transaction: str
    reason: str
    counted_as: Cause


@dataclass(frozen=True, slots=True)
class Ignore:
    """Count a record that says nothing to this chain."""

    reason: str
    counted_as: Cause


Action = Write | Repost | Refuse | Ignore


@dataclass(slots=True)
class ChainState:
    """A chain right behind a block.

    `place` is the block's. `window`: (ID, block, index) of the newest transactions, oldest first.
    """

    height: int
    previous_hash: bytes
    last_config: int
    place: StreamPosition
    last_original: int
    last_resubmitted_config: int
    window: tuple[tuple[str, int, int], ...]


def state_from(newest_first: Iterable[Block], *, window_max: int = WINDOW_MAX) -> ChainState:
    """Give a chain's state right behind its last block, from its blocks, the last one first.

    Takes no more blocks than the window needs. Raises `ValueError` where they end too soon: such a
    node would order again what the others refuse. Raises `CorruptMetadata`.
    """
    last, oldest = None, 0
    window: list[tuple[str, int, int]] = []
    for block in newest_first:
        number = block.header.number
        if last is not None and number != oldest - 1:
            raise ValueError(f"block {number} is not the one before block {oldest}")
        last, oldest = block if last is None else last, number
        data = block.data.data
        window += [(transaction_id(data[i]), number, i) for i in reversed(range(len(data)))]
        if len(window) >= window_max:
            break
    if last is None:
        raise ValueError("a chain begins with its genesis block")
    if oldest and len(window) < window_max:
        raise ValueError(f"{len(window)} transactions from block {oldest} on; {window_max} needed")
    consenter = consenter_of(last)
    return ChainState(
        height=last.header.number + 1,
        previous_hash=header_hash(last.header),
        last_config=last_config_of(last),
        place=StreamPosition(consenter.last_offset_persisted, consenter.cursor.decode()),
        last_original=consenter.last_original_offset_processed,
        last_resubmitted_config=consenter.last_resubmitted_config_offset,
        window=tuple(reversed(window[:window_max])),
    )


class Rest(NamedTuple):
    """Where a chain stands behind its last block, with nothing pending.

    What was read since that block left no trace but these, so it need not be read again.
    """

    height: int
    previous_hash: bytes
    place: StreamPosition
    last_original: int
    last_resubmitted_config: int

    def within(self, state: ChainState) -> ChainState:
        """Give the state at this place; the one that is given where it is of other blocks."""
        if (self.height, self.previous_hash) != (state.height, state.previous_hash):
            return state
        return replace(
            state,
            place=self.place,
            last_original=self.last_original,
            last_resubmitted_config=self.last_resubmitted_config,
        )


class _Marks(NamedTuple):
    last_original: int
    last_resubmitted_config: int


class Chain:
    """One chain at one node. `window_max` must be the same at all nodes, for the chain's life."""

    def __init__(self, rules: Rules, state: ChainState, *, window_max: int = WINDOW_MAX) -> None:
        self._take(rules)
        self.height = state.height
        self._previous_hash = state.previous_hash
        self._last_config = state.last_config
        self._place = state.place
        self._marks = _Marks(state.last_original, state.last_resubmitted_config)
        self._window_max = window_max
        self._window = OrderedDict((name, (block, at)) for name, block, at in state.window)
        self._cutter = BlockCutter()
        self._pending: dict[str, None] = {}  # the IDs of what the cutter holds, in its order
        self._begun = 0  # position of the first pending record
        self._actions: list[Action] = []

    def _take(self, rules: Rules) -> None:
        self.rules = rules
        parameters = rules.parameters
        self._limits = BatchLimits(parameters.messages_max, parameters.bytes_preferred)
        self._sequence = parameters.sequence
        self._resubmission = parameters.resubmission

    @property
    def pending(self) -> int:
        """How many transactions wait for their block to be cut."""
        return len(self._pending)

    @property
    def ingress_open(self) -> bool:
        """Whether to accept transactions: no config that was posted again is still on its way."""
        return self._marks.last_resubmitted_config <= self._marks.last_original

    @property
    def wanted_cut(self) -> tuple[int, int] | None:
        """The block that waits to be cut, and the position of its first record; None: none waits.

        A `TimeToCut` of this block is wanted `timeout_s` after this value first appeared, and is
        wanted until it goes: a post that failed is posted again.
        """
        return (self.height, self._begun) if self._pending else None

    def at_rest(self) -> Rest | None:
        """Give where the chain stands, where nothing is pending; None where something is.

        With the blocks it is the whole state: `Rest.within` gives it.
        """
        if self._pending:
            return None
        return Rest(self.height, self._previous_hash, self._place, *self._marks)

    def find(self, transaction: str) -> tuple[int, int] | None:
        """Give block and index of a transaction in the window. From any thread."""
        return self._window.get(transaction)

    def step(
        self, place: StreamPosition, raw: bytes | None, *, spans: bool = False
    ) -> tuple[Action, ...]:
        """Take the next record. `spans`: it stands in a log of several chains."""
        assert place.position == max(self._place.position, 0) + 1, "a record was left out"
        try:
            record = decode(raw)
        except Unparseable as error:
            self._ignore(str(error), Cause.UNPARSEABLE)
        else:
            if isinstance(record, Regular):
                self._regular(place, record, spans=spans)
            elif isinstance(record, TimeToCut):
                self._time_to_cut(place, record.block)
            elif isinstance(record, Connect):
                self._ignore("a CONNECT record", Cause.CONNECT)
        self._place = place
        actions = tuple(self._actions)
        self._actions.clear()
        return actions

    def _time_to_cut(self, place: StreamPosition, block: int) -> None:
        if block < self.height:
            self._ignore(f"block {block} is already cut", Cause.CUT_STALE)
        elif block > self.height:
            self._ignore(f"block {block} is far; {self.height} is next", Cause.CUT_FUTURE)
        elif not self._pending:
            self._ignore(f"nothing is pending for block {block}", Cause.CUT_EMPTY)
        else:
            self._write(self._cutter.cut(), place, self._marks)

    def _regular(self, place: StreamPosition, record: Regular, *, spans: bool) -> None:
        try:
            reading = read(record.payload)
        except Malformed as error:
            self._refuse("", str(error), Cause.MALFORMED)
            return
        kind = self._kind(place, record, reading, spans=spans)
        marks = self._marks
        original = record.original
        if kind is None:
            said = f"class {record.kind.name}, type {reading.type}, original {original}"
            where = "a log of several chains" if spans else "the chain's log"
            reason = f"{said}, channel {reading.channel!r} in {where}"
            self._refuse(reading.transaction, reason, Cause.MISPLACED)
        elif 0 < original <= marks.last_original:
            self._ignore(f"a copy of record {original}", Cause.COPY)
        else:
            if original:
                # Whatever becomes of it, no later copy counts, and ingress waits for none.
                resubmitted = original if kind is RegularKind.CONFIG else 0
                marks = _Marks(original, max(resubmitted, marks.last_resubmitted_config))
            self._marks = self._decide(place, record, reading, kind, marks)

    def _kind(
        self, place: StreamPosition, record: Regular, reading: EnvelopeFacts, *, spans: bool
    ) -> RegularKind | None:
        """Give a transaction's class; None where none of ours would have posted it so."""
        if not 0 <= record.original < place.position or spans != reading.spans:
            return None
        if spans and (record.kind is not RegularKind.NORMAL or record.original):
            return None
        if reading.type == _CONFIG_UPDATE:
            return None
        configs = reading.type in (_CONFIG, _ORDERER_TRANSACTION)
        kind = RegularKind.CONFIG if configs else RegularKind.NORMAL
        told = self._resubmission or spans  # without the capability, the type alone tells
        return kind if record.kind in (kind, RegularKind.UNKNOWN) or not told else None

    def _decide(
        self,
        place: StreamPosition,
        record: Regular,
        reading: EnvelopeFacts,
        kind: RegularKind,
        marks: _Marks,
    ) -> _Marks:
        """Order a transaction, post it again or refuse it. Gives the marks behind it."""
        transaction = reading.transaction
        if transaction in self._window or transaction in self._pending:
            self._refuse(transaction, "it was ordered before", Cause.REPLAYED)
            return marks
        try:
            if not reading.spans:
                if record.kind is RegularKind.UNKNOWN or not self._resubmission:
                    # It is ordered at once, so no clock may have a say: class UNKNOWN tells so.
                    # What the judge makes of a config is this node's own: all order what is here.
                    self.rules.judge(record.payload, RegularKind.UNKNOWN)
                elif record.config_seq < self._sequence:
                    return self._repost(place, record, marks)
            if kind is RegularKind.CONFIG:
                self._config(place, record.payload, reading, marks)
            else:
                self._normal(place, record.payload, reading, marks)
        except Invalid as error:
            self._refuse(transaction, str(error), Cause.INVALID)
        return marks

    def _repost(self, place: StreamPosition, record: Regular, marks: _Marks) -> _Marks:
        envelope = self.rules.judge(record.payload, record.kind)
        again = Regular(envelope, self._sequence, record.kind, place.position)
        self._actions.append(Repost(encode(again)))
        if record.kind is RegularKind.CONFIG:
            return marks._replace(last_resubmitted_config=place.position)
        return marks

    def _normal(
        self, place: StreamPosition, envelope: bytes, reading: EnvelopeFacts, marks: _Marks
    ) -> None:
        batches, pending = self._cutter.ordered(envelope, reading.size, self._limits)
        if len(batches) == 2 or (batches and pending):
            # The message is not in the first batch: what starts again there reads it again.
            self._write(batches[0], self._place, self._marks)
            batches = batches[1:]
        if not self._pending:
            self._begun = place.position
        self._pending[reading.transaction] = None
        for batch in batches:
            self._write(batch, place, marks)

    def _config(
        self, place: StreamPosition, envelope: bytes, reading: EnvelopeFacts, marks: _Marks
    ) -> None:
        rules = self.rules.after(envelope)
        if self._pending:
            self._write(self._cutter.cut(), self._place, self._marks)
        self._take(rules)
        if reading.type == _CONFIG:
            self._last_config = self.height
        self._pending[reading.transaction] = None
        self._write((envelope,), place, marks, kind=reading.type)

    def _write(
        self,
        data: Sequence[bytes],
        place: StreamPosition,
        marks: _Marks,
        *,
        kind: int | None = None,
    ) -> None:
        """Write the pending transactions, all of them, as the next block."""
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
                _consenter(place, marks),
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


def _consenter(place: StreamPosition, marks: _Marks) -> bytes:
    raw: bytes = KafkaMetadata(
        last_offset_persisted=place.position,
        last_original_offset_processed=marks.last_original,
        last_resubmitted_config_offset=marks.last_resubmitted_config,
        cursor=str(place.cursor).encode(),
    ).SerializeToString()
    return raw
