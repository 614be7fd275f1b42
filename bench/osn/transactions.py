"""Make fresh endorser transactions, and genesis blocks with other batch settings.

The material is a folder as Fabric's tools make it (`crypto/`, `chain-*.block`,
`chain-*.envelopes`), which the tests use, too. Filters accept them; no two have the same ID.

    template   a real peer's transaction, whose chaincode action is kept
    fresh      new are nonce, transaction ID (SHA-256 of nonce and creator), timestamp, signature

The endorsement is the template's. A committing peer, which checks it, would mark them invalid.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from multicast.errors import UsageError
from ordering_osn.chain.envelopes import Signer
from ordering_osn.identity import SigningIdentity
from ordering_osn.protos import (
    BatchSize,
    BatchTimeout,
    Block,
    ChannelHeader,
    ConfigEnvelope,
    Envelope,
    Header,
    HeaderType,
    Payload,
    SignatureHeader,
    Transaction,
)

FOLDER = Path(__file__).resolve().parent / "fabric"
_USER = Path("crypto/peerOrganizations/org1.example.com/users/User1@org1.example.com/msp")
_MSP_ID = "Org1MSP"
logging.getLogger("amcast.osn.keys").setLevel(logging.ERROR)  # everybody may read these
_LENGTH = struct.Struct(">I")
_NS_PER_S = 10**9
_BYTES_PREFERRED = 2 << 20  # of a block, as in docs/benchmarks.md


class Made(NamedTuple):
    """A fresh transaction: its ID in lower-case hexadecimal, and the serialized envelope."""

    transaction: str
    envelope: bytes


class Maker:
    """Makes fresh transactions of about 3.6 kB, signed by one identity; not thread-safe."""

    def __init__(self, signer: Signer, template: bytes) -> None:
        payload = Payload.FromString(Envelope.FromString(template).payload)
        header = ChannelHeader.FromString(payload.header.channel_header)
        if header.type != HeaderType.ENDORSER_TRANSACTION:
            raise UsageError(f"the template is of type {header.type}, not an endorser transaction")
        self._signer = signer
        self._header = header
        self._data = Transaction.FromString(payload.data)

    @classmethod
    def of(cls) -> Maker:
        """Sign as User1; the template is the last envelope of `chain-a.envelopes`."""
        *_, template = read_envelopes(FOLDER / "chain-a.envelopes")
        return cls(user(), template)

    def make(self, channel: str) -> Made:
        """Make a transaction for a channel, with the present time."""
        signer, header = self._signer, self._header
        nonce = signer.nonce()
        signature_header = SignatureHeader(creator=signer.creator, nonce=nonce).SerializeToString()
        header.channel_id = channel
        header.tx_id = sha256(nonce + signer.creator).hexdigest()
        header.timestamp.seconds, header.timestamp.nanos = divmod(time.time_ns(), _NS_PER_S)
        for action in self._data.actions:
            action.header = signature_header
        payload = Payload(
            header=Header(
                channel_header=header.SerializeToString(), signature_header=signature_header
            ),
            data=self._data.SerializeToString(),
        ).SerializeToString()
        envelope = Envelope(payload=payload, signature=signer.sign(payload))
        return Made(header.tx_id, envelope.SerializeToString())


def user() -> SigningIdentity:
    """Return the identity of User1, a writer and reader of the channels."""
    return SigningIdentity.load(FOLDER / _USER, _MSP_ID)


def genesis(*, channel: str, messages_max: int, timeout: str) -> bytes:
    """Make a channel's genesis block with these batch settings (`timeout` in Fabric's form).

    The data hash is updated; a genesis block has no signature.
    """
    changed = Block.FromString((FOLDER / "chain-a.block").read_bytes())
    envelope = Envelope.FromString(changed.data.data[0])
    payload = Payload.FromString(envelope.payload)
    header = ChannelHeader.FromString(payload.header.channel_header)
    header.channel_id = channel
    payload.header.channel_header = header.SerializeToString(deterministic=True)
    config = ConfigEnvelope.FromString(payload.data)
    values = config.config.channel_group.groups["Orderer"].values
    size = BatchSize.FromString(values["BatchSize"].value)
    size.max_message_count = messages_max
    size.preferred_max_bytes = _BYTES_PREFERRED
    values["BatchSize"].value = size.SerializeToString(deterministic=True)
    values["BatchTimeout"].value = BatchTimeout(timeout=timeout).SerializeToString()
    payload.data = config.SerializeToString(deterministic=True)
    envelope.payload = payload.SerializeToString(deterministic=True)
    changed.data.data[0] = envelope.SerializeToString(deterministic=True)
    changed.header.data_hash = sha256(b"".join(changed.data.data)).digest()
    return bytes(changed.SerializeToString(deterministic=True))


def read_envelopes(file: Path) -> Iterator[bytes]:
    """Yield the envelopes of a file of length-prefixed frames (4 bytes, big-endian)."""
    with file.open("rb") as frames:
        while start := frames.read(_LENGTH.size):
            (length,) = _LENGTH.unpack(start)
            yield frames.read(length)
