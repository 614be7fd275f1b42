"""The core of a chain: turns the records of its order stream into blocks.

`Chain.step` takes the records one after the other, each with its position, and returns actions for
`chain_node.py` to carry out in their order. No I/O, no clock, no keys. Every node steps the same
records, so every node writes the same blocks: neither the time a record arrived, nor the node that
posted it, nor a restart has an influence on a block.

    position   right after a record: its number in the order stream (from 1; before the first one 0,
               or -3 as Fabric has it) and the cursor from which a consumer reads the next one. A
               block's position: where a node that restarts from this block reads on
    current    judged under the config in force (the record's `config_seq` is its sequence), if it
               is a node's. It is judged here, too, by what is the same at all nodes
    stale      judged under an older config. It is judged again, and if it is valid, *reposted* with
               its own number as `original`. It is not ordered here, because the second judgement
               depends on the time (an identity expires), so nodes may disagree on it
    copy       a record with an `original`. Each node that finds the original valid posts one; the
               first copy counts
    window     the IDs of the newest transactions of the blocks, `window_max` different ones. A
               transaction in the window, or pending, is not ordered again, unless it is a part of
               a bundle. All nodes of a chain have the same `window_max`
    resubmission cursors
               `last_original`: the newest original of which a copy was read;
               `last_resubmitted_config`: the newest stale config that this node reposts, or of
               which a copy was read

Invariants:
    the state is a function of the blocks and of the records after the last block's position: a
        chain made by `state_from` and stepped from there writes the blocks it would have written;
    a transaction that is no part of a bundle is in any `window_max` consecutive ones at most once;
    ingress is open if and only if last_resubmitted_config <= last_original.

Several chains that share a log are a *set*. Its records are read by the rule of the set alone
(`bundles.rule`). If a bundle counts, the chain's part is ordered like a transaction that nobody may
refuse: it was judged at ingress, and is not judged again, whatever config is in force here, nor is
it dropped where its ID was ordered before. Otherwise one chain could drop it and another not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ordering_osn.chain.actions import (
    Action,
    Cause,
    Ignore,
    Refuse,
    Repost,
    SetOutcome,
    Write,
)
from ordering_osn.chain.blockcutter import BLOCK_BYTES_MAX, BatchLimits, BlockCutter
from ordering_osn.chain.blocks import header_hash, new_block
from ordering_osn.chain.bundles.bundle import Bundle
from ordering_osn.chain.bundles.log_records import (
    ConfigMarker,
    RecordReader,
    read_bundle_record,
)
from ordering_osn.chain.bundles.metadata import (
    BlockBundles,
    encode_block_bundles,
    metadata_of,
)
from ordering_osn.chain.bundles.rule import BundleCounts
from ordering_osn.chain.bundles.sets import ChainSets
from ordering_osn.chain.channel_rules import Invalid, Rules
from ordering_osn.chain.entries import EntryPlace, encode_entries
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
from ordering_osn.protos import HeaderType, KafkaMetadata
from ordering_osn.quoting import quoted

_CONFIG = int(HeaderType.CONFIG)
_CONFIG_UPDATE = int(HeaderType.CONFIG_UPDATE)
_SEEK_INFO = int(HeaderType.DELIVER_SEEK_INFO)  # a reader's request, which may have been captured
_ORDERER_TRANSACTION = int(HeaderType.ORDERER_TRANSACTION)


class RecordPlace(NamedTuple):
    """Where a record stands: its log, its offset there, and the chains that it is addressed to.

    `log`: the chains that share it, sorted; one for a chain's own log. `to`: some of them, sorted.
    """

    log: tuple[str, ...]
    offset: int
    to: tuple[str, ...]


class _Pending(NamedTuple):
    """A transaction that waits for its block to be cut; `bundle` where it is a part of one."""

    facts: EnvelopeFacts
    place: RecordPlace
    bundle: Bundle | None = None


class _ResubmissionCursors(NamedTuple):
    last_original: int
    last_resubmitted_config: int


class Chain:
    """One chain at one node. `window_max` is the same at all nodes, for the life of the chain."""

    def __init__(
        self,
        name: str,
        rules: Rules,
        state: ChainState,
        *,
        window_max: int = WINDOW_MAX,
        read_bundle: RecordReader = read_bundle_record,
    ) -> None:
        self._name = name
        self._apply(rules)
        self.height = state.height
        self._previous_hash = state.previous_hash
        self._last_config = state.last_config
        self._position = state.position
        self._resubmission_cursors = _ResubmissionCursors(
            state.last_original, state.last_resubmitted_config
        )
        self._window_max = window_max
        self._window = OrderedDict((ID, (block, index)) for ID, block, index in state.window)
        self._cutter = BlockCutter()
        self._sets = ChainSets(state.sets, window_max=state.bundle_window_max, read=read_bundle)
        self._pending: list[_Pending] = []  # what the cutter holds, in its order
        self._pending_ids: set[str] = set()
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
        """Of the pending block its number, and that of its first record; None: nothing is pending.

        A `TimeToCut` of this block is to be posted `timeout_s` after this value first appeared. If
        the post fails, it is posted again, until the value changes.
        """
        return (self.height, self._first_pending) if self._pending else None

    def idle_checkpoint(self) -> IdleCheckpoint | None:
        """Give where the chain stands; None where something is pending.

        The blocks and the checkpoint are the whole state: `IdleCheckpoint.advance` restores it.
        """
        if self._pending:
            return None
        return IdleCheckpoint(
            self.height,
            self._previous_hash,
            self._position,
            *self._resubmission_cursors,
            tuple(head.state for head in self._sets.heads()),
        )

    def find(self, transaction: str) -> tuple[int, int] | None:
        """Give block and index of a transaction in the window. From any thread."""
        return self._window.get(transaction)

    def knows(self, transaction: str) -> bool:
        """Whether a transaction is in the window or pending. From any thread."""
        return transaction in self._window or transaction in self._pending_ids

    @property
    def config_marker(self) -> ConfigMarker:
        """What this chain says of its newest config in the logs of its sets."""
        return ConfigMarker(self._name, self._last_config, self._sequence)

    def marker(self, chains: tuple[str, ...], chain: str) -> ConfigMarker | None:
        """Give the newest marker of a chain in the log of a set. From any thread."""
        return self._sets.marker(chains, chain)

    def settled(self, progress: Mapping[str, int]) -> dict[str, int]:
        """Give, per log, the offset below which each record is in a block or never will be in one.

        `progress`: per log, the offset below which every record was stepped.
        """
        settled = dict(progress)
        for entry in reversed(self._pending):
            settled[_log_name(entry.place)] = entry.place.offset
        return settled

    def step(
        self, position: StreamPosition, raw: bytes | None, place: RecordPlace
    ) -> tuple[Action, ...]:
        """Take the next record. `position`: right after it."""
        assert position.number == max(self._position.number, 0) + 1, "a record was left out"
        if len(place.log) > 1:
            self._shared(position, raw, place)
        else:
            self._own(position, raw, place)
        self._position = position
        actions = tuple(self._actions)
        self._actions.clear()
        return actions

    def _own(self, position: StreamPosition, raw: bytes | None, place: RecordPlace) -> None:
        try:
            record = decode(raw)
        except Unparseable as error:
            self._ignore(str(error), Cause.UNPARSEABLE)
        else:
            if isinstance(record, Regular):
                self._regular(position, record, place)
            elif isinstance(record, TimeToCut):
                self._time_to_cut(position, record.block)
            elif isinstance(record, Connect):
                self._ignore("a CONNECT record", Cause.CONNECT)

    def _shared(self, position: StreamPosition, raw: bytes | None, place: RecordPlace) -> None:
        """Step the rule of a set; order this chain's part of a bundle that counts."""
        outcome = self._sets.step(place.log, place.offset, raw, place.to)
        self._actions.append(SetOutcome(place.log, place.offset, outcome))
        if isinstance(outcome, BundleCounts):
            bundle = outcome.bundle
            (part,) = [part for part in bundle.parts if part.chain == self._name]
            pending = _Pending(part.facts, place, bundle)
            self._normal(position, part.envelope, pending, self._resubmission_cursors)

    def _time_to_cut(self, position: StreamPosition, block: int) -> None:
        if block < self.height:
            self._ignore(f"block {block} is already cut", Cause.CUT_STALE)
        elif block > self.height:
            self._ignore(f"block {block} is not the next one, {self.height}", Cause.CUT_FUTURE)
        elif not self._pending:
            self._ignore(f"nothing is pending for block {block}", Cause.CUT_EMPTY)
        else:
            self._write(self._cutter.cut(), position, self._resubmission_cursors)

    def _regular(self, position: StreamPosition, record: Regular, place: RecordPlace) -> None:
        try:
            facts = read(record.payload)
        except Malformed as error:
            self._refuse("", str(error), Cause.MALFORMED)
            return
        if not facts.well_formed or facts.size > BLOCK_BYTES_MAX:
            reason = "its bytes are not canonical, or too many for a block"
            self._refuse(facts.transaction, reason, Cause.MALFORMED)
            return
        kind = self._kind(position, record, facts)
        cursors = self._resubmission_cursors
        original = record.original
        if kind is None:
            posted_as = f"class {record.kind.name}, type {facts.type}, original {original}"
            reason = f"{posted_as}, channel {quoted(facts.channel)} in the log of {self._name}"
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
            pending = _Pending(facts, place)
            self._resubmission_cursors = self._decide(position, record, pending, kind, cursors)

    def _kind(
        self, position: StreamPosition, record: Regular, facts: EnvelopeFacts
    ) -> RegularKind | None:
        """Give a transaction's kind; None where no correct node would have posted it so."""
        if not 0 <= record.original < position.number or facts.channel != self._name:
            return None
        if facts.type in (_CONFIG_UPDATE, _SEEK_INFO):
            return None
        is_config = facts.type in (_CONFIG, _ORDERER_TRANSACTION)
        kind = RegularKind.CONFIG if is_config else RegularKind.NORMAL
        fits = record.kind in (kind, RegularKind.UNKNOWN)
        # Without the capability the type alone decides.
        return kind if fits or not self._resubmission else None

    def _decide(
        self,
        position: StreamPosition,
        record: Regular,
        pending: _Pending,
        kind: RegularKind,
        cursors: _ResubmissionCursors,
    ) -> _ResubmissionCursors:
        """Order a transaction, repost or refuse it. Gives the cursors after its record."""
        transaction = pending.facts.transaction
        if self.knows(transaction):
            self._refuse(transaction, "it was ordered before", Cause.REPLAYED)
            return cursors
        try:
            stale = record.config_seq < self._sequence
            if stale and record.kind is not RegularKind.UNKNOWN and self._resubmission:
                return self._repost(position, record, cursors)
            # Not only nodes can write to the log, so each record is judged once more. It is ordered
            # here and now, so its verdict must not depend on a clock: UNKNOWN tells the judge so.
            # The envelope that it gives for a config has this node's own signature, so the record's
            # is ordered: that one all nodes have.
            self.rules.judge(record.payload, RegularKind.UNKNOWN)
            if kind is RegularKind.CONFIG:
                self._config(position, record.payload, pending, cursors)
            else:
                self._normal(position, record.payload, pending, cursors)
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
        pending: _Pending,
        cursors: _ResubmissionCursors,
    ) -> None:
        # At most what the block says of it: names of its log's chains and of the bundle's, hashes.
        said = 64 + sum(48 + 2 * len(name.encode()) for name in pending.place.log)
        batches, more = self._cutter.ordered(
            envelope, pending.facts.size, self._limits, whole=len(envelope) + said
        )
        if len(batches) == 2 or (batches and more):
            # The message is not in the first batch: a node that resumes there reads it again.
            shared = len(pending.place.log) > 1
            self._write(batches[0], self._position, self._resubmission_cursors, before=shared)
            batches = batches[1:]
        if not self._pending:
            self._first_pending = position.number
        self._add(pending)
        for batch in batches:
            self._write(batch, position, cursors)

    def _config(
        self,
        position: StreamPosition,
        envelope: bytes,
        pending: _Pending,
        cursors: _ResubmissionCursors,
    ) -> None:
        rules = self.rules.after(envelope)
        if self._pending:
            self._write(self._cutter.cut(), self._position, self._resubmission_cursors)
        self._apply(rules)
        if pending.facts.type == _CONFIG:
            self._last_config = self.height
        self._add(pending)
        self._write((envelope,), position, cursors, header_type=pending.facts.type)

    def _add(self, pending: _Pending) -> None:
        self._pending.append(pending)
        self._pending_ids.add(pending.facts.transaction)

    def _write(
        self,
        data: Sequence[bytes],
        position: StreamPosition,
        cursors: _ResubmissionCursors,
        *,
        header_type: int | None = None,
        before: bool = False,
    ) -> None:
        """Write all pending transactions as the next block.

        `header_type`: of a config, which has a block of its own. `before`: the newest record, of a
        set's log, does not belong to the block, although the rule of the set has read it.
        """
        entries = self._pending
        assert len(data) == len(entries), "the cutter holds what is pending"
        block = new_block(self.height, self._previous_hash, data)
        transactions = tuple(entry.facts.transaction for entry in entries)
        parts = tuple(
            metadata_of(entry.bundle, self._name, index)
            for index, entry in enumerate(entries)
            if entry.bundle is not None
        )
        bundles = BlockBundles(parts, self._sets.heads(before=before))
        places = encode_entries(
            EntryPlace(_log_name(entry.place), entry.place.offset) for entry in entries
        )
        self._actions.append(
            Write(
                block,
                _consenter_metadata(position, cursors, encode_block_bundles(bundles), places),
                self._last_config,
                header_type == _CONFIG,
                header_type == _ORDERER_TRANSACTION,
                transactions,
                parts,
            )
        )
        self._remember(transactions)
        self._sets.written(self.height, parts)
        self._pending = []
        self._pending_ids.clear()
        self._previous_hash = header_hash(block.header)
        self.height += 1

    def _remember(self, transactions: Sequence[str]) -> None:
        """Move the transactions of the block that is written to the end of the window."""
        window = self._window
        for index, transaction in enumerate(transactions):
            window[transaction] = (self.height, index)
            window.move_to_end(transaction)  # a part of a bundle may be there already
        while len(window) > self._window_max:
            window.popitem(last=False)

    def _refuse(self, transaction: str, reason: str, counted_as: Cause) -> None:
        self._actions.append(Refuse(transaction, reason, counted_as))

    def _ignore(self, reason: str, counted_as: Cause) -> None:
        self._actions.append(Ignore(reason, counted_as))


def _log_name(place: RecordPlace) -> str:
    return "+".join(place.log)


def _consenter_metadata(
    position: StreamPosition, cursors: _ResubmissionCursors, bundles: bytes, entries: bytes
) -> bytes:
    raw: bytes = KafkaMetadata(
        last_offset_persisted=position.number,
        last_original_offset_processed=cursors.last_original,
        last_resubmitted_config_offset=cursors.last_resubmitted_config,
        cursor=str(position.cursor).encode(),
        bundles=bundles,
        entries=entries,
    ).SerializeToString()
    return raw
