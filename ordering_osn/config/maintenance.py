"""What a config update may change of the consensus type (Fabric's maintenance filter).

In: the config as it is, the one that an update leads to, and the update. A channel goes into
maintenance mode, and out of it, by an update that does nothing else; the consensus type changes
inside only.
"""

from __future__ import annotations

from typing import Any

from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.configtx import InvalidUpdate, update_of
from ordering_osn.protos import ConsensusType

_TYPES = ("etcdraft", "kafka", "solo")


def check_transition(config: ChannelConfig, following: ChannelConfig, update: Any) -> None:
    """Raise `InvalidUpdate` where a CONFIG_UPDATE `Envelope` may not lead from one to the other."""
    now, then = (each.orderer["ConsensusType"] for each in (config, following))
    if not config.capabilities.consensus_type_migration:
        if then.state != ConsensusType.STATE_NORMAL:
            raise InvalidUpdate("the update starts maintenance mode, without the capability for it")
        if now.type != then.type:
            raise InvalidUpdate(
                f"the update changes the consensus type from {now.type} to {then.type}, "
                "without the capability for it"
            )
        return
    if now.state != then.state:
        _check_nothing_else(update_of(update).write_set)
        if now.type != then.type or now.metadata != then.metadata:
            raise InvalidUpdate(
                "an update that starts or ends maintenance mode may change neither the consensus "
                "type nor its metadata"
            )
    if now.type != then.type:
        if not config.maintenance:
            raise InvalidUpdate(
                f"the consensus type changes from {now.type} to {then.type}, "
                "and that outside maintenance mode"
            )
        if then.type not in _TYPES:
            raise InvalidUpdate(f"the consensus type cannot change to {then.type!r}")


def _check_nothing_else(written: Any) -> None:
    """Raise `InvalidUpdate` where more is written than /Channel/Orderer/ConsensusType."""
    orderer = written.groups.get("Orderer")
    if (
        orderer is None
        or len(written.values)
        or len(written.groups) > 1
        or len(orderer.groups)
        or list(orderer.values) != ["ConsensusType"]
    ):
        raise InvalidUpdate(
            "an update that starts or ends maintenance mode may change nothing else"
        )
