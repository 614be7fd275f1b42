"""What is wrong with an identity, a signature or an organisation's description, in one sentence."""

from __future__ import annotations

from multicast.errors import AmcastError, UsageError


class UntrustedIdentity(AmcastError):
    """The creator is no identity of the channel's organisations (or none at all)."""


class BadSignature(AmcastError):
    """The signature is not this identity's over this message, or not in its canonical form."""


class MalformedMsp(UsageError):
    """An organisation's MSP definition, or this node's MSP folder, cannot be used."""
