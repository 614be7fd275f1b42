"""A channel's config, read from a config block and checked once; immutable.

It gives the limits and policies that ordering needs. A config that no node may run raises
`InvalidConfig`. No I/O, no clock: validity depends on the config's bytes alone, so all nodes agree.

The checks are Fabric's (common/channelconfig): each group holds only allowed values, each value can
be decoded, batch sizes and the batch time-out are in range, each organisation has an MSP, and an
MSP ID always means the same MSP. An update may not remove a section or change an MSP ID.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from multicast.errors import UsageError
from ordering_osn.chain.channel_rules import Invalid, Parameters
from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope, decoded
from ordering_osn.config.capabilities import CapabilitySet
from ordering_osn.config.configtx import (
    InvalidUpdate,
    check_channel_id,
    elements,
    propose,
    validate,
)
from ordering_osn.config.policies import MalformedPolicy, Policies
from ordering_osn.identity import MalformedMsp, Msp, Msps
from ordering_osn.protos import (
    ACLs,
    AnchorPeers,
    BatchSize,
    BatchTimeout,
    Block,
    BlockDataHashingStructure,
    Capabilities,
    ChannelRestrictions,
    ConfigEnvelope,
    ConsensusType,
    Consortium,
    HashingAlgorithm,
    HeaderType,
    KafkaBrokers,
    MSPConfig,
    OrdererAddresses,
    Policy,
)
from ordering_osn.quoting import quoted

_CHANNEL_VALUES = {
    "BlockDataHashingStructure": BlockDataHashingStructure,
    "Capabilities": Capabilities,
    "Consortium": Consortium,
    "HashingAlgorithm": HashingAlgorithm,
    "OrdererAddresses": OrdererAddresses,
}
_ORDERER_VALUES = {
    "BatchSize": BatchSize,
    "BatchTimeout": BatchTimeout,
    "Capabilities": Capabilities,
    "ChannelRestrictions": ChannelRestrictions,
    "ConsensusType": ConsensusType,
    "KafkaBrokers": KafkaBrokers,
}
_APPLICATION_VALUES = {"ACLs": ACLs, "Capabilities": Capabilities}
_CONSORTIUM_VALUES = {"ChannelCreationPolicy": Policy}
_ORGANISATION_VALUES = {
    "Application": {"AnchorPeers": AnchorPeers, "MSP": MSPConfig},
    "Consortiums": {"MSP": MSPConfig},
    "Orderer": {"Endpoints": OrdererAddresses, "MSP": MSPConfig},
}
_SECTIONS = ("Application", "Consortiums", "Orderer")
# Fabric's Merkle tree over a block's data may have any width in the config, but only this one, a
# plain hash, is implemented (common/channelconfig).
_DATA_HASH_WIDTH = 2**32 - 1
_PORT_MAX = 2**16 - 1  # TCP's
_BROKER = re.compile(r"([a-z0-9]|[a-z0-9][a-z0-9.-]*[a-z0-9]):(\d{1,5})", re.ASCII | re.IGNORECASE)
_DURATION_PART = re.compile(
    r"(?=\.?\d)(?P<whole>\d*)(?:\.(?P<fraction>\d*))?(?P<unit>ns|us|µs|μs|ms|s|m|h)", re.ASCII
)
_DURATION_NS_MAX = 2**63 - 1  # Go's time.Duration is an int64
_DURATION_DIGITS_MAX = 19  # of that number
_NANOSECONDS = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}


class InvalidConfig(UsageError):
    """A config that no node may run; the text gives the reason."""


class ChannelConfig:
    """One config of one channel; immutable.

    `config` is the proto `Config`; `organisations` maps the path of each organisation's group to
    its MSP ID.
    """

    def __init__(self, channel_id: str, config: Any) -> None:
        """Check the config; raises `InvalidConfig` where no node may run it."""
        try:
            check_channel_id(channel_id)
            group = config.channel_group
            self.channel_id = channel_id
            self.config = config
            self.sequence: int = config.sequence
            self.values = _values(group, _CHANNEL_VALUES, "Channel")
            self.sections = _sections(group)
            self.orderer = _values(group.groups["Orderer"], _ORDERER_VALUES, "Orderer")
            self.capabilities = _capabilities(self.values, self.orderer, group)
            _check_channel(self.values, self.capabilities)
            self.parameters = _parameters(self.sequence, self.orderer, self.capabilities)
            self.organisations, self.msps = _organisations(group, self.capabilities)
            self.policies = Policies(group, self.msps)
            elements(group)  # whose names must all be allowed
        except (InvalidUpdate, MalformedMsp, MalformedPolicy, BadEnvelope) as error:
            raise InvalidConfig(f"the config of channel {quoted(channel_id)}: {error}") from error

    @classmethod
    def from_block(cls, raw: bytes) -> ChannelConfig:
        """Read the config in a serialized genesis or config block; raises `InvalidConfig`."""
        try:
            block = decoded(Block, raw, "the block")
        except BadEnvelope as error:
            raise InvalidConfig(f"not a config block: {error}") from error
        if len(block.data.data) != 1:
            raise InvalidConfig(
                f"not a config block: it has {len(block.data.data)} envelopes, not 1"
            )
        return cls.from_envelope(block.data.data[0])

    @classmethod
    def from_envelope(cls, raw: bytes) -> ChannelConfig:
        """Read the config in a serialized CONFIG envelope; raises `InvalidConfig`."""
        try:
            channel_id, envelope = config_of(raw)
        except BadEnvelope as error:
            raise InvalidConfig(f"not a config envelope: {error}") from error
        return cls(channel_id, envelope.config)

    @property
    def maintenance(self) -> bool:
        """Whether the orderer group is in maintenance mode."""
        state: int = self.orderer["ConsensusType"].state
        return state == int(ConsensusType.STATE_MAINTENANCE)

    @property
    def orderer_msp_ids(self) -> tuple[str, ...]:
        """The MSP IDs of the orderer group's organisations, sorted."""
        return tuple(
            sorted({msp_id for path, msp_id in self.organisations.items() if path[0] == "Orderer"})
        )

    @property
    def orderer_addresses(self) -> tuple[str, ...]:
        """The orderers' addresses: the channel's, then those of the orderer organisations."""
        addresses = list(self.values["OrdererAddresses"].addresses)
        for name in sorted(self.config.channel_group.groups["Orderer"].groups):
            organisation = self.config.channel_group.groups["Orderer"].groups[name]
            if "Endpoints" in organisation.values:
                raw = organisation.values["Endpoints"].value
                addresses += OrdererAddresses.FromString(raw).addresses
        return tuple(dict.fromkeys(addresses))

    @property
    def max_channels(self) -> int:
        """The number of channels that may be created through this system channel; 0: no limit."""
        count: int = self.orderer["ChannelRestrictions"].max_count
        return count

    @property
    def is_system(self) -> bool:
        """Whether this is a system channel, through which others are created."""
        return "Consortiums" in self.sections

    @property
    def consortiums(self) -> tuple[str, ...]:
        """The names of the consortiums, sorted; empty unless this is a system channel."""
        if not self.is_system:
            return ()
        return tuple(sorted(self.config.channel_group.groups["Consortiums"].groups))

    def proposed(self, update: Any) -> tuple[Any, ChannelConfig]:
        """Apply a CONFIG_UPDATE `Envelope`; returns the `ConfigEnvelope` and its checked config.

        Raises `InvalidUpdate`.
        """
        envelope = propose(self, update)
        try:
            following = ChannelConfig(self.channel_id, envelope.config)
            self.check_next(following)
        except InvalidConfig as error:
            raise InvalidUpdate(f"the update leads to an invalid config: {error}") from error
        return envelope, following

    def after(self, envelope: bytes) -> ChannelConfig:
        """Return the config that this CONFIG envelope puts in force; raises `Invalid`.

        It must follow from the update inside it: sequence + 1, with all signatures that the update
        needs. So a config written to the log past every node's filters changes nothing.
        """
        try:
            channel_id, proposed = config_of(envelope)
            if channel_id != self.channel_id:
                raise Invalid(
                    f"a config of channel {quoted(channel_id)} in channel {self.channel_id!r}"
                )
            validate(self, proposed)
            following = ChannelConfig(channel_id, proposed.config)
            self.check_next(following)
        except (InvalidConfig, InvalidUpdate, BadEnvelope) as error:
            raise Invalid(f"the config does not follow: {error}") from error
        return following

    def check_next(self, following: ChannelConfig) -> None:
        """Raise `InvalidConfig` where an update may not lead from this config to `following`."""
        for section in self.sections:
            if section not in following.sections:
                raise InvalidConfig(f"the update drops the section {section}")
        if following.is_system and not self.is_system:
            raise InvalidConfig("the update adds consortiums to a channel that has none")
        kind, kind_next = (each.orderer["ConsensusType"].type for each in (self, following))
        if kind != kind_next and not self.capabilities.channel_migration:
            raise InvalidConfig(f"the update changes the consensus type from {kind} to {kind_next}")
        for path, msp_id in self.organisations.items():
            if following.organisations.get(path, msp_id) != msp_id:
                raise InvalidConfig(
                    f"the update changes the MSP ID of {'/'.join(path)} "
                    f"from {msp_id} to {following.organisations[path]}"
                )


