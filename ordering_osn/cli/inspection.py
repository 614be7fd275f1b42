"""Inspect blocks: print one as JSON (`describe`), and check a whole chain (`verify`).

The blocks come from a ledger's folder or from a `.block` file; nothing is changed. What cannot be
decoded is reported in the result, not raised, so that one damaged block does not hide the others.

A chain is *sound* where

    - every block can be read;
    - numbers, previous hashes and data hashes continue from block to block, and positions grow;
    - each block names the config block in force, and its signatures meet that config's policy
      /Channel/Orderer/BlockValidation;
    - each block holds envelopes of this channel only;
    - each config follows from the one before it.

A genesis block has no signature: it is trusted, or compared with a config that the caller gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from multicast.errors import UsageError
from ordering_osn.chain import transactions
from ordering_osn.chain.blocks import (
    CorruptMetadata,
    consenter_of,
    data_hash,
    header_hash,
    is_config,
    last_config_of,
    signed_bytes,
)
from ordering_osn.chain.channel_rules import Invalid
from ordering_osn.chain.transactions import Malformed
from ordering_osn.client import DeliveredEntry
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.identity.certificates import Certificate, Unreadable
from ordering_osn.ledger.errors import LedgerDamaged, Pruned
from ordering_osn.ledger.ledger import Ledger
from ordering_osn.node.catch_up import BLOCK_VALIDATION
from ordering_osn.protos import (
    Block,
    BlockMetadataIndex,
    DecodeError,
    Envelope,
    HeaderType,
    Payload,
    SerializedIdentity,
    SignatureHeader,
)

_OPAQUE_SLOTS = ("TRANSACTIONS_FILTER", "COMMIT_HASH")  # written by peers, if at all: shown as hex
_UNDECODABLE = (DecodeError, Malformed, CorruptMetadata, InvalidConfig, Unreadable)


class BlockFile:
    """A single block in a file, as Fabric's tools write it. Its number is `base`, `height` - 1."""

    def __init__(self, path: Path) -> None:
        """Read the file; raises `UsageError` where it holds no block."""
        self._raw = path.read_bytes()
        try:
            header = Block.FromString(self._raw).header
        except DecodeError as error:
            raise UsageError(f"{path} holds no block that can be decoded: {error}") from error
        self.base = int(header.number)
        self.height = self.base + 1

    def read(self, number: int) -> bytes:
        """Return the serialized block; raises `Pruned` for any other number."""
        if number == self.base:
            return self._raw
        raise Pruned(f"block {number} is not in this file")


Blocks = Ledger | BlockFile


def open_blocks(path: Path) -> Blocks:
    """Open a ledger's folder or a `.block` file read-only; raises `UsageError`."""
    return BlockFile(path) if path.is_file() else Ledger.open(path, read_only=True)


# One block as JSON


def describe(raw: bytes) -> dict[str, Any]:
    """Return a block as a JSON object, hashes in hex; "problems" lists what cannot be decoded."""
    try:
        block = Block.FromString(raw)
    except DecodeError as error:
        return {"bytes": len(raw), "problems": [f"no block: {error}"]}
    problems: list[str] = []
    header = block.header
    document = {
        "number": header.number,
        "hash": header_hash(header).hex(),
        "previous_hash": header.previous_hash.hex(),
        "data_hash": header.data_hash.hex(),
        "bytes": len(raw),
        "config": None,
        "transactions": [],
        "metadata": _metadata(block, problems),
        "problems": problems,
    }
    for index, envelope in enumerate(block.data.data):
        try:
            document["transactions"].append({"index": index, **_transaction(envelope)})
        except _UNDECODABLE as error:
            document["transactions"].append({"index": index, "bytes": len(envelope)})
            problems.append(f"transaction {index}: {error}")
    if is_config(block):
        try:
            document["config"] = _config(ChannelConfig.from_envelope(block.data.data[0]))
        except _UNDECODABLE as error:
            problems.append(f"its config: {error}")
    if data_hash(block.data.data) != header.data_hash:
        problems.append("the data hash in its header does not match its data")
    return document


