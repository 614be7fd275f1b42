"""What a node lets in: Fabric's filters in Fabric's order, and the same ones again at consumption.

In: an envelope, the channel's config, the time. Out: the config sequence it was judged at, or
`Refusal` with the status of the Broadcast answer. Nothing is waited for and nothing is read but
the arguments.

The filters, in order: maintenance mode (NORMAL only), empty, size, expiration, signature; a
CONFIG_UPDATE is applied then, and the envelope it leads to passes them too, signed by this node.
Statuses are those of Fabric's broadcast: 403 where the policy is not met, 503 in maintenance
mode (NORMAL, and the creation of a channel), 400 for everything else that is wrong with the
envelope itself.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime
from typing import Any

from multicast.errors import AmcastError
from ordering_osn.api.channels import Status
from ordering_osn.chain.blocks import Signer
from ordering_osn.chain.chain import Invalid, Parameters
from ordering_osn.chain.records import RegularKind
from ordering_osn.chain.transactions import JOIN
from ordering_osn.config.channel_config import ChannelConfig, config_of
from ordering_osn.config.channel_creation import check_creation, created_channel, proposed_channel
from ordering_osn.config.configtx import InvalidUpdate
from ordering_osn.config.envelopes import (
    BadEnvelope,
    canonical,
    decoded,
    header_of,
    payload_of,
    signed_data,
    signed_envelope,
)
from ordering_osn.config.maintenance import check_transition
from ordering_osn.config.policies import PolicyNotMet
from ordering_osn.identity import expires_at
from ordering_osn.protos import Envelope, HeaderType

__all__ = [
    "ChannelRules",
    "EnvelopeClass",
    "Refusal",
    "admit_creation",
    "admit_normal",
    "admit_update",
    "class_of",
    "created_channel",
    "route",
]

WRITERS = "/Channel/Writers"
WRITERS_IN_MAINTENANCE = "/Channel/Orderer/Writers"


class Refusal(AmcastError):
    """Broadcast's answer where an envelope is not let in: the status, and why."""

    def __init__(self, status: Status, info: str) -> None:
        super().__init__(info)
        self.status = int(status)
        self.info = info
        self.retriable = status is Status.SERVICE_UNAVAILABLE


class EnvelopeClass(enum.Enum):
    """How a message is handled, by its header type."""

    NORMAL = "normal"
    CONFIG_UPDATE = "config update"
    CONFIG = "config"  # CONFIG and ORDERER_TRANSACTION: only nodes make these


def class_of(header: Any) -> EnvelopeClass:
    """Tell the class of a message with this `ChannelHeader`."""
    if header.type == HeaderType.CONFIG_UPDATE:
        return EnvelopeClass.CONFIG_UPDATE
    if header.type in (HeaderType.CONFIG, HeaderType.ORDERER_TRANSACTION):
        return EnvelopeClass.CONFIG
    return EnvelopeClass.NORMAL


def route(envelope: bytes) -> tuple[EnvelopeClass, str]:
    """Tell the class of an envelope, and the channel that it is for.

    Raises `Refusal` 400 for what cannot be decoded, for a CONFIG that was sent directly, and for a
    channel ID that names several chains. Whether the channel exists is the caller's to ask (404).
    """
    try:
        header = header_of(payload_of(decoded(Envelope, envelope, "the envelope")))
    except BadEnvelope as error:
        raise Refusal(Status.BAD_REQUEST, f"could not determine channel ID: {error}") from error
    kind = class_of(header)
    if kind is EnvelopeClass.CONFIG:
        raise Refusal(Status.BAD_REQUEST, "message is of type that cannot be processed directly")
    if JOIN in header.channel_id:
        # A peer of Fabric stops for good at a block whose first envelope names another channel
        # than its own, and marks the envelope as invalid anywhere else.
        raise Refusal(
            Status.BAD_REQUEST,
            f"channel ID {header.channel_id!r} names several chains, and peers accept no such "
            f"transaction: send a transaction to each chain",
        )
    return kind, header.channel_id


