"""The maintenance filter: how a config update may change the consensus type (Fabric's rules).

An update that starts or ends maintenance mode may change nothing else. The consensus type may
change in maintenance mode only.
"""

from __future__ import annotations

from typing import Any

from ordering_osn.config.channel_config import ChannelConfig
from ordering_osn.config.configtx import InvalidUpdate, update_of
from ordering_osn.protos import ConsensusType
from ordering_osn.quoting import quoted

_TYPES = ("etcdraft", "kafka", "solo")


def check_transition(config: ChannelConfig, following: ChannelConfig, update: Any) -> None:
    """Raise `InvalidUpdate` unless a CONFIG_UPDATE may turn `config` into `following`.

    `update` is the CONFIG_UPDATE `Envelope`.
    """
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
                f"the update changes the consensus type from {now.type} to {then.type} "
                "outside maintenance mode"
            )
        if then.type not in _TYPES:
            raise InvalidUpdate(
                f"the consensus type cannot change to {quoted(then.type)}; "
                f"use one of {', '.join(_TYPES)}"
            )


def _check_nothing_else(written: Any) -> None:
    """Raise `InvalidUpdate` where the write set has more than /Channel/Orderer/ConsensusType."""
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