def describe_entry(entry: DeliveredEntry) -> dict[str, Any]:
    """Return an entry of several chains as a JSON object, cursor and bundle ID in hex.

    "bundle" is None for a transaction of one chain. "problems" lists what cannot be decoded.
    """
    problems: list[str] = []
    parts: list[dict[str, Any]] = []
    for part in entry.parts:
        place = {"channel": part.place.chain, "block": part.place.block, "index": part.place.index}
        try:
            parts.append({**_transaction(part.envelope), **place})
        except _UNDECODABLE as error:
            parts.append({**place, "bytes": len(part.envelope)})
            problems.append(f"the transaction of {part.place.chain}: {error}")
    return {
        "cursor": entry.cursor.hex(),
        "bundle": entry.bundle_id.hex() or None,
        "channels": list(entry.chains),
        "transactions": parts,
        "problems": problems,
    }


def _transaction(envelope: bytes) -> dict[str, Any]:
    transaction = transactions.read(envelope)
    payload = Payload.FromString(Envelope.FromString(envelope).payload)
    seconds = transactions.channel_header(envelope).timestamp.seconds
    creator = SignatureHeader.FromString(payload.header.signature_header).creator
    return {
        "transaction": transaction.transaction,
        "channel": transaction.channel,
        "type": _type(transaction.type),
        "time": _time(seconds),
        "creator": _identity(creator),
        "bytes": len(envelope),
    }


