"""Apply config updates: decide whether a CONFIG_UPDATE is allowed, and which config results.

The result is the `ConfigEnvelope` to order, or `InvalidUpdate`. `channel_config` decides whether
the resulting config is valid.

    element    a group, value or policy of the config tree; each has a version and a mod_policy
    read set   the elements that an update depends on, with the versions that they must have
    write set  the elements after the update
    delta      the write set without the elements that the read set names at the same version

Rules (Fabric's common/configtx):

    - Each element of the read set exists, at the version given.
    - Each element of the delta is new, at version 0; or it exists, its version grows by one, and
      the update's signatures meet the existing element's mod_policy.
    - A group of the delta has exactly the members that it names; others are removed.
    - With capabilities of the orderer, elements without a mod_policy get "Admins": what the tools
      of Fabric 1.0 left out, each later version fills in with the next update.

Elements are visited in sorted order, so that all nodes refuse an update with the same text.
Invariant: the sequence grows by one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from multicast.errors import UsageError
from ordering_osn.chain.bundles.wire_format import BadWireFormat, fields
from ordering_osn.chain.envelopes import BadEnvelope, ParsedEnvelope, canonical, decoded
from ordering_osn.config.policies import SIGNATURES_MAX, Policies, PolicyNotMet, SignedData, resolve
from ordering_osn.protos import (
    Config,
    ConfigEnvelope,
    ConfigGroup,
    ConfigUpdate,
    ConfigUpdateEnvelope,
    HeaderType,
    SignatureHeader,
)
from ordering_osn.quoting import quoted

ROOT = "Channel"
NAME_LENGTH_MAX = 249  # Kafka's limit for a topic name, which Fabric applies to all names
# Fields of an update: five for a group, one for a value or policy, in the read and the write set.
# One of all members of a channel of 500 organisations has about so many; ten times more take 2 s.
_FIELDS_MAX = 20_000
# Where an update's groups stand: in read set and write set; a group's groups, as values of a map.
_GROUP: dict[int, Any] = {}
_GROUP[2] = {2: _GROUP}
_UPDATE = {2: _GROUP, 3: _GROUP}
_CHANNEL_ID = re.compile(r"[a-z][a-z0-9.-]*", re.ASCII)
_ELEMENT_NAME = re.compile(r"[a-zA-Z0-9.-]+", re.ASCII)


class InvalidUpdate(UsageError):
    """A config update is refused; the text gives the reason."""


class Current(Protocol):
    """The config that an update starts from."""

    @property
    def channel_id(self) -> str:
        """The channel's ID."""

    @property
    def config(self) -> Any:
        """The proto `Config`."""

    @property
    def policies(self) -> Policies:
        """The policies of that config."""


class Key(NamedTuple):
    """The address of an element: its kind ("Group", "Value", "Policy") and path from the root."""

    kind: str
    path: tuple[str, ...]

    def __str__(self) -> str:
        return f"[{self.kind}] /{'/'.join(self.path)}"

    @property
    def group_path(self) -> str:
        """The path of the group whose policies its mod_policy names."""
        return "/" + "/".join(self.path if self.kind == "Group" else self.path[:-1])


_CAPABILITIES = Key("Value", (ROOT, "Orderer", "Capabilities"))
_MOD_POLICY = "Admins"


def check_channel_id(name: str) -> None:
    """Raise `InvalidUpdate` unless `name` is a valid channel ID, for Kafka and for CouchDB."""
    _check_name(name, _CHANNEL_ID, "channel ID")


def propose(current: Current, update: Any) -> Any:
    """Apply a CONFIG_UPDATE `Envelope`; returns the `ConfigEnvelope`, at sequence + 1.

    Raises `InvalidUpdate`. The result depends on the arguments only.
    """
    try:
        group = _result(current, _update_envelope_of(update))
    except BadEnvelope as error:
        raise InvalidUpdate(f"the config update cannot be read: {error}") from error
    config = Config(sequence=current.config.sequence + 1, channel_group=group)
    return ConfigEnvelope(config=config, last_update=update)


