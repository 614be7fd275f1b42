"""The client settings that every driver takes, by Kafka's own dotted names.

In goes a mapping from configuration; out comes nothing, or a sentence about what is not known.
What a name means to a client is the driver's business.
"""

from __future__ import annotations

from collections.abc import Mapping

from multicast.errors import UsageError

KNOWN = (
    "client.id",
    "sasl.mechanism",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.location",
    "ssl.key.password",
)

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def check_client(client: Mapping[str, str]) -> None:
    """Raise `UsageError` for a name or a security protocol that no driver knows."""
    unknown = sorted(set(client) - set(KNOWN))
    if unknown:
        raise UsageError(
            f"Unknown client setting {', '.join(unknown)}; known are {', '.join(KNOWN)}."
        )
    protocol = client.get("security.protocol", "PLAINTEXT")
    if protocol.upper() not in _PROTOCOLS:
        raise UsageError(
            f"Unknown security.protocol {protocol!r}; known are {', '.join(_PROTOCOLS)}."
        )
