"""The core of a chain in tests: envelopes, a small channel config, and a log to step."""

import hashlib
import json
from dataclasses import dataclass, replace

from ordering_osn.chain.actions import Write
from ordering_osn.chain.blocks import new_block, seal
from ordering_osn.chain.chain import Chain, RecordPlace
from ordering_osn.chain.channel_rules import Invalid, Parameters
from ordering_osn.chain.records import Regular, RegularKind, encode
from ordering_osn.chain.state import StreamPosition, state_from
from ordering_osn.protos import (
    ChannelHeader,
    Config,
    ConfigEnvelope,
    Envelope,
    Header,
    HeaderType,
    KafkaMetadata,
    Payload,
    SignatureHeader,
)

CHANNEL = "chain-a"
TYPES = dict(HeaderType.items())


def made(name, data, *, kind="ENDORSER_TRANSACTION", channel=CHANNEL, creator=b"User1"):
    """An envelope as a client makes it; its ID follows from `name` and `creator`."""
    nonce = name.encode()
    header = ChannelHeader(
        type=TYPES[kind], channel_id=channel, tx_id=hashlib.sha256(nonce + creator).hexdigest()
    )
    payload = Payload(
        header=Header(
            channel_header=header.SerializeToString(),
            signature_header=SignatureHeader(nonce=nonce, creator=creator).SerializeToString(),
        ),
        data=data,
    )
    return Envelope(payload=payload.SerializeToString(), signature=b"s" * 70).SerializeToString()


def normal(name, *, channel=CHANNEL):
    """A transaction."""
    return made(name, name.encode(), channel=channel)


def sized(name, size):
    """A transaction that counts `size` bytes against its batch (200 at least)."""
    envelope = Envelope.FromString(normal(name))
    envelope.signature = b"s" * (size - len(envelope.payload))
    return envelope.SerializeToString()


def update(name, **changes):
    """A config update, as a client makes it: the parameters it changes, data it will refuse."""
    return made(name, json.dumps([name, changes]).encode(), kind="CONFIG_UPDATE")


def config(sequence, of):
    """The config number `sequence`, made of an update."""
    wrapped = ConfigEnvelope(config=Config(sequence=sequence), last_update=Envelope.FromString(of))
    return made(f"config {sequence}", wrapped.SerializeToString(), kind="CONFIG", creator=b"osn")


def creation(of):
    """A channel's creation, made of an update."""
    return made("creation", config(1, of), kind="ORDERER_TRANSACTION", creator=b"osn")


def payload_data(envelope):
    """What an envelope's payload holds."""
    return Payload.FromString(Envelope.FromString(envelope).payload).data


@dataclass(frozen=True)
class SmallRules:
    """A channel config of a few numbers. `refuses`: data of transactions that it finds invalid.

    `expired`: data that this node's clock finds invalid, where it may look at one.
    """

    parameters: Parameters
    refuses: frozenset
    expired: frozenset = frozenset()

    def _refuse(self, envelope, kind):
        clocked = kind is not RegularKind.UNKNOWN and self.parameters.resubmission
        if payload_data(envelope) in self.refuses | (self.expired if clocked else set()):
            raise Invalid("this config refuses it")

    def judge(self, envelope, kind):
        if _type(envelope) not in (TYPES["CONFIG"], TYPES["ORDERER_TRANSACTION"]):
            self._refuse(envelope, kind)
            return envelope
        wrapped = _wrapped(envelope)
        made_of = wrapped.last_update.SerializeToString()
        self._refuse(made_of, kind)
        if kind is RegularKind.UNKNOWN:
            return envelope
        return config(self.parameters.sequence + 1, made_of)

    def after(self, envelope):
        if _type(envelope) != TYPES["CONFIG"]:
            return self
        wrapped = _wrapped(envelope)
        sequence = self.parameters.sequence + 1
        if wrapped.config.sequence != sequence:
            raise Invalid(f"config {wrapped.config.sequence} is not {sequence}")
        _, changes = json.loads(payload_data(wrapped.last_update.SerializeToString()))
        refuses = {text.encode() for text in changes.pop("refuses", ())}
        parameters = replace(self.parameters, **{**changes, "sequence": sequence})
        return replace(self, parameters=parameters, refuses=self.refuses | refuses)