def _time(seconds: int) -> str | None:
    """Return a client's timestamp in ISO 8601; None where it is missing or out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
    except (OSError, OverflowError, ValueError):
        return None


def _type(number: int) -> str:
    known = number in HeaderType.values()
    return str(HeaderType.Name(number)) if known else str(number)


def _identity(creator: bytes) -> dict[str, Any] | None:
    """Return what a creator claims to be, unverified; None where there is no creator."""
    if not creator:
        return None
    identity = SerializedIdentity.FromString(creator)
    try:
        return {"msp_id": identity.mspid, "certificate": Certificate(identity.id_bytes).name}
    except Unreadable:
        return {"msp_id": identity.mspid, "certificate": None}


def _metadata(block: Any, problems: list[str]) -> dict[str, Any]:
    document: dict[str, Any] = {"signers": [], "last_config": None, "position": None}
    try:
        document["signers"] = [_identity(signed.creator) for signed in signed_bytes(block)]
        document["last_config"] = last_config_of(block)
        consenter = consenter_of(block)
        document["position"] = consenter.last_offset_persisted
        document["last_original"] = consenter.last_original_offset_processed
        document["last_resubmitted_config"] = consenter.last_resubmitted_config_offset
        document["cursor"] = consenter.cursor.decode("utf-8", "backslashreplace")
    except _UNDECODABLE as error:
        problems.append(f"its metadata: {error}")
    slots = block.metadata.metadata
    for name in _OPAQUE_SLOTS:
        slot = BlockMetadataIndex.Value(name)
        document[name.lower()] = slots[slot].hex() if slot < len(slots) else None
    return document


def _config(config: ChannelConfig) -> dict[str, Any]:
    parameters, capabilities = config.parameters, config.capabilities
    return {
        "channel": config.channel_id,
        "sequence": config.sequence,
        "messages_max": parameters.messages_max,
        "bytes_preferred": parameters.bytes_preferred,
        "bytes_absolute": parameters.bytes_absolute,
        "timeout_s": parameters.timeout_s,
        "maintenance": config.maintenance,
        "max_channels": config.max_channels,
        "orderer_addresses": list(config.orderer_addresses),
        "consortiums": list(config.consortiums),
        "organisations": {
            "/".join(path): msp_id for path, msp_id in sorted(config.organisations.items())
        },
        "capabilities": {
            "channel": sorted(capabilities.channel),
            "orderer": sorted(capabilities.orderer),
            "application": sorted(capabilities.application),
        },
    }


# A whole chain


class _Force(NamedTuple):
    """The config in force, and the number of the block that holds it."""

    block: int
    config: ChannelConfig


def verify(
    blocks: Blocks,
    *,
    config: ChannelConfig | None = None,
    seen: Callable[[Any], None] = lambda _block: None,
) -> Iterator[str]:
    """Check a chain; yields one sentence for each problem, none where the chain is sound.

    `config` is the config in force at the base, from a trusted source. Without it the ledger's own
    is trusted: that of block 0, or of the config block kept below the base. Behind a config block
    that cannot be read, signatures are not checked up to the next config block, and a sentence
    says so. Reads the blocks one at a time; `seen` is called with each that can be decoded.
    """
    check = _Check(blocks, config)
    for number in range(blocks.base, blocks.height):
        try:
            block = Block.FromString(blocks.read(number))
        except (LedgerDamaged, DecodeError) as error:
            yield f"block {number} cannot be read: {error}"
            check.skip()
            continue
        seen(block)
        for problem in check.problems(number, block):
            yield f"block {number} {problem}"


def _in_force(blocks: Blocks, config: ChannelConfig | None) -> _Force | None:
    """Find the config in force at the base; None where the base holds it and none is given."""
    number = last_config_of(Block.FromString(blocks.read(blocks.base)))
    if config is None and number < blocks.base:
        config = ChannelConfig.from_block(blocks.read(number))
    return _Force(number, config) if config is not None else None


class _Check:
    """What the blocks checked so far require of the next one."""

    def __init__(self, blocks: Blocks, config: ChannelConfig | None) -> None:
        self._base = blocks.base
        self._given = config
        self._previous: Any = None
        self._position: int | None = None
        self._missing = False  # a block that could not be read may have been a config block
        self._force: _Force | None = None
        self._why_not = "no config is given"
        if blocks.base not in (0, blocks.height):
            try:
                self._force = _in_force(blocks, config)
            except (*_UNDECODABLE, LedgerDamaged, Pruned) as error:
                self._why_not = str(error)

    def skip(self) -> None:
        """Continue after a block that cannot be read."""
        self._previous, self._position, self._missing = None, None, True

    def problems(self, number: int, block: Any) -> Iterator[str]:
        """Check one block against those before it."""
        yield from self._hashes(number, block)
        try:
            named = last_config_of(block)
            position = consenter_of(block).last_offset_persisted
            if number and self._position is not None and position <= self._position:
                before = self._position
                yield f"has position {position}, which is not above {before} of the block before"
            self._position = position
            yield from self._signed(number, block, named)
            if is_config(block):
                yield from self._configured(number, block, named)
        except CorruptMetadata as error:
            yield f"has invalid metadata: {error}"
            self._missing = self._missing or is_config(block)
        yield from self._foreign(block.data.data)

    def _hashes(self, number: int, block: Any) -> Iterator[str]:
        header = block.header
        if header.number != number:
            yield f"has the number {header.number} in its header"
        if data_hash(block.data.data) != header.data_hash:
            yield "has a data hash that does not match its data"
        follows = header.previous_hash
        if number == 0 and follows:
            yield f"is the first, but has the previous hash {follows.hex()}"
        if self._previous is not None and follows != header_hash(self._previous):
            expected = header_hash(self._previous).hex()
            yield (
                f"has the previous hash {follows.hex() or '(none)'}, "
                f"but the hash of the block before it is {expected}"
            )
        self._previous = header

    def _signed(self, number: int, block: Any, named: int) -> Iterator[str]:
        """Check the signatures against the config in force before this block."""
        if number == 0:
            return
        force = self._force
        expected = number if is_config(block) else force.block if force else None
        if expected is not None and named != expected:
            if not self._missing:
                yield f"names block {named} as the newest config block, which is block {expected}"
            else:  # the config block was among those that could not be read
                yield (
                    f"is signed under the config of block {named}, which could not be read: "
                    "its signatures are not checked"
                )
                self._force = force = None
        if force is None:
            if number == self._base:
                yield f"is the oldest block, and its signatures are not checked: {self._why_not}"
            return
        signed = [
            SignedData(each.message, each.creator, each.signature) for each in signed_bytes(block)
        ]
        try:
            force.config.policies.evaluate(BLOCK_VALIDATION, signed)
        except PolicyNotMet as error:
            yield f"has signatures that do not meet the block validation policy: {error}"

    def _configured(self, number: int, block: Any, named: int) -> Iterator[str]:
        """Put a config block's config in force."""
        envelope = block.data.data[0]
        known = self._force is not None and not self._missing
        try:
            config = ChannelConfig.from_envelope(envelope)
            if self._force is not None and known:
                self._force.config.after(envelope)
        except (InvalidConfig, Invalid) as error:
            yield f"holds a config that does not follow from the one before it: {error}"
            return
        given = self._given or config
        same = (config.channel_id, config.config) == (given.channel_id, given.config)
        if number == 0 and not same:
            yield "holds another config than the given one"
        self._force, self._missing = _Force(named, config), False

    def _foreign(self, envelopes: Iterable[bytes]) -> Iterator[str]:
        for index, envelope in enumerate(envelopes):
            try:
                channel = transactions.channel_header(envelope).channel_id
            except Malformed as error:
                yield f"holds a transaction {index} that cannot be decoded: {error}"
                continue
            here = self._force.config.channel_id if self._force else channel
            if channel != here:
                yield f"holds a transaction {index} of channel {channel!r}, not {here!r}"