def admit_normal(config: ChannelConfig, envelope: bytes, *, now: datetime) -> int:
    """Give the config sequence at which a NORMAL envelope passed all filters of one channel.

    Raises `Refusal`.
    """
    _pass_normal(config, decoded_envelope(envelope), now)
    return config.sequence


def admit_update(
    config: ChannelConfig, envelope: bytes, *, now: datetime, signer: Signer
) -> tuple[bytes, int]:
    """Make the CONFIG envelope, signed by this node, that a CONFIG_UPDATE leads to.

    Gives the sequence of the config that it was judged at with it. Raises `Refusal`.
    """
    return _config_for(config, decoded_envelope(envelope), now=now, signer=signer), config.sequence


def admit_creation(
    system: ChannelConfig, envelope: bytes, *, now: datetime, signer: Signer, channels: int
) -> tuple[bytes, int]:
    """Make the ORDERER_TRANSACTION that a CONFIG_UPDATE for a channel not yet there leads to.

    `system` is the system channel's config; `channels`: how many channels this node has, the
    system channel included. Gives the sequence of the system channel's config with it. Raises
    `Refusal`. A new channel's name must not be one that exists: the caller's to ask.
    """
    update = decoded_envelope(envelope)
    return (
        _creation_for(system, update, now=now, signer=signer, channels=channels),
        system.sequence,
    )


def decoded_envelope(raw: bytes) -> Any:
    """Read an `Envelope`; raises `Refusal` 400."""
    try:
        return decoded(Envelope, raw, "the envelope")
    except BadEnvelope as error:
        raise Refusal(Status.BAD_REQUEST, str(error)) from error


class ChannelRules:
    """`chain.Rules` of one channel: its config, with this node's clock and signature.

    `channels` counts this node's channels, for the system channel's limit. Never changes: `after`
    gives other rules.
    """

    def __init__(
        self,
        config: ChannelConfig,
        *,
        signer: Signer,
        clock: Callable[[], datetime],
        channels: Callable[[], int] = lambda: 0,
    ) -> None:
        self.config = config
        self._signer = signer
        self._clock = clock
        self._channels = channels

    @property
    def parameters(self) -> Parameters:
        """What the core needs of the config."""
        return self.config.parameters

    def judge(self, envelope: bytes, kind: RegularKind) -> bytes:
        """Give the envelope to order now; raises `chain.Invalid` where the filters refuse it.

        A CONFIG is made and signed again, for it is posted again then. Not so where a message goes
        into the block at once (class UNKNOWN, or no capability `resubmission`): every node must put
        the same bytes there, so the envelope stays as it is, and neither the clock nor this node's
        own identity takes part.
        """
        posted_again = self.parameters.resubmission and kind is not RegularKind.UNKNOWN
        now = self._clock() if posted_again else None
        try:
            parsed = decoded_envelope(envelope)
            found = _class_as(parsed, kind)
            if found is EnvelopeClass.NORMAL:
                _pass_normal(self.config, parsed, now)
            elif posted_again:
                return self._made_again(envelope, self._clock())
            else:
                _pass_filters(self.config, parsed, None)
                self.after(envelope)
        except (Refusal, BadEnvelope) as error:
            raise Invalid(str(error)) from error
        return envelope

    def after(self, envelope: bytes) -> ChannelRules:
        """Give the rules once this CONFIG-class envelope is in a block; raises `chain.Invalid`.

        An ORDERER_TRANSACTION, which creates a channel, leaves them as they are, and so does
        not move the last config.
        """
        try:
            creates = self.config.is_system and created_channel(envelope) is not None
            if creates:
                check_creation(self.config, envelope)
                return self
        except (InvalidUpdate, BadEnvelope) as error:
            raise Invalid(f"the channel's creation does not follow: {error}") from error
        return ChannelRules(
            self.config.after(envelope),
            signer=self._signer,
            clock=self._clock,
            channels=self._channels,
        )

    def _made_again(self, envelope: bytes, now: datetime) -> bytes:
        created = created_channel(envelope)
        _, carried = config_of(envelope if created is None else created[1])
        update = carried.last_update
        if created is None:
            return _config_for(self.config, update, now=now, signer=self._signer)
        if not self.config.is_system:
            raise Refusal(Status.BAD_REQUEST, "only a system channel creates channels")
        return _creation_for(
            self.config, update, now=now, signer=self._signer, channels=self._channels()
        )