def validate(current: Current, proposed: Any) -> None:
    """Raise `InvalidUpdate` unless this `ConfigEnvelope` follows from `current` by its update."""
    if not proposed.HasField("config"):
        raise InvalidUpdate("the config envelope holds no config")
    sequence = current.config.sequence
    if proposed.config.sequence != sequence + 1:
        raise InvalidUpdate(
            f"the config is at sequence {sequence}: "
            f"a config of sequence {proposed.config.sequence} does not follow it"
        )
    expected = propose(current, proposed.last_update)
    if canonical(expected.config) != canonical(proposed.config):
        raise InvalidUpdate("the update in the config envelope does not lead to its config")


def elements(group: Any) -> dict[Key, Any]:
    """List all elements of a config tree, parents first, names sorted."""
    return dict(_walk((ROOT,), group))


def update_of(envelope: Any) -> Any:
    """Read the `ConfigUpdate` inside a CONFIG_UPDATE `Envelope`; raises `BadEnvelope`."""
    return _decoded_update(_update_envelope_of(envelope))


def signatures_of(envelope: Any) -> list[SignedData]:
    """Read the signatures of a CONFIG_UPDATE `Envelope`, unverified; raises `BadEnvelope`."""
    return _signed(_update_envelope_of(envelope))


def _check_name(name: str, allowed: re.Pattern[str], what: str) -> None:
    if not name:
        raise InvalidUpdate(f"a {what} cannot be empty")
    if len(name) > NAME_LENGTH_MAX:
        raise InvalidUpdate(f"a {what} cannot be longer than {NAME_LENGTH_MAX} characters")
    if name in (".", ".."):
        raise InvalidUpdate(f"the {what} {name!r} is not allowed")
    if not allowed.fullmatch(name):
        raise InvalidUpdate(f"the {what} {name!r} contains illegal characters")


def _walk(path: tuple[str, ...], group: Any) -> Iterator[tuple[Key, Any]]:
    _check_name(path[-1], _ELEMENT_NAME, "config element's name")
    yield Key("Group", path), group
    for kind, members in (("Value", group.values), ("Policy", group.policies)):
        for name in sorted(members):
            _check_name(name, _ELEMENT_NAME, "config element's name")
            yield Key(kind, (*path, name)), members[name]
    for name in sorted(group.groups):
        yield from _walk((*path, name), group.groups[name])


def _update_envelope_of(envelope: Any) -> Any:
    parsed = ParsedEnvelope.of(envelope)
    kind = parsed.header.type
    if kind != HeaderType.CONFIG_UPDATE:
        raise BadEnvelope(f"its header type is {kind}, not CONFIG_UPDATE")
    raw = parsed.payload.data
    _refuse_many(raw, {}, SIGNATURES_MAX, "the config update envelope")
    return decoded(ConfigUpdateEnvelope, raw, "the config update envelope")


def _decoded_update(envelope: Any) -> Any:
    raw = envelope.config_update
    _refuse_many(raw, _UPDATE, _FIELDS_MAX, "the config update")
    return decoded(ConfigUpdate, raw, "the config update")


def _refuse_many(raw: bytes, groups: Mapping[int, Any], most: int, what: str) -> None:
    """Raise `BadEnvelope` for a message of too many fields, BEFORE a library makes objects of it.

    `groups`: the fields that are counted inside, too.
    """
    todo = [(memoryview(raw), groups)]
    try:
        while todo:
            message, inside = todo.pop()
            for field, value in fields(message, what):
                most -= 1
                if most < 0:
                    raise BadEnvelope(f"{what} has more fields than this node reads")
                if field in inside and isinstance(value, memoryview):
                    todo.append((value, inside[field]))
    except BadWireFormat as error:
        raise BadEnvelope(str(error)) from error


def _signed(envelope: Any) -> list[SignedData]:
    """Read the signatures of a `ConfigUpdateEnvelope`; each covers its own header, too."""
    signed = []
    for signature in envelope.signatures:
        header = decoded(SignatureHeader, signature.signature_header, "a signature header")
        data = signature.signature_header + envelope.config_update
        signed.append(SignedData(data, header.creator, signature.signature))
    return signed


