"""Errors of identities, signatures and MSP definitions; each text is one sentence."""

from __future__ import annotations

from multicast.errors import AmcastError, UsageError


class UntrustedIdentity(AmcastError):
    """The creator is not an identity of the channel's organisations, or cannot be read."""


class BadSignature(AmcastError):
    """The signature does not verify for this identity and message, or is not canonical (low S)."""


class MalformedMsp(UsageError):
    """An organisation's MSP definition, or the node's MSP folder, cannot be used."""
