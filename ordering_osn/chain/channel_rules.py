"""What a chain asks of its channel: the config in force, and its judgement of transactions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ordering_osn.chain.records import RegularKind


class Invalid(ValueError):
    """The rules of the channel refuse a transaction; the text says why."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """What the channel's config tells the orderer. `sequence` counts the configs.

    `resubmission`: the capability of that name. Without it a transaction is judged where it is
    consumed, and every node must then come to the same verdict.
    """

    sequence: int
    messages_max: int
    bytes_preferred: int
    bytes_absolute: int
    timeout_s: float
    resubmission: bool


class Rules(Protocol):
    """The channel's config in force. Immutable: a new config is a new object."""

    @property
    def parameters(self) -> Parameters:
        """What the config tells the orderer."""

    def judge(self, envelope: bytes, kind: RegularKind) -> bytes:
        """Judge a stale transaction now. Gives the envelope to order; of a config, a new envelope.

        Raises `Invalid`.
        """

    def after(self, envelope: bytes) -> Rules:
        """Give the rules once this config is in a block: the same at every node, at any time.

        The creation of a channel (ORDERER_TRANSACTION) does not change them. Raises `Invalid` for
        an envelope that holds no config of this channel, or not the next one.
        """
