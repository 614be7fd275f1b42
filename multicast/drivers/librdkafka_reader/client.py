"""The settings of clients of the package; opens them, and stands in their place afterwards.

A client holds one of the process's 1,024 keys for thread-specific data (PTHREAD_KEYS_MAX), even a
closed one, until nothing refers to it. Its owner therefore lets go of it at the end: readers may be
kept, and Python looks for cycles among old objects too seldom.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Never

from confluent_kafka import KafkaException

from multicast.drivers.client_settings import (
    CONNECT_S,
    KNOWN,
    RECONNECT_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    UNKNOWN_TOPIC_S,
    check_client,
)
from multicast.errors import AmcastError, UsageError

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
        # some 80 times a second. Without it, a client finds no broker that has moved, and none once
        # it has dropped all (docs/hazards.md): `reader.py` replaces such a client.
        "metadata.recovery.strategy": "none",
        "socket.nagle.disable": True,
        # A connected broker that does not answer is treated as one that is down.
        "socket.timeout.ms": max(_ANSWER_MS_MIN, int(timeout_s * 1000)),
        "api.version.request.timeout.ms": int(timeout_s * 1000),
        "socket.connection.setup.timeout.ms": max(
            _CONNECT_MS_MIN, int(1000 * min(timeout_s, CONNECT_S))
        ),
        "topic.metadata.propagation.max.ms": int(min(UNKNOWN_TOPIC_S, timeout_s / 2) * 1000),
    }


def open_client(kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """Open a client of the package.

    Raises `UsageError` if librdkafka refuses the settings, and `AmcastError` if the process has
    too many clients.
    """
    try:
        return kind(dict(settings), logger=LOG)
    except (KafkaException, ValueError) as error:
        raise UsageError(f"librdkafka refuses the client settings: {error}.") from error
    except RuntimeError as error:
        raise AmcastError(
            f"This process has too many Kafka clients, about 1,000; close some, or use another "
            f"process ({error})."
        ) from error


class EndedClient:
    """Stands in place of a client that has ended: nothing comes, any other use is an error."""

    def __init__(self, error: UsageError) -> None:
        self._error = error

    def poll(self, _timeout_s: float) -> None:
        """Give nothing, at once."""

    def __getattr__(self, name: str) -> Never:
        raise self._error
