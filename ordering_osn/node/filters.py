"""Decides which envelopes a node accepts: Fabric's filters, in Fabric's order.

The same filters judge an envelope at ingress and, if it is stale, again where it is consumed. Their
input is an envelope, the channel's config and the time; the result is the sequence of that config,
or `Refused` with the status for Broadcast's answer. No I/O, no waiting.

The filters, in order: maintenance mode (NORMAL only), empty, size, expiration, signature. Then a
CONFIG_UPDATE is applied; the resulting envelope, signed by this node, passes the filters too.
Statuses are those of Fabric's Broadcast: 403 where the policy is not met, 503 in maintenance mode
(NORMAL, and the creation of a channel) and where this node's own certificate has expired, 400 for
anything else that is wrong with the envelope.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime
from typing import Any

from ordering_osn.api.channels import Refused, Status
from ordering_osn.api.seek import no_such_channel
from ordering_osn.chain.blockcutter import BLOCK_BYTES_MAX
from ordering_osn.chain.channel_rules import Invalid, Parameters
from ordering_osn.chain.envelopes import (
    BadEnvelope,
    ParsedEnvelope,
    Signer,
    canonical,
    signed_envelope,
)
from ordering_osn.chain.records import RegularKind
from ordering_osn.config.channel_config import ChannelConfig, config_of
from ordering_osn.config.channel_creation import check_creation, created_channel, proposed_channel
from ordering_osn.config.configtx import NAME_LENGTH_MAX, InvalidUpdate
from ordering_osn.config.maintenance import check_transition
from ordering_osn.config.policies import PolicyNotMet, SignedData
from ordering_osn.identity import expires_at
from ordering_osn.protos import HeaderType
from ordering_osn.quoting import quoted

# In the names of destination sets, and in no channel's name: versions before bundles accepted
# channel IDs of several names.
_JOIN = "+"
WRITERS = "/Channel/Writers"
WRITERS_IN_MAINTENANCE = "/Channel/Orderer/Writers"


class EnvelopeClass(enum.Enum):
    """How an envelope is handled, by its header type."""

    NORMAL = "normal"
    CONFIG_UPDATE = "config update"
    CONFIG = "config"  # CONFIG and ORDERER_TRANSACTION, which only nodes make


def class_of(header: Any) -> EnvelopeClass:
    """Give the class of an envelope with this `ChannelHeader`."""
    if header.type == HeaderType.CONFIG_UPDATE:
        return EnvelopeClass.CONFIG_UPDATE
    if header.type in (HeaderType.CONFIG, HeaderType.ORDERER_TRANSACTION):
        return EnvelopeClass.CONFIG
    return EnvelopeClass.NORMAL


def route(envelope: ParsedEnvelope) -> tuple[EnvelopeClass, str]:
    """Give the class of an envelope, and the channel that it is for.

    Raises `Refused` 400 for what cannot be decoded or is not payload and signature alone, for a
    CONFIG that was sent directly, and for a channel ID that names several chains; 404 for a longer
    one than any channel has. Whether the channel exists (404), the caller checks.
    """
    try:
        header = envelope.header
    except BadEnvelope as error:
        raise Refused(Status.BAD_REQUEST, f"could not determine channel ID: {error}") from error
    if not envelope.payload.header.channel_header:
        raise Refused(
            Status.BAD_REQUEST, "could not determine channel ID: the payload has no channel header"
        )
    if not envelope.is_exact:
        raise Refused(Status.BAD_REQUEST, "the envelope has more fields than payload and signature")
    kind = class_of(header)
    # A request for blocks, signed by a reader, must not be ordered for whoever has caught it.
    if kind is EnvelopeClass.CONFIG or header.type == HeaderType.DELIVER_SEEK_INFO:
        raise Refused(Status.BAD_REQUEST, "message is of type that cannot be processed directly")
    name = header.channel_id
    if len(name) > NAME_LENGTH_MAX:
        raise Refused(Status.NOT_FOUND, no_such_channel(name))
    if _JOIN in name:
        # A Fabric peer stops for good at a block whose first envelope names another channel than
        # its own; elsewhere in a block it marks such an envelope as invalid.
        raise Refused(
            Status.BAD_REQUEST,
            f"channel ID {quoted(name)} names several chains, and peers accept no such "
            f"transaction: send a bundle, with an envelope for each chain (BroadcastMulti)",
        )
    return kind, name


def admit_normal(config: ChannelConfig, envelope: ParsedEnvelope, *, now: datetime) -> int:
    """Apply all filters of a channel to a NORMAL envelope; give the sequence of the config.

    Raises `Refused`.
    """
    _pass_normal(config, envelope, now)
    return config.sequence


class ChannelRules:
    """The `Rules` of one channel: its config, with this node's clock and signer.

    `channels` counts this node's channels, for the system channel's limit. Immutable: `after` gives
    new rules.
    """

    def __init__(
        self,
        config: ChannelConfig,
        *,
        signer: Callable[[], Signer],
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
        """Give the envelope to order now; raises `Invalid` where the filters refuse it.

        An envelope that is reposted is judged by the clock, and a CONFIG is made and signed anew.
        An envelope that goes into the block at once (class UNKNOWN, or no capability
        `resubmission`) stays as it is: every node must put the same bytes there, so neither the
        clock nor this node's identity has an influence.
        """
        reposted = self.parameters.resubmission and kind is not RegularKind.UNKNOWN
        now = self._clock() if reposted else None
        try:
            parsed = ParsedEnvelope(envelope)
            if _class_as(parsed, kind) is EnvelopeClass.NORMAL:
                _pass_normal(self.config, parsed, now)
            elif reposted:
                return self._made_anew(envelope, self._clock())
            else:
                _pass_filters(self.config, parsed, None)
                self.after(envelope)
        except (Refused, BadEnvelope) as error:
            raise Invalid(str(error)) from error
        return envelope

    def after(self, envelope: bytes) -> ChannelRules:
        """Give the rules once this CONFIG-class envelope is in a block; raises `Invalid`.

        An ORDERER_TRANSACTION, which creates a channel, does not change them, and so does not move
        the last config.
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

    def _made_anew(self, envelope: bytes, now: datetime) -> bytes:
        created = created_channel(envelope)
        _, config_envelope = config_of(envelope if created is None else created[1])
        update = ParsedEnvelope.of(config_envelope.last_update)
        if created is None:
            return admit_update(self.config, update, now=now, signer=self._signer())
        if not self.config.is_system:
            raise Refused(Status.BAD_REQUEST, "only a system channel creates channels")
        return admit_creation(
            self.config, update, now=now, signer=self._signer(), channels=self._channels()
        )