def config_of(envelope: bytes) -> tuple[str, Any]:
    """Read the channel and the `ConfigEnvelope` of a serialized CONFIG envelope, unchecked.

    Raises `BadEnvelope`.
    """
    parsed = ParsedEnvelope(envelope)
    header = parsed.header
    if header.type != HeaderType.CONFIG:
        raise BadEnvelope(f"its header type is {header.type}, not CONFIG")
    return header.channel_id, decoded(ConfigEnvelope, parsed.payload.data, "the config envelope")


def duration_ns(text: str) -> int:
    """Parse a duration in Go's form ("1m30s", "500ms") to nanoseconds; raises `InvalidConfig`.

    As Go's time.ParseDuration: each part is cut to whole nanoseconds, and what is longer than 292
    years (2**63 - 1 ns) is no duration.
    """
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    parts = list(_DURATION_PART.finditer(rest))
    if not parts or "".join(part.group() for part in parts) != rest:
        raise InvalidConfig(
            f"the batch time-out {quoted(text)} is not a duration such as 500ms or 2s"
        )
    total = 0
    for part in parts:
        whole = part["whole"].lstrip("0") or "0"
        # As text first: Python reads no integer of more than 4,300 digits.
        value = int(whole) if len(whole) <= _DURATION_DIGITS_MAX else _DURATION_NS_MAX + 1
        unit = _NANOSECONDS[part["unit"]]
        total += value * unit + _fraction_ns(part["fraction"] or "", unit)
    if total > _DURATION_NS_MAX:
        raise InvalidConfig(f"the batch time-out {quoted(text)} is longer than 292 years")
    return sign * total


