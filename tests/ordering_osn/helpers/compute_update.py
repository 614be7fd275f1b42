"""Make config updates: compute the smallest update between two configs, sign it, wrap it.

The result is a CONFIG_UPDATE envelope for Broadcast. For Fabric, configtxlator and the client's
tools do this.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from multicast.errors import UsageError
from ordering_osn.chain.envelopes import Signer, canonical, signed_envelope
from ordering_osn.protos import (
    Config,
    ConfigGroup,
    ConfigPolicy,
    ConfigSignature,
    ConfigUpdate,
    ConfigUpdateEnvelope,
    ConfigValue,
    Consortium,
    HeaderType,
    SignatureHeader,
)


class NothingChanged(UsageError):
    """The two configs are the same: there is no update between them."""


def copy_of(config: Any) -> Any:
    """Return a copy of a `Config`, which may be changed."""
    copied = Config()
    copied.CopyFrom(config)
    return copied


def group_at(config: Any, *path: str) -> Any:
    """Return the group at a path below the root, as `group_at(config, "Orderer")`.

    Raises `UsageError` where there is no such group.
    """
    group = config.channel_group
    for name in path:
        if name not in group.groups:
            raise UsageError(f"the config has no group {'/'.join(path)}")
        group = group.groups[name]
    return group


def set_value(group: Any, name: str, message: Any, *, mod_policy: str = "Admins") -> None:
    """Set a group's value; an existing value keeps its mod_policy."""
    if name not in group.values:
        group.values[name].mod_policy = mod_policy
    group.values[name].value = canonical(message)


def make_update(original: Any, changed: Any, channel: str) -> Any:
    """Make the smallest `ConfigUpdate` that turns the `Config` `original` into `changed`.

    Versions in `changed` do not matter. Raises `NothingChanged`.
    """
    read, written, differs = _compared(original.channel_group, changed.channel_group)
    if not differs:
        raise NothingChanged("the two configs are the same")
    return ConfigUpdate(channel_id=channel, read_set=read, write_set=written)


def make_creation(channel: str, consortium: str, members: Sequence[str], policies: Any) -> Any:
    """Make the `ConfigUpdate` that asks a system channel to create `channel`.

    `members` are members of the consortium; `policies` are the new application group's policies
    by name (`ConfigPolicy` messages).
    """
    read, written = ConfigGroup(), ConfigGroup()
    for group in (read, written):
        group.values["Consortium"].value = canonical(Consortium(name=consortium))
        for name in members:
            group.groups["Application"].groups.get_or_create(name)
    read.values["Consortium"].value = b""
    application = written.groups["Application"]
    application.version, application.mod_policy = 1, "Admins"
    for name in sorted(policies):
        application.policies[name].CopyFrom(policies[name])
    # The template has `Admins` already, as the consortium's creation policy: this replaces it.
    if "Admins" in application.policies:
        application.policies["Admins"].version = 1
    return ConfigUpdate(channel_id=channel, read_set=read, write_set=written)


def signature_over(update: Any, signer: Signer) -> Any:
    """Make one organisation's `ConfigSignature` over a `ConfigUpdate`."""
    header = canonical(SignatureHeader(creator=signer.creator, nonce=signer.nonce()))
    return ConfigSignature(
        signature_header=header, signature=signer.sign(header + canonical(update))
    )


def update_envelope(
    update: Any, *, signers: Sequence[Signer], sender: Signer, now: datetime
) -> bytes:
    """Make a CONFIG_UPDATE envelope: `update` signed by each of `signers`, sent by `sender`."""
    signed = ConfigUpdateEnvelope(
        config_update=canonical(update),
        signatures=[signature_over(update, signer) for signer in signers],
    )
    return signed_envelope(
        HeaderType.CONFIG_UPDATE, update.channel_id, canonical(signed), signer=sender, now=now
    )


def _compared(original: Any, changed: Any) -> tuple[Any, Any, bool]:
    """Return the read set and write set of one group, and whether it differs at all."""
    read = ConfigGroup(version=original.version)
    written = ConfigGroup(version=original.version)
    same: list[tuple[str, str]] = []
    members_differ = original.mod_policy != changed.mod_policy
    differs = False
    for kind in ("values", "policies", "groups"):
        before, after = getattr(original, kind), getattr(changed, kind)
        members_differ |= sorted(before) != sorted(after)
        for name in sorted(after):
            if name not in before:
                getattr(written, kind)[name].CopyFrom(_new(kind, after[name]))
            elif _entered((read, written), kind, name, before[name], after[name]):
                differs = True
            else:
                same.append((kind, name))
    if members_differ:
        written.version, written.mod_policy = original.version + 1, changed.mod_policy
        for kind, name in same:
            version = getattr(original, kind)[name].version
            for group in (read, written):
                getattr(group, kind)[name].version = version
    return read, written, differs or members_differ


def _entered(sets: tuple[Any, Any], kind: str, name: str, before: Any, after: Any) -> bool:
    """Add a member of both configs to the sets if it differs; returns whether it does."""
    read, written = sets
    if kind == "groups":
        inner_read, inner_written, differs = _compared(before, after)
        if differs:
            read.groups[name].CopyFrom(inner_read)
            written.groups[name].CopyFrom(inner_written)
        return differs
    if canonical(_new(kind, before)) == canonical(_new(kind, after)):
        return False
    element = _new(kind, after)
    element.version = before.version + 1
    getattr(written, kind)[name].CopyFrom(element)
    return True


def _new(kind: str, element: Any) -> Any:
    """Copy an element with all versions 0, as a new one has."""
    if kind == "values":
        return ConfigValue(value=element.value, mod_policy=element.mod_policy)
    if kind == "policies":
        fresh = ConfigPolicy(mod_policy=element.mod_policy)
        if element.HasField("policy"):
            fresh.policy.CopyFrom(element.policy)
        return fresh
    group = ConfigGroup(mod_policy=element.mod_policy)
    for each in ("values", "policies", "groups"):
        for name in sorted(getattr(element, each)):
            member = _new(each, getattr(element, each)[name])
            getattr(group, each)[name].CopyFrom(member)
    return group
