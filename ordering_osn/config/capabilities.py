"""Capabilities: which behaviours a channel config switches on (Fabric's common/capabilities).

The names come from the value `Capabilities` of the channel, its orderer group and its application
group. A node must not run a config with a name that is not known here: peers of Fabric end for good
at the block of such a config.
"""

from __future__ import annotations

from dataclasses import dataclass

from ordering_osn.identity import MspRules

_CHANNEL_KNOWN = frozenset({"V1_1", "V1_3", "V1_4_2", "V1_4_3", "V2_0"})
_ORDERER_KNOWN = frozenset({"V1_1", "V1_4_2", "V2_0"})
_APPLICATION_ACLS = frozenset({"V1_2", "V1_3", "V1_4_2", "V2_0", "V2_5"})
_EXPERIMENTAL = {"V1_1_PVTDATA_EXPERIMENTAL", "V1_1_RESOURCETREE_EXPERIMENTAL"}
_APPLICATION_KNOWN = _APPLICATION_ACLS | {"V1_1"} | _EXPERIMENTAL


@dataclass(frozen=True, slots=True)
class CapabilitySet:
    """The capability names of one config, by group; a later version includes the earlier ones."""

    channel: frozenset[str] = frozenset()
    orderer: frozenset[str] = frozenset()
    application: frozenset[str] = frozenset()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names that this node does not know, sorted."""
        unknown = (self.channel - _CHANNEL_KNOWN) | (self.orderer - _ORDERER_KNOWN)
        return tuple(sorted(unknown | (self.application - _APPLICATION_KNOWN)))

    @property
    def resubmission(self) -> bool:
        """Whether a message validated again is posted again before it may enter a block.

        Also: expired identities are refused, and a new channel's template starts at version 0.
        """
        return bool(self.orderer & _ORDERER_KNOWN)

    @property
    def consensus_type_migration(self) -> bool:
        """Whether there is a maintenance mode, in which the consensus type may change."""
        return bool(self.orderer & {"V1_4_2", "V2_0"})

    @property
    def creation_policy_as_admins(self) -> bool:
        """Whether a new channel's Application group is governed by its own policy `Admins`."""
        return "V2_0" in self.orderer

    @property
    def channel_migration(self) -> bool:
        """Whether the consensus type may change, and organisations may have addresses."""
        return bool(self.channel & {"V1_4_2", "V1_4_3", "V2_0"})

    @property
    def msp_rules(self) -> MspRules:
        """By which rules organisations tell their members and administrators."""
        for names, rules in (
            ({"V1_4_3", "V2_0"}, MspRules.V1_4_3),
            ({"V1_3", "V1_4_2"}, MspRules.V1_3),
            ({"V1_1"}, MspRules.V1_1),
        ):
            if self.channel & names:
                return rules
        return MspRules.V1_0

    @property
    def acls(self) -> bool:
        """Whether the application group may hold ACLs."""
        return bool(self.application & _APPLICATION_ACLS)