def _fraction_ns(digits: str, unit: int) -> int:
    """Give the nanoseconds of a fraction of a unit with Go's steps, which use a float here."""
    kept, scale = 0, 1
    for digit in digits:
        if kept > _DURATION_NS_MAX // 10 or kept * 10 + int(digit) > _DURATION_NS_MAX + 1:
            break  # Go ignores the digits that no longer fit
        kept, scale = kept * 10 + int(digit), scale * 10
    return int(kept * (unit / scale))


def _values(group: Any, allowed: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Decode a group's values; a missing value becomes the default message."""
    for name in sorted(group.values):
        if name not in allowed:
            raise InvalidConfig(f"the group {where} may not hold a value {name}")
    return {
        name: decoded(kind, group.values[name].value, f"the value {name} of {where}")
        if name in group.values
        else kind()
        for name, kind in allowed.items()
    }


def _sections(group: Any) -> tuple[str, ...]:
    for name in sorted(group.groups):
        if name not in _SECTIONS:
            raise InvalidConfig(f"a channel may not have a group {name}")
    if "Orderer" not in group.groups:
        raise InvalidConfig("it has no orderer group")
    return tuple(sorted(group.groups))


def _capabilities(
    channel: Mapping[str, Any], orderer: Mapping[str, Any], group: Any
) -> CapabilitySet:
    application: Mapping[str, Any] = {"Capabilities": Capabilities()}
    holders = {"channel": group.values}
    if "Application" in group.groups:
        application = _values(group.groups["Application"], _APPLICATION_VALUES, "Application")
        holders["application"] = group.groups["Application"].values
    if "Capabilities" not in group.groups["Orderer"].values:
        for name, values in holders.items():
            if "Capabilities" in values:
                raise InvalidConfig(f"it has {name} capabilities, but the orderer group has none")
    capabilities = CapabilitySet(
        *(
            frozenset(values["Capabilities"].capabilities)
            for values in (channel, orderer, application)
        )
    )
    if capabilities.unknown:
        unknown = ", ".join(capabilities.unknown)
        raise InvalidConfig(f"it requires capabilities that this node does not know: {unknown}")
    if "ACLs" in holders.get("application", ()) and not capabilities.acls:
        raise InvalidConfig("it has ACLs without the capability for them")
    return capabilities


def _check_channel(values: Mapping[str, Any], capabilities: CapabilitySet) -> None:
    hashing = values["HashingAlgorithm"].name
    if hashing not in ("SHA256", "SHA3_256"):
        raise InvalidConfig(f"the hashing algorithm {quoted(hashing)} is unknown")
    if values["BlockDataHashingStructure"].width != _DATA_HASH_WIDTH:
        raise InvalidConfig(f"the width of the block data hash must be {_DATA_HASH_WIDTH}")
    if not capabilities.channel_migration and not values["OrdererAddresses"].addresses:
        raise InvalidConfig("it has no orderer addresses")


def _parameters(
    sequence: int, orderer: Mapping[str, Any], capabilities: CapabilitySet
) -> Parameters:
    size = orderer["BatchSize"]
    for name in ("max_message_count", "absolute_max_bytes", "preferred_max_bytes"):
        if getattr(size, name) == 0:
            raise InvalidConfig(f"the batch size's {name} is 0")
    if size.preferred_max_bytes > size.absolute_max_bytes:
        raise InvalidConfig(
            f"the batch size's preferred_max_bytes ({size.preferred_max_bytes}) "
            f"is greater than its absolute_max_bytes ({size.absolute_max_bytes})"
        )
    timeout_ns = duration_ns(orderer["BatchTimeout"].timeout)
    if timeout_ns <= 0:
        raise InvalidConfig(f"the batch time-out is not positive: {timeout_ns} ns")
    for broker in orderer["KafkaBrokers"].brokers:
        match = _BROKER.fullmatch(broker)
        if not match or int(match[2]) > _PORT_MAX:
            raise InvalidConfig(
                f"{quoted(broker)} is not the address of a Kafka broker (HOST:PORT)"
            )
    return Parameters(
        sequence=sequence,
        messages_max=size.max_message_count,
        bytes_preferred=size.preferred_max_bytes,
        bytes_absolute=size.absolute_max_bytes,
        timeout_s=timeout_ns / 10**9,
        resubmission=capabilities.resubmission,
    )


def _organisations(
    group: Any, capabilities: CapabilitySet
) -> tuple[dict[tuple[str, ...], str], Msps]:
    """Return the MSP ID of each organisation by its group's path, and the MSPs, each once."""
    msp_ids: dict[tuple[str, ...], str] = {}
    msps: list[Msp] = []
    for path, organisation in _organisation_groups(group):
        where = "/".join(path)
        values = _ORGANISATION_VALUES[path[0]]
        _values(organisation, values, where)
        if organisation.groups:
            raise InvalidConfig(f"the organisation {where} may not have groups")
        if "Endpoints" in organisation.values and not capabilities.channel_migration:
            raise InvalidConfig(f"the organisation {where} has addresses without the capability")
        if "MSP" not in organisation.values:
            raise InvalidConfig(f"the organisation {where} has no MSP")
        msps.append(Msp(organisation.values["MSP"].value, capabilities.msp_rules))
        msp_ids[path] = msps[-1].name
    return msp_ids, Msps(msps)


def _organisation_groups(group: Any) -> list[tuple[tuple[str, ...], Any]]:
    groups: list[tuple[tuple[str, ...], Any]] = []
    for section in sorted(group.groups):
        members = group.groups[section].groups
        for name in sorted(members):
            if section != "Consortiums":
                groups.append(((section, name), members[name]))
                continue
            _values(members[name], _CONSORTIUM_VALUES, f"{section}/{name}")
            inner = members[name].groups
            groups += [((section, name, each), inner[each]) for each in sorted(inner)]
    if "Consortiums" in group.groups:
        _values(group.groups["Consortiums"], {}, "Consortiums")
    return groups
