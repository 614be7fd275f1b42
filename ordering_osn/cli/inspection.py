"""Blocks in words, and whether they are the chain that they say they are.

In: serialized blocks, of a ledger's folder or of a `.block` file. Out: a block as a JSON object
(`describe`), and what is wrong with a chain, a sentence each (`verify`). Nothing is changed, and
what cannot be decoded is said, not raised: who looks at a damaged chain wants to see the rest.

    sound    every block can be read; numbers, previous hashes and data hashes continue the chain;
             positions grow; each block names the config block in force, is signed as that
             config's policy /Channel/Orderer/BlockValidation asks, and holds this channel's
             envelopes only; each config follows from the one before it

A genesis block has no signature: it is trusted, or compared with the config that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from multicast.errors import UsageError
from ordering_osn.api.channels import Blocks
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
from ordering_osn.chain.chain import Invalid
from ordering_osn.chain.transactions import Malformed
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.identity.certificates import Certificate, Unreadable
from ordering_osn.ledger.ledger import Ledger, LedgerDamaged, Pruned
from ordering_osn.node.catch_up import POLICY
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

_OPAQUE_SLOTS = ("TRANSACTIONS_FILTER", "COMMIT_HASH")  # a peer's, or nobody's: shown as hex
_UNDECODABLE = (DecodeError, Malformed, CorruptMetadata, InvalidConfig, Unreadable)


class BlockFile:
    """One block in a file of its own, as Fabric's tools write them."""

    def __init__(self, path: Path) -> None:
        """Raise `UsageError` where the file holds no block."""
        self._raw = path.read_bytes()
        try:
            header = Block.FromString(self._raw).header
        except DecodeError as error:
            raise UsageError(f"{path} holds no block: {error}") from error
        self._number = int(header.number)

    @property
    def base(self) -> int:
        """The block's number."""
        return self._number

    @property
    def height(self) -> int:
        """The number after it."""
        return self._number + 1

    def read(self, number: int) -> bytes:
        """Give the block."""
        if number == self._number:
            return self._raw
        raise Pruned(f"block {number} is not in this file")


def opened(path: Path) -> Blocks:
    """Open a ledger's folder or a `.block` file for looking; raises `UsageError`."""
    return BlockFile(path) if path.is_file() else Ledger.open(path, read_only=True)


# In words


def describe(raw: bytes) -> dict[str, Any]:
    """Say what a block holds; hashes and IDs in hex. "problems" says what cannot be decoded."""
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
        problems.append("its data does not have the data hash of its header")
    return document


def _transaction(envelope: bytes) -> dict[str, Any]:
    reading = transactions.read(envelope)
    payload = Payload.FromString(Envelope.FromString(envelope).payload)
    seconds = transactions.channel_header(envelope).timestamp.seconds
    creator = SignatureHeader.FromString(payload.header.signature_header).creator
    return {
        "transaction": reading.transaction,
        "channel": reading.channel,
        "type": _type(reading.type),
        "time": _time(seconds),
        "creator": _person(creator),
        "bytes": len(envelope),
    }


def _time(seconds: int) -> str | None:
    """Say when a client says it was; None where it says nothing, or no time at all."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat() if seconds else None
    except (OSError, OverflowError, ValueError):
        return None


def _type(number: int) -> str:
    known = number in HeaderType.values()
    return str(HeaderType.Name(number)) if known else str(number)


def _person(creator: bytes) -> dict[str, Any] | None:
    """Say who a creator says it is; nothing is verified. None: nobody."""
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
        document["signers"] = [_person(one.creator) for one in signed_bytes(block)]
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
        at = BlockMetadataIndex.Value(name)
        document[name.lower()] = slots[at].hex() if at < len(slots) else None
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
        "organisations": {"/".join(at): msp for at, msp in sorted(config.organisations.items())},
        "capabilities": {
            "channel": sorted(capabilities.channel),
            "orderer": sorted(capabilities.orderer),
            "application": sorted(capabilities.application),
        },
    }


# Verified


class _Force(NamedTuple):
    """The config in force, and the block it stands in."""

    block: int
    config: ChannelConfig


def verify(
    blocks: Blocks,
    *,
    config: ChannelConfig | None = None,
    seen: Callable[[Any], None] = lambda _block: None,
) -> Iterator[str]:
    """Say what is wrong with a chain, a sentence for each problem; nothing where it is sound.

    `config` is the one in force at the base, from a source that is trusted; without it the
    ledger's own is believed (block 0's, or that of the config block kept below the base).
    Where a config block cannot be read, signatures go unchecked to the next one, and that is said.
    Reads every block, one at a time; `seen` is called with each that can be decoded.
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
    """Find the config in force at the base; None where the base brings it, and none is given."""
    number = last_config_of(Block.FromString(blocks.read(blocks.base)))
    if config is None and number < blocks.base:
        config = ChannelConfig.from_block(blocks.read(number))
    return _Force(number, config) if config is not None else None


