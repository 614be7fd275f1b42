"""Create a channel from the system channel's config (Fabric's msgprocessor/systemchannel).

A CONFIG_UPDATE for a channel that does not exist yet asks for it; the result is the new channel's
first config, or `InvalidUpdate`. No clock and no signature of the node: all nodes get the same.

    template    the config that the update is applied to: the system channel's own values, policies
                and orderer group, all at version 0, and an application group with the members that
                the update names, governed by the consortium's creation policy

The new channel's first config has sequence 1. An ORDERER_TRANSACTION of the system channel contains
it as a CONFIG envelope, which becomes the data of the new channel's block 0.
"""

from __future__ import annotations

from typing import Any

from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope, canonical, decoded
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig, config_of
from ordering_osn.config.configtx import InvalidUpdate, signatures_of, update_of
from ordering_osn.protos import (
    Config,
    ConfigGroup,
    ConfigPolicy,
    Consortium,
    HeaderType,
    Policy,
)
from ordering_osn.quoting import quoted


def proposed_channel(system: ChannelConfig, update: Any) -> tuple[str, Any]:
    """Return the name and first `ConfigEnvelope` of the channel that a CONFIG_UPDATE asks for.

    Raises `InvalidUpdate`.
    """
    try:
        name = ParsedEnvelope.of(update).header.channel_id
        _refuse_strangers(system, update)
        change = update_of(update)
    except BadEnvelope as error:
        raise InvalidUpdate(f"the channel's creation cannot be read: {error}") from error
    if change.channel_id != name:
        raise InvalidUpdate(
            f"the channel's creation names two channels: {quoted(change.channel_id)} "
            f"and {quoted(name)}"
        )
    try:
        template = ChannelConfig(name, Config(channel_group=_template(system, change.write_set)))
    except InvalidConfig as error:
        raise InvalidUpdate(f"this update creates no valid channel: {error}") from error
    envelope, _ = template.proposed(update)
    return name, envelope


def created_channel(envelope: bytes) -> tuple[str, bytes] | None:
    """Return the new channel's name and its CONFIG envelope, the data of its block 0.

    None where the system channel's envelope is not an ORDERER_TRANSACTION. Raises `BadEnvelope`.
    """
    parsed = ParsedEnvelope(envelope)
    if parsed.header.type != HeaderType.ORDERER_TRANSACTION:
        return None
    name, _ = config_of(parsed.payload.data)
    return name, bytes(parsed.payload.data)


def check_creation(system: ChannelConfig, envelope: bytes) -> None:
    """Raise `InvalidUpdate` unless an ORDERER_TRANSACTION holds the config of its own update."""
    try:
        created = created_channel(envelope)
        if created is None:
            raise InvalidUpdate("the transaction creates no channel")
        name, proposed = config_of(created[1])
    except BadEnvelope as error:
        raise InvalidUpdate(f"the channel's creation cannot be read: {error}") from error
    name_expected, expected = proposed_channel(system, proposed.last_update)
    if name != name_expected or canonical(expected.config) != canonical(proposed.config):
        raise InvalidUpdate("the channel's config is not the one that its update leads to")


def _refuse_strangers(system: ChannelConfig, update: Any) -> None:
    """Raise `InvalidUpdate` where nobody whom the system channel knows has signed an update.

    A creation needs the signature of a member of its consortium, if that has any.
    """
    consortiums = system.config.channel_group.groups["Consortiums"].groups
    has_members = all(consortiums[name].groups for name in system.consortiums)
    if has_members and not system.policies.signers(signatures_of(update)).identities:
        raise InvalidUpdate("nobody whom the system channel knows has signed the update")


def _template(system: ChannelConfig, write_set: Any) -> Any:
    if "Application" not in write_set.groups:
        raise InvalidUpdate("the update that creates a channel has no application group")
    application = write_set.groups["Application"]
    if application.version != 1:
        raise InvalidUpdate(
            f"the update that creates a channel sets its application group to version 1, "
            f"not {application.version}"
        )
    if "Consortium" not in write_set.values:
        raise InvalidUpdate("the update that creates a channel names no consortium")
    try:
        name = decoded(Consortium, write_set.values["Consortium"].value, "the consortium").name
    except BadEnvelope as error:
        raise InvalidUpdate(str(error)) from error
    if name not in system.consortiums:
        raise InvalidUpdate(f"there is no consortium {quoted(name)}")
    base = system.config.channel_group
    group = ConfigGroup()
    group.CopyFrom(base)
    for section in sorted(group.groups):
        if section != "Orderer":
            del group.groups[section]
    consortium = base.groups["Consortiums"].groups[name]
    group.groups["Application"].CopyFrom(_application(system, consortium, application))
    group.values["Consortium"].value = canonical(Consortium(name=name))
    group.values["Consortium"].mod_policy = "Admins"
    if system.capabilities.resubmission:
        _zero_versions(group)
    else:
        group.mod_policy, group.version = "", 0  # as before Fabric 1.1
    return group


def _application(system: ChannelConfig, consortium: Any, written: Any) -> Any:
    """Make the template's application group: its members, and the policy that governs it."""
    governed_by = "ChannelCreationPolicy"
    if system.capabilities.creation_policy_as_admins and len(written.policies):
        # Old clients send `Admins` at version 0, as a new policy: the template must not have it.
        admins_new = "Admins" in written.policies and written.policies["Admins"].version == 0
        governed_by = governed_by if admins_new else "Admins"
    group = ConfigGroup(mod_policy=governed_by)
    policy = Policy.FromString(consortium.values["ChannelCreationPolicy"].value)
    group.policies[governed_by].CopyFrom(ConfigPolicy(policy=policy, mod_policy=governed_by))
    if not len(consortium.groups):
        return group
    if not len(written.groups):
        raise InvalidUpdate("the channel would have no members, but its consortium has some")
    for name in sorted(written.groups):
        if name not in consortium.groups:
            raise InvalidUpdate(f"{name} is not a member of the consortium")
        group.groups[name].CopyFrom(consortium.groups[name])
    return group


def _zero_versions(group: Any) -> None:
    group.version = 0
    for members in (group.values, group.policies):
        for name in sorted(members):
            members[name].version = 0
    for name in sorted(group.groups):
        _zero_versions(group.groups[name])
