"""Settings that librdkafka's producers and consumers have in common, and where its words go."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from multicast.drivers.client_settings import check_client

MESSAGE_BYTES_MAX = 100 * 1024 * 1024

# Without a logger librdkafka writes to the standard error.
LOG = logging.getLogger("amcast.librdkafka")
LOG.addHandler(logging.NullHandler())


def _is_news(record: logging.LogRecord) -> bool:
    # Both speak of the setting by which a producer that must not go on stops; that it is replaced,
    # and why, we say ourselves (`appender.py`).
    text = record.getMessage()
    return "enable.gapless.guarantee" not in text and "GAPLESS" not in text.upper().replace("-", "")


LOG.addFilter(_is_news)


def librdkafka_settings(
    bootstrap: str, client: Mapping[str, str], *, timeout_s: float
) -> dict[str, Any]:
    """Give what producers and consumers have in common; the dotted names are librdkafka's own."""
    check_client(client)
    return {
        "client.id": "amcast",
        # A partition that was added is refused as unknown until this; the default is five minutes.
        "topic.metadata.refresh.interval.ms": 10_000,
        **client,
        "bootstrap.servers": bootstrap,
        "allow.auto.create.topics": False,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 500,
        # "rebootstrap" forgets the backoff each time the last known broker is away, and so connects
        # some 80 times a second. The addresses of `bootstrap.servers` are tried in any case.
        "metadata.recovery.strategy": "none",
        "socket.nagle.disable": True,
        # A broker that is connected but silent is as good as one that is away.
        "socket.timeout.ms": max(1200, int(timeout_s * 1000)),
        "api.version.request.timeout.ms": int(timeout_s * 1000),
        "socket.connection.setup.timeout.ms": max(1000, int(timeout_s * 1000)),
        # A topic that was just made may be unknown to a broker for a moment.
        "topic.metadata.propagation.max.ms": int(min(3.0, timeout_s / 2) * 1000),
    }