def _result(current: Current, envelope: Any) -> Any:
    """Return the channel group after the update; raises `InvalidUpdate`."""
    update = _decoded_update(envelope)
    if update.channel_id != current.channel_id:
        raise InvalidUpdate(
            f"the config update is for channel {quoted(update.channel_id)}, "
            f"not {current.channel_id!r}"
        )
    existing = elements(current.config.channel_group)
    read = elements(update.read_set) if update.HasField("read_set") else {}
    _check_read_set(existing, read)
    written = elements(update.write_set) if update.HasField("write_set") else {}
    delta = {
        key: element
        for key, element in written.items()
        if key not in read or read[key].version != element.version
    }
    _check_delta(existing, delta, current.policies, _signed(envelope))
    group = _assembled((ROOT,), {**existing, **delta})
    if canonical(group) == canonical(current.config.channel_group):
        raise InvalidUpdate(
            "the update would have no effect: no group names the elements that it adds"
        )
    if _CAPABILITIES in existing or _CAPABILITIES in delta:
        for element in elements(group).values():
            element.mod_policy = element.mod_policy or _MOD_POLICY
    return group


def _check_read_set(existing: Mapping[Key, Any], read: Mapping[Key, Any]) -> None:
    for key, element in read.items():
        if key not in existing:
            raise InvalidUpdate(f"{key} is in the read set, but not in the config")
        if existing[key].version != element.version:
            raise InvalidUpdate(
                f"the update requires {key} at version {element.version}, "
                f"but it is at version {existing[key].version}"
            )


def _check_delta(
    existing: Mapping[Key, Any],
    delta: Mapping[Key, Any],
    policies: Policies,
    signed: Sequence[SignedData],
) -> None:
    if not delta:
        raise InvalidUpdate("the update would have no effect: it changes nothing")
    governed: dict[str, Key] = {}  # by the path of the policy to meet
    for key, element in delta.items():
        _check_mod_policy(key, element.mod_policy)
        if key not in existing:
            if element.version != 0:
                raise InvalidUpdate(
                    f"the update sets {key} to version {element.version}, but it does not exist"
                )
            continue
        version = existing[key].version
        if element.version != version + 1:
            raise InvalidUpdate(
                f"the update sets {key} to version {element.version}, "
                f"but it is at version {version}"
            )
        governed.setdefault(resolve(key.group_path, existing[key].mod_policy), key)
    signers = policies.signers(signed)
    for path, key in governed.items():
        try:
            policies.check(path, signers)
        except PolicyNotMet as error:
            raise InvalidUpdate(f"the policy for {key} is not met: {error}") from error


def _check_mod_policy(key: Key, mod_policy: str) -> None:
    if not mod_policy:
        raise InvalidUpdate(f"{key} has no mod_policy")
    for name in mod_policy.removeprefix("/").split("/"):
        _check_name(name, _ELEMENT_NAME, f"part of the mod_policy of {key}")


def _assembled(path: tuple[str, ...], all_elements: Mapping[Key, Any]) -> Any:
    """Build the group at `path` from the newest version of each member that it names."""
    own = all_elements[Key("Group", path)]
    group = ConfigGroup()
    group.CopyFrom(own)
    for name in sorted(own.values):
        group.values[name].CopyFrom(_member("Value", (*path, name), all_elements))
    for name in sorted(own.policies):
        group.policies[name].CopyFrom(_member("Policy", (*path, name), all_elements))
    for name in sorted(own.groups):
        _member("Group", (*path, name), all_elements)
        group.groups[name].CopyFrom(_assembled((*path, name), all_elements))
    return group


def _member(kind: str, path: tuple[str, ...], all_elements: Mapping[Key, Any]) -> Any:
    key = Key(kind, path)
    if key not in all_elements:
        raise InvalidUpdate(f"{key} is named by its group, but it does not exist")
    return all_elements[key]