def _class_as(envelope: ParsedEnvelope, kind: RegularKind) -> EnvelopeClass:
    """Give the class of a record's envelope; raises `Refused` where `kind` is not its class."""
    envelope_class = class_of(envelope.header)
    names = (envelope_class.name, RegularKind.UNKNOWN.name)
    if envelope_class is EnvelopeClass.CONFIG_UPDATE or kind.name not in names:
        raise Refused(Status.BAD_REQUEST, f"a {envelope_class.value} message posted as {kind.name}")
    return envelope_class


def _pass_normal(config: ChannelConfig, envelope: ParsedEnvelope, now: datetime | None) -> None:
    if config.capabilities.consensus_type_migration and config.maintenance:
        raise Refused(
            Status.SERVICE_UNAVAILABLE,
            "normal transactions are rejected: the channel is in maintenance mode",
        )
    _pass_filters(config, envelope, now)


def _pass_filters(config: ChannelConfig, envelope: ParsedEnvelope, now: datetime | None) -> None:
    """Apply the filters for every class; without `now` nothing is judged by the clock."""
    try:
        if not envelope.message.payload:
            raise Refused(Status.BAD_REQUEST, "message payload is empty")
        _pass_size(config, envelope)
        signed = SignedData.of(envelope)
    except BadEnvelope as error:
        raise Refused(Status.BAD_REQUEST, str(error)) from error
    check_writer(config, signed, now=now)


