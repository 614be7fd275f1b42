"""The client settings that every driver accepts, by Kafka's own dotted names.

This module only rejects unknown settings; each driver translates the names for its client.
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
    """Raise `UsageError` for an unknown setting or security protocol."""
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
