"""The client settings that every driver accepts, and the limits that the drivers share.

Settings have Kafka's own dotted names. This module only rejects unknown ones; each driver
translates the names for its client.
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

# Of a request, by default. A cluster with Kafka's defaults takes 8-9 s (measured) to replace a dead
# leader, so a shorter time-out would fail requests that a new leader answers.
REQUEST_TIMEOUT_S = 10.0
# From an append to its outcome, by default: a quarter of Kafka's delivery.timeout.ms. With ten
# times more, a caller would wait five minutes to learn that an outcome is unknown; with a tenth, a
# dead leader would make outcomes unknown that are accepted now.
DELIVERY_TIMEOUT_S = 30.0
# A broker may not know a new topic for a moment, so only a longer absence is an error. A call with
# a short time-out waits for half of it.
UNKNOWN_TOPIC_S = 3.0
# Before a failed request or connection is repeated; Kafka's default is 100 ms. After an election,
# messages continue this much sooner, for 50 requests a second to each broker meanwhile.
RETRY_BACKOFF_MS = 20
# A broker that restarts is used again at most this much later; by default the clients wait up to
# 30 s (kafka-python) and 10 s (librdkafka).
RECONNECT_BACKOFF_MAX_MS = 500
# Of a message. Far above any broker's message.max.bytes (Kafka's default is 1 MB), so that the
# broker decides.
MESSAGE_BYTES_MAX = 100 * 1024 * 1024

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