def _class_as(envelope: Any, kind: RegularKind) -> EnvelopeClass:
    """Tell the class of a record's envelope, where it can have been posted with class `kind`."""
    found = class_of(header_of(payload_of(envelope)))
    if found is EnvelopeClass.CONFIG_UPDATE or kind.name not in (
        found.name,
        RegularKind.UNKNOWN.name,
    ):
        raise Refusal(Status.BAD_REQUEST, f"a {found.value} message posted as {kind.name}")
    return found


def _pass_normal(config: ChannelConfig, envelope: Any, now: datetime | None) -> None:
    if config.capabilities.consensus_type_migration and config.maintenance:
        raise Refusal(
            Status.SERVICE_UNAVAILABLE,
            "normal transactions are rejected: the channel is in maintenance mode",
        )
    _pass_filters(config, envelope, now)


def _pass_filters(config: ChannelConfig, envelope: Any, now: datetime | None) -> None:
    """Apply the rules for every message; without `now` nothing is judged by the clock."""
    if not envelope.payload:
        raise Refusal(Status.BAD_REQUEST, "message payload is empty")
    size, size_max = (
        len(envelope.payload) + len(envelope.signature),
        config.parameters.bytes_absolute,
    )
    if size > size_max:
        raise Refusal(
            Status.BAD_REQUEST,
            f"message payload is {size} bytes and exceeds maximum allowed {size_max} bytes",
        )
    try:
        signed = signed_data(envelope)
    except BadEnvelope as error:
        raise Refusal(Status.BAD_REQUEST, str(error)) from error
    if now is not None and config.capabilities.resubmission:
        expires = expires_at(signed.creator)
        if expires is not None and expires <= now:
            raise Refusal(Status.BAD_REQUEST, "broadcast client identity expired")
    policy = WRITERS_IN_MAINTENANCE if config.maintenance else WRITERS
    if not config.policies.has(policy):
        raise Refusal(Status.BAD_REQUEST, f"could not find policy {policy}")
    try:
        config.policies.evaluate(policy, [signed])
    except PolicyNotMet as error:
        raise Refusal(Status.FORBIDDEN, f"permission denied: {error}") from error


def _config_for(config: ChannelConfig, update: Any, *, now: datetime, signer: Signer) -> bytes:
    """Make the CONFIG envelope of a channel that a CONFIG_UPDATE `Envelope` leads to."""
    _pass_filters(config, update, now)
    try:
        proposed, following = config.proposed(update)
        check_transition(config, following, update)
    except InvalidUpdate as error:
        raise Refusal(Status.BAD_REQUEST, f"error applying config update: {error}") from error
    made = signed_envelope(
        HeaderType.CONFIG, config.channel_id, canonical(proposed), signer=signer, now=now
    )
    _pass_filters(config, decoded_envelope(made), now)
    return made


def _creation_for(
    system: ChannelConfig, update: Any, *, now: datetime, signer: Signer, channels: int
) -> bytes:
    """Make the ORDERER_TRANSACTION that a CONFIG_UPDATE `Envelope` for a new channel leads to."""
    try:
        name, proposed = proposed_channel(system, update)
    except InvalidUpdate as error:
        raise Refusal(Status.BAD_REQUEST, f"error creating the channel: {error}") from error
    inner = signed_envelope(HeaderType.CONFIG, name, canonical(proposed), signer=signer, now=now)
    made = signed_envelope(
        HeaderType.ORDERER_TRANSACTION, system.channel_id, inner, signer=signer, now=now
    )
    _pass_filters(system, decoded_envelope(made), now)
    if 0 < system.max_channels < channels:
        raise Refusal(
            Status.BAD_REQUEST,
            f"channel creation would exceed maximum number of channels: {system.max_channels}",
        )
    if system.maintenance:
        raise Refusal(
            Status.SERVICE_UNAVAILABLE,
            "channel creation is not permitted: the system channel is in maintenance mode",
        )
    return made
