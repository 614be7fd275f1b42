"""What the capability names of a channel config switch on (Fabric's common/capabilities).

In: the names that stand in the values `Capabilities` of the channel, its orderer and its
application group. Out: the behaviours that ordering asks about. A name of the channel or the
orderer group that is not known here means that this node must not run the config.
"""

from __future__ import annotations

from dataclasses import dataclass

_CHANNEL_KNOWN = frozenset({"V1_1", "V1_3", "V1_4_2", "V1_4_3", "V2_0"})
_ORDERER_KNOWN = frozenset({"V1_1", "V1_4_2", "V2_0"})
_APPLICATION_ACLS = frozenset({"V1_2", "V1_3", "V1_4_2", "V2_0", "V2_5"})


@dataclass(frozen=True, slots=True)
class CapabilitySet:
    """The names of one config, by group; a later name includes what earlier ones switched on."""

    channel: frozenset[str] = frozenset()
    orderer: frozenset[str] = frozenset()
    application: frozenset[str] = frozenset()

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names that this node does not know, sorted; the application's are the peers' business."""
        return tuple(sorted((self.channel - _CHANNEL_KNOWN) | (self.orderer - _ORDERER_KNOWN)))

    @property
    def resubmission(self) -> bool:
        """Whether a message that is judged anew is posted again, not put into a block at once.

        Also: expired identities are refused, and a new channel's template starts at version 0.
        """
        return bool(self.orderer & _ORDERER_KNOWN)

    @property
    def consensus_type_migration(self) -> bool:
        """The orderer group has a maintenance mode, and may change its consensus type in it."""
        return bool(self.orderer & {"V1_4_2", "V2_0"})

    @property
    def creation_policy_as_admins(self) -> bool:
        """A new channel's Application group is governed by its own policy `Admins`."""
        return "V2_0" in self.orderer

    @property
    def channel_migration(self) -> bool:
        """The channel lets its consensus type change; and organisations may name addresses."""
        return bool(self.channel & {"V1_4_2", "V1_4_3", "V2_0"})

    @property
    def acls(self) -> bool:
        """The application group may hold ACLs."""
        return bool(self.application & _APPLICATION_ACLS)
