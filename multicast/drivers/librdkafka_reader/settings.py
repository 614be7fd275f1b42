"""The settings that librdkafka's consumers share, and its logger."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from multicast.drivers.client_settings import (
    KNOWN,
    RECONNECT_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    UNKNOWN_TOPIC_S,
    check_client,
)

# librdkafka's least socket.connection.setup.timeout.ms.
_CONNECT_MS_MIN = 1000
# librdkafka warns unless socket.timeout.ms exceeds fetch.wait.max.ms (100, `driver.py`) by 1 s.
_ANSWER_MS_MIN = 1200
# An added partition is unknown until the next refresh; librdkafka's default is five minutes.
_METADATA_REFRESH_MS = 10_000

# Without a logger librdkafka writes to standard error.
LOG = logging.getLogger("amcast.librdkafka")
LOG.addHandler(logging.NullHandler())


def librdkafka_settings(
    bootstrap: str, client: Mapping[str, str], *, timeout_s: float
) -> dict[str, Any]:
    """Return the settings that consumers share; Kafka's names are librdkafka's."""
    check_client(client)
    return {
        "client.id": "amcast",
        "topic.metadata.refresh.interval.ms": _METADATA_REFRESH_MS,
        **{name: value for name, value in client.items() if name in KNOWN},
        "bootstrap.servers": bootstrap,
        "allow.auto.create.topics": False,
        "reconnect.backoff.ms": RETRY_BACKOFF_MS,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
        # "rebootstrap" resets the backoff whenever the last known broker is down, and so connects
        # some 80 times a second. Without it, a client that has dropped all its brokers gets none
        # (docs/hazards.md): `reader.py` replaces such a client.
        "metadata.recovery.strategy": "none",
        "socket.nagle.disable": True,
        # A connected broker that does not answer is treated as one that is down.
        "socket.timeout.ms": max(_ANSWER_MS_MIN, int(timeout_s * 1000)),
        "api.version.request.timeout.ms": int(timeout_s * 1000),
        "socket.connection.setup.timeout.ms": max(_CONNECT_MS_MIN, int(timeout_s * 1000)),
        "topic.metadata.propagation.max.ms": int(min(UNKNOWN_TOPIC_S, timeout_s / 2) * 1000),
    }
