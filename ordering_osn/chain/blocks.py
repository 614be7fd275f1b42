"""Makes and reads blocks, bit for bit as Fabric 2.x does: hashes, metadata, signatures.

No I/O, no clock, no keys.

    header bytes   DER SEQUENCE {INTEGER number, OCTET STRING previous_hash, OCTET STRING data_hash}
    header hash    SHA-256 of the header bytes: the `previous_hash` of the next block
    data hash      SHA-256 of the transactions, one after the other
    consenter      a `KafkaMetadata`: the position of this block in the chain's order stream
    signed value   `OrdererBlockMetadata` {last_config, consenter}, in the SIGNATURES slot
    signed bytes   signed value, signature header and header bytes, one after the other

Header and data are the same at every node; each node signs the block itself. A block's metadata are
read from the signed value. The ORDERER slot, which no signature covers, must be equal to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from ordering_osn.chain.envelopes import Signer
from ordering_osn.chain.transactions import Malformed, channel_header
from ordering_osn.identity.certificates import tagged
from ordering_osn.protos import (
    Block,
    BlockHeader,
    BlockMetadataIndex,
    DecodeError,
    HeaderType,
    KafkaMetadata,
    LastConfig,
    Metadata,
    MetadataSignature,
    OrdererBlockMetadata,
    SignatureHeader,
)

METADATA_SLOTS = 5  # Fabric's `BlockMetadataIndex` has five entries
NOTHING_PERSISTED = -3  # Kafka's "oldest offset" less one: Fabric reads from the beginning then
_SIGNATURES = int(BlockMetadataIndex.SIGNATURES)
_LAST_CONFIG = int(BlockMetadataIndex.LAST_CONFIG)
_ORDERER = int(BlockMetadataIndex.ORDERER)
_SEQUENCE, _INTEGER, _OCTETS = 0x30, 0x02, 0x04
_CONFIG = int(HeaderType.CONFIG)


class BrokenChain(ValueError):
    """A block does not follow the one before it, or its data does not match its header."""


class CorruptMetadata(ValueError):
    """A block has metadata that no orderer writes."""


class SignedBytes(NamedTuple):
    """One signature of a block, with its signer and the bytes that it signs."""

    creator: bytes
    message: bytes
    signature: bytes


def header_bytes(number: int, previous_hash: bytes, data_hash: bytes) -> bytes:
    """Encode a header in DER: the bytes that are hashed and signed."""
    integer = number.to_bytes(number.bit_length() // 8 + 1, "big")
    body = tagged(_INTEGER, integer) + tagged(_OCTETS, previous_hash) + tagged(_OCTETS, data_hash)
    return tagged(_SEQUENCE, body)


def header_hash(header: BlockHeader) -> bytes:
    """SHA-256 of the header bytes."""
    raw = header_bytes(header.number, header.previous_hash, header.data_hash)
    return hashlib.sha256(raw).digest()


def data_hash(data: Sequence[bytes]) -> bytes:
    """SHA-256 of the transactions, one after the other."""
    digest = hashlib.sha256()
    for transaction in data:
        digest.update(transaction)
    return digest.digest()


def new_block(number: int, previous_hash: bytes, data: Sequence[bytes]) -> Block:
    """Make an unsealed block: header, data and five empty metadata slots."""
    block = Block(
        header={"number": number, "previous_hash": previous_hash, "data_hash": data_hash(data)}
    )
    block.data.data.extend(data)
    block.metadata.metadata.extend([b""] * METADATA_SLOTS)
    return block


def seal(block: Block, *, last_config: int, consenter: bytes, signer: Signer) -> None:
    """Fill in the metadata and sign. `last_config` is the number of the newest config's block."""
    slots = block.metadata.metadata
    index = LastConfig(index=last_config)
    metadata: bytes = Metadata(value=consenter).SerializeToString()
    value = OrdererBlockMetadata(last_config=index, consenter_metadata=metadata).SerializeToString()
    signed_by = SignatureHeader(creator=signer.creator, nonce=signer.nonce()).SerializeToString()
    signature = MetadataSignature(
        signature_header=signed_by, signature=signer.sign(_message(block, value, signed_by))
    )
    slots[_SIGNATURES] = Metadata(value=value, signatures=[signature]).SerializeToString()
    slots[_LAST_CONFIG] = Metadata(value=index.SerializeToString()).SerializeToString()
    slots[_ORDERER] = metadata