def _type(envelope):
    header = Payload.FromString(Envelope.FromString(envelope).payload).header
    return ChannelHeader.FromString(header.channel_header).type


def _wrapped(envelope):
    data = payload_data(envelope)
    if _type(envelope) == TYPES["ORDERER_TRANSACTION"]:
        data = payload_data(data)
    return ConfigEnvelope.FromString(data)


def rules(
    *,
    messages_max=10,
    bytes_preferred=10_000,
    sequence=0,
    resubmission=True,
    refuses=(),
    expired=(),
):
    """A channel config."""
    parameters = Parameters(sequence, messages_max, bytes_preferred, 100_000, 2.0, resubmission)
    return SmallRules(parameters, frozenset(refuses), frozenset(expired))


class Unsigned:
    """A signer whose signatures are worth nothing."""

    creator = b"osn"

    def sign(self, message):
        return hashlib.sha256(message).digest()

    def nonce(self):
        return b"nonce"


def genesis():
    """Block 0."""
    return new_block(0, b"", [config(0, update("genesis"))])


def sealed(write):
    """The block of a `Write`, as it is in the ledger."""
    block = write.block
    seal(block, last_config=write.last_config, consenter=write.consenter, signer=Unsigned())
    return block


class Stepped:
    """A chain, the records that it stepped, and the blocks that it wrote."""

    def __init__(self, config=None, *, position=None, window_max=100, **cursors):
        state = state_from([genesis()], window_max=window_max)
        if position is not None:
            state.position = StreamPosition(position, f"cursor {position}")
        for name, value in cursors.items():
            assert hasattr(state, name)
            setattr(state, name, value)
        self.chain = Chain(CHANNEL, config or rules(), state, window_max=window_max)
        self.position = max(state.position.number, 0)
        self.writes = []

    def step(self, record, *, log=(CHANNEL,), to=None):
        """Step a record (or raw bytes) of a log; gives the actions."""
        self.position += 1
        raw = record if isinstance(record, bytes | None) else encode(record)
        position = StreamPosition(self.position, f"cursor {self.position}")
        # Offsets only have to grow in each log.
        actions = self.chain.step(position, raw, RecordPlace(log, self.position, to or log))
        self.writes += [action for action in actions if isinstance(action, Write)]
        return actions

    @property
    def sequence(self):
        """The config in force."""
        return self.chain.rules.parameters.sequence

    def normal(self, name, *, seq=None, original=0, kind=RegularKind.NORMAL, envelope=None):
        """Step a transaction; a current one unless `seq` is given."""
        seq = self.sequence if seq is None else seq
        return self.step(Regular(envelope or normal(name), seq, kind, original))

    def config(self, name, *, seq=None, original=0, kind=RegularKind.CONFIG, **changes):
        """Step a config that is the next one after config `seq`."""
        seq = self.sequence if seq is None else seq
        return self.step(Regular(config(seq + 1, update(name, **changes)), seq, kind, original))

    @property
    def named(self):
        """The blocks written so far, each as the names of its transactions."""
        return [names(write.block) for write in self.writes]


def names(block):
    """The names of a block's transactions; "config 1" and "creation" of what orderers make."""
    return [_name(envelope) for envelope in block.data.data]


def _name(envelope):
    payload = Payload.FromString(Envelope.FromString(envelope).payload)
    return SignatureHeader.FromString(payload.header.signature_header).nonce.decode()


def metadata(write):
    """Position, last original and last resubmitted config in a `Write`'s metadata."""
    consenter = KafkaMetadata.FromString(write.consenter)
    return (
        consenter.last_offset_persisted,
        consenter.last_original_offset_processed,
        consenter.last_resubmitted_config_offset,
    )