def _pass_size(config: ChannelConfig, envelope: ParsedEnvelope) -> None:
    size, size_max = envelope.size_bytes, min(config.parameters.bytes_absolute, BLOCK_BYTES_MAX)
    if size > size_max:
        raise Refused(
            Status.BAD_REQUEST,
            f"message payload is {size} bytes and exceeds maximum allowed {size_max} bytes",
        )


def check_writer(config: ChannelConfig, signed: SignedData, *, now: datetime | None) -> None:
    """Raise `Refused` unless the signer may write; without `now` nothing is judged by the clock."""
    if _expired(config, signed.creator, now):
        raise Refused(Status.BAD_REQUEST, "broadcast client identity expired")
    policy = WRITERS_IN_MAINTENANCE if config.maintenance else WRITERS
    if not config.policies.has(policy):
        raise Refused(Status.BAD_REQUEST, f"could not find policy {policy}")
    try:
        config.policies.evaluate(policy, [signed])
    except PolicyNotMet as error:
        raise Refused(Status.FORBIDDEN, f"permission denied: {error}") from error


def _expired(config: ChannelConfig, creator: bytes, now: datetime | None) -> bool:
    if now is None or not config.capabilities.resubmission:
        return False
    expires = expires_at(creator)
    return expires is not None and expires <= now


def _pass_own(config: ChannelConfig, made: bytes, *, now: datetime, signer: Signer) -> None:
    """Apply the filters to what this node made of an update that has passed them."""
    if _expired(config, signer.creator, now):  # the client is not to blame
        raise Refused(
            Status.SERVICE_UNAVAILABLE,
            "this node's certificate has expired, so it cannot sign the config; send the update to "
            "another node",
        )
    _pass_filters(config, ParsedEnvelope(made), now)


def admit_update(
    config: ChannelConfig, update: ParsedEnvelope, *, now: datetime, signer: Signer
) -> bytes:
    """Make the CONFIG envelope, signed by this node, that results from a CONFIG_UPDATE.

    Raises `Refused`.
    """
    _pass_filters(config, update, now)
    try:
        proposed, following = config.proposed(update.message)
        check_transition(config, following, update.message)
    except InvalidUpdate as error:
        raise Refused(Status.BAD_REQUEST, f"error applying config update: {error}") from error
    made = signed_envelope(
        HeaderType.CONFIG, config.channel_id, canonical(proposed), signer=signer, now=now
    )
    _pass_own(config, made, now=now, signer=signer)
    return made


def admit_creation(
    system: ChannelConfig, update: ParsedEnvelope, *, now: datetime, signer: Signer, channels: int
) -> bytes:
    """Make the ORDERER_TRANSACTION that results from a CONFIG_UPDATE for a new channel.

    `system` is the system channel's config; `channels` is how many channels this node has, the
    system channel included. Raises `Refused`. The caller checks that no channel of this name
    exists.
    """
    try:
        _pass_size(system, update)
        name, proposed = proposed_channel(system, update.message)
    except BadEnvelope as error:
        raise Refused(Status.BAD_REQUEST, str(error)) from error
    except InvalidUpdate as error:
        raise Refused(Status.BAD_REQUEST, f"error creating the channel: {error}") from error
    inner = signed_envelope(HeaderType.CONFIG, name, canonical(proposed), signer=signer, now=now)
    made = signed_envelope(
        HeaderType.ORDERER_TRANSACTION, system.channel_id, inner, signer=signer, now=now
    )
    _pass_own(system, made, now=now, signer=signer)
    if 0 < system.max_channels < channels:
        raise Refused(
            Status.BAD_REQUEST,
            f"channel creation would exceed maximum number of channels: {system.max_channels}",
        )
    if system.maintenance:
        raise Refused(
            Status.SERVICE_UNAVAILABLE,
            "channel creation is not permitted: the system channel is in maintenance mode",
        )
    return made
