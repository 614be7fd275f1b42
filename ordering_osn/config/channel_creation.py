"""A new channel, made from the system channel's config (Fabric's msgprocessor/systemchannel).

In: the system channel's config and a CONFIG_UPDATE for a channel that does not exist. Out: the new
channel's first config, or `InvalidUpdate`. The same at every node: no clock, no signature of ours.

    template    the system channel's own values, policies and orderer group, all at version 0, and
                an application group with the asked-for members, governed by the consortium's
                creation policy; the update must be a valid update of it

The new channel's first config has sequence 1. An ORDERER_TRANSACTION of the system channel carries
it, and the CONFIG envelope inside is the data of the new channel's block 0.
"""

from __future__ import annotations

from typing import Any

from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope, canonical, decoded
from ordering_osn.config.channel_config import ChannelConfig, InvalidConfig, config_of
from ordering_osn.config.configtx import InvalidUpdate, update_of
from ordering_osn.protos import (
    Config,
    ConfigGroup,
    ConfigPolicy,
    Consortium,
    HeaderType,
    Policy,
)


def proposed_channel(system: ChannelConfig, update: Any) -> tuple[str, Any]:
    """Give the name and the first `ConfigEnvelope` of the channel that a CONFIG_UPDATE asks for."""
    try:
        name = ParsedEnvelope.of(update).header.channel_id
        wanted = update_of(update)
    except BadEnvelope as error:
        raise InvalidUpdate(f"the channel's creation cannot be read: {error}") from error
    if wanted.channel_id != name:
        raise InvalidUpdate(
            f"the channel's creation names two channels: {wanted.channel_id!r} and {name!r}"
        )
    try:
        template = ChannelConfig(name, Config(channel_group=_template(system, wanted.write_set)))
    except InvalidConfig as error:
        raise InvalidUpdate(f"no channel can be made of this update: {error}") from error
    envelope, _ = template.proposed(update)
    return name, envelope


def created_channel(envelope: bytes) -> tuple[str, bytes] | None:
    """Give the new channel's name and its CONFIG envelope: the data of its block 0.

    None where the system channel's envelope is no ORDERER_TRANSACTION.
    """
    parsed = ParsedEnvelope(envelope)
    if parsed.header.type != HeaderType.ORDERER_TRANSACTION:
        return None
    name, _ = config_of(parsed.payload.data)
    return name, bytes(parsed.payload.data)


def check_creation(system: ChannelConfig, envelope: bytes) -> None:
    """Raise `InvalidUpdate` unless this ORDERER_TRANSACTION carries what its update leads to."""
    try:
        created = created_channel(envelope)
        if created is None:
            raise InvalidUpdate("it creates no channel")
        name, carried = config_of(created[1])
    except BadEnvelope as error:
        raise InvalidUpdate(f"the channel's creation cannot be read: {error}") from error
    name_expected, expected = proposed_channel(system, carried.last_update)
    if name != name_expected or canonical(expected.config) != canonical(carried.config):
        raise InvalidUpdate("the channel's config is not the one that its update leads to")


def _template(system: ChannelConfig, wanted: Any) -> Any:
    if "Application" not in wanted.groups:
        raise InvalidUpdate("the update that creates a channel has no application group")
    application = wanted.groups["Application"]
    if application.version != 1:
        raise InvalidUpdate(
            f"the update that creates a channel sets its application group to version 1, "
            f"not {application.version}"
        )
    if "Consortium" not in wanted.values:
        raise InvalidUpdate("the update that creates a channel names no consortium")
    try:
        name = decoded(Consortium, wanted.values["Consortium"].value, "the consortium").name
    except BadEnvelope as error:
        raise InvalidUpdate(str(error)) from error
    if name not in system.consortiums:
        raise InvalidUpdate(f"there is no consortium {name!r}")
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


def _application(system: ChannelConfig, consortium: Any, wanted: Any) -> Any:
    """Make the template's application group: its members, and who may change it."""
    governed_by = "ChannelCreationPolicy"
    if system.capabilities.creation_policy_as_admins and len(wanted.policies):
        # An old client sends `Admins` at version 0, as a policy that is new beside the template's.
        admins_new = "Admins" in wanted.policies and wanted.policies["Admins"].version == 0
        governed_by = governed_by if admins_new else "Admins"
    group = ConfigGroup(mod_policy=governed_by)
    policy = Policy.FromString(consortium.values["ChannelCreationPolicy"].value)
    group.policies[governed_by].CopyFrom(ConfigPolicy(policy=policy, mod_policy=governed_by))
    if not len(consortium.groups):
        return group
    if not len(wanted.groups):
        raise InvalidUpdate("the channel would have no members, but its consortium has some")
    for name in sorted(wanted.groups):
        if name not in consortium.groups:
            raise InvalidUpdate(f"{name} is no member of the consortium")
        group.groups[name].CopyFrom(consortium.groups[name])
    return group


def _zero_versions(group: Any) -> None:
    group.version = 0
    for members in (group.values, group.policies):
        for name in sorted(members):
            members[name].version = 0
    for name in sorted(group.groups):
        _zero_versions(group.groups[name])