def _message(block: Block, value: bytes, signed_by: bytes) -> bytes:
    header = block.header
    return value + signed_by + header_bytes(header.number, header.previous_hash, header.data_hash)


def signed_bytes(block: Block) -> list[SignedBytes]:
    """Give the block's signatures, maybe none, with the bytes that they sign; none is verified.

    Raises `CorruptMetadata`.
    """
    signed = []
    metadata = _slot(block, _SIGNATURES)
    for entry in metadata.signatures:
        header = _read(SignatureHeader, entry.signature_header, block, "a signature header")
        message = _message(block, metadata.value, entry.signature_header)
        signed.append(SignedBytes(header.creator, message, entry.signature))
    return signed


def consenter_of(block: Block) -> KafkaMetadata:
    """Give a block's position in the order stream. Raises `CorruptMetadata`.

    A block without one (a genesis block) has position -3, and 0 in the other fields.
    """
    wrapped = _signed_value(block).consenter_metadata
    slot = block.metadata.metadata[_ORDERER] if _slot(block, _SIGNATURES).signatures else wrapped
    if slot != wrapped:
        raise CorruptMetadata(f"{_named(block)}: the ORDERER slot differs from the signed value")
    what = "its consenter metadata"
    value = _read(Metadata, wrapped, block, what).value
    if not value:
        return KafkaMetadata(last_offset_persisted=NOTHING_PERSISTED)
    consenter: KafkaMetadata = _read(KafkaMetadata, value, block, what)
    position = consenter.last_offset_persisted
    if position < 1 and position != NOTHING_PERSISTED:
        raise CorruptMetadata(f"{_named(block)}: {position} is not a position of an order stream")
    return consenter


def last_config_of(block: Block) -> int:
    """Give the number of the newest config's block. Raises `CorruptMetadata`."""
    index: int = _signed_value(block).last_config.index
    return index


def _signed_value(block: Block) -> Any:
    value = _slot(block, _SIGNATURES).value
    return _read(OrdererBlockMetadata, value, block, "its signed value")


def _slot(block: Block, index: int) -> Any:
    slots = block.metadata.metadata
    if len(slots) <= _ORDERER:
        raise CorruptMetadata(f"{_named(block)} has {len(slots)} metadata slots, not 5")
    return _read(Metadata, slots[index], block, f"metadata slot {index}")


def _read(kind: Any, raw: bytes, block: Block, what: str) -> Any:
    try:
        return kind.FromString(raw)
    except DecodeError as error:
        raise CorruptMetadata(f"{_named(block)}: {what} cannot be decoded: {error}") from error


def is_config(block: Block) -> bool:
    """Whether the block holds a config of its chain, which is always the only one in its block."""
    if len(block.data.data) != 1:
        return False
    try:
        return bool(channel_header(block.data.data[0]).type == _CONFIG)
    except Malformed:
        return False


def check_next(block: Block, previous: BlockHeader | None) -> None:
    """Check that a block follows the header before it; `previous` is None for block 0.

    Raises `BrokenChain` where the number, the previous hash or the data hash is wrong.
    """
    header = block.header
    number = 0 if previous is None else previous.number + 1
    if header.number != number:
        raise BrokenChain(f"{_named(block)} is in the place of block {number}")
    expected = b"" if previous is None else header_hash(previous)
    if header.previous_hash != expected:
        raise BrokenChain(
            f"{_named(block)} follows {header.previous_hash.hex() or 'nothing'}, "
            f"not {expected.hex() or 'nothing'}"
        )
    actual = data_hash(block.data.data)
    if header.data_hash != actual:
        raise BrokenChain(
            f"{_named(block)} has data hash {header.data_hash.hex()}, its data has {actual.hex()}"
        )


def _named(block: Block) -> str:
    return f"block {block.header.number}"