def _same(one: ChannelConfig, other: ChannelConfig) -> bool:
    return one.channel_id == other.channel_id and bool(one.config == other.config)


class _Check:
    """What the blocks so far leave to be compared with."""

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
        """Go on behind a block that cannot be read."""
        self._previous, self._position, self._missing = None, None, True

    def problems(self, number: int, block: Any) -> Iterator[str]:
        """Compare one block with those before it."""
        yield from self._hashes(number, block)
        try:
            named = last_config_of(block)
            position = consenter_of(block).last_offset_persisted
            if number and self._position is not None and position <= self._position:
                yield f"has position {position}, the block before it {self._position}"
            self._position = position
            yield from self._signed(number, block, named)
            if is_config(block):
                yield from self._configured(number, block, named)
        except CorruptMetadata as error:
            yield f"has metadata that no orderer writes: {error}"
            self._missing = self._missing or is_config(block)
        yield from self._foreign(block.data.data)

    def _hashes(self, number: int, block: Any) -> Iterator[str]:
        header = block.header
        if header.number != number:
            yield f"says it is block {header.number}"
        if data_hash(block.data.data) != header.data_hash:
            yield "holds data that does not have the data hash of its header"
        follows = header.previous_hash
        if number == 0 and follows:
            yield f"is the first, yet follows {follows.hex()}"
        if self._previous is not None and follows != header_hash(self._previous):
            expected = header_hash(self._previous).hex()
            yield f"follows {follows.hex() or 'nothing'}; the block before it is {expected}"
        self._previous = header

    def _signed(self, number: int, block: Any, named: int) -> Iterator[str]:
        """Check the signatures by the config in force before this block."""
        if number == 0:
            return
        force = self._force
        expected = number if is_config(block) else force.block if force else None
        if expected is not None and named != expected:
            if not self._missing:
                yield f"names block {named} as the newest config's, which is block {expected}"
            else:  # the config block was among those that could not be read
                yield f"is signed under the config of block {named}, which is not known: unchecked"
                self._force = force = None
        if force is None:
            if number == self._base:
                yield f"is the oldest one, and its signatures are unchecked: {self._why_not}"
            return
        signed = [
            SignedData(one.message, one.creator, one.signature) for one in signed_bytes(block)
        ]
        try:
            force.config.policies.evaluate(POLICY, signed)
        except PolicyNotMet as error:
            yield f"is not signed by those who may: {error}"

    def _configured(self, number: int, block: Any, named: int) -> Iterator[str]:
        """Put a config block's config in force."""
        envelope = block.data.data[0]
        known = self._force is not None and not self._missing
        try:
            found = ChannelConfig.from_envelope(envelope)
            if self._force is not None and known:
                self._force.config.after(envelope)
        except (InvalidConfig, Invalid) as error:
            yield f"holds a config that cannot follow: {error}"
            return
        if number == 0 and self._given is not None and not _same(found, self._given):
            yield "holds another config than the one that is given"
        self._force, self._missing = _Force(named, found), False

    def _foreign(self, envelopes: Iterable[bytes]) -> Iterator[str]:
        for index, envelope in enumerate(envelopes):
            try:
                channel = transactions.channel_header(envelope).channel_id
            except Malformed as error:
                yield f"holds a transaction {index} that cannot be decoded: {error}"
                continue
            here = self._force.config.channel_id if self._force else channel
            if here not in channel.split(transactions.JOIN):
                yield f"holds a transaction {index} of channel {channel!r}, not {here!r}"
