"""The client settings that every driver accepts, and the limits that the drivers share.

Settings have Kafka's own dotted names. This module rejects unknown ones, those that would touch
a guarantee, and impossible values; each driver translates the names for its client.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from multicast.errors import UsageError

CHECK_OF_NAMES = "ssl.endpoint.identification.algorithm"
UNCHECKED = ("", "none")  # its values that switch it off
KNOWN = (
    "client.id",
    "sasl.mechanism",
    "sasl.password",
    "sasl.username",
    "security.protocol",
    "ssl.ca.location",
    "ssl.certificate.location",
    CHECK_OF_NAMES,
    "ssl.key.location",
    "ssl.key.password",
)
# Only a `Producer` uses these; for every other client the drivers leave them out.
OF_PRODUCERS = ("batch.size", "compression.type", "linger.ms")
OF_GROUPS = ("group.instance.id", "session.timeout.ms")  # only an exclusive `Consumer` uses these
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_LINGER_MS_MAX = 900_000  # librdkafka's limit
_SESSION_MS_MAX = 1_800_000  # the brokers' group.max.session.timeout.ms, by default

# Why brokers refuse a record for its time, which every record gets from its machine's clock.
WRONG_CLOCK = (
    "its time differs too much from the broker's clock (the topic's message.timestamp.after.max.ms "
    "and message.timestamp.before.max.ms say how much it may): check the clock of this machine"
)
_ONCE = "no message is stored twice or out of order only if it stays as it is"
_DELIVERY = "delivery_timeout_s of the producer bounds it"
_REQUEST = "request_timeout_s bounds it"
_PARTITION = "the plan decides where a message goes; for keys, give the producer a partitioner"
_TRANSACTION = "nothing of the order uses a transaction (docs/hazards.md)"
_BUFFER = "the driver bounds what is in flight, and refuses more (BufferFull)"
_READER = "the order decides what a consumer reads, and its cursor from where"
_PEM = "the files are PEM, named by ssl.ca.location, ssl.certificate.location and ssl.key.location"
_BYTES = "payloads and keys are bytes, and every consumer gets them unchanged"
# Settings of Kafka's clients that are refused by name, each with the reason.
REFUSED = {
    "acks": "a message counts as accepted only once all in-sync replicas hold it",
    "request.required.acks": "a message counts as accepted only once all in-sync replicas hold it",
    "enable.idempotence": _ONCE,
    "enable.gapless.guarantee": _ONCE,
    "max.in.flight": _ONCE,
    "max.in.flight.requests.per.connection": _ONCE,
    "retries": _ONCE,
    "message.send.max.retries": _ONCE,
    "delivery.timeout.ms": _DELIVERY,
    "message.timeout.ms": _DELIVERY,
    "request.timeout.ms": _REQUEST,
    "socket.timeout.ms": _REQUEST,
    "max.block.ms": "block_s of the producer bounds it",
    "partitioner": _PARTITION,
    "partitioner.class": _PARTITION,
    "partitioner.ignore.keys": _PARTITION,
    "transactional.id": _TRANSACTION,
    "transaction.timeout.ms": _TRANSACTION,
    "buffer.memory": _BUFFER,
    "queue.buffering.max.messages": _BUFFER,
    "queue.buffering.max.kbytes": _BUFFER,
    "isolation.level": "a message of an aborted transaction must reach nobody",
    "enable.auto.commit": _READER,
    "auto.offset.reset": _READER,
    "group.id": "'group' of the consumer names it",
    "key.serializer": _BYTES,
    "value.serializer": _BYTES,
    "interceptor.classes": _BYTES,
    "allow.auto.create.topics": "'amcast topology apply' creates the topics",
    "bootstrap.servers": "'bootstrap' names the brokers",
    "sasl.mechanisms": "it is called sasl.mechanism",
    "sasl.jaas.config": "sasl.username and sasl.password say the same",
    "ssl.truststore.location": _PEM,
    "ssl.truststore.password": _PEM,
    "ssl.truststore.type": _PEM,
    "ssl.keystore.location": _PEM,
    "ssl.keystore.password": _PEM,
    "ssl.keystore.type": _PEM,
}

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
# Of a connection that is being made, name look-up and login included. What leads nowhere any more,
# as to a host that is gone, must not be waited for longer; a second SYN is sent after 1 s.
CONNECT_S = 4.0
# When no known broker has answered for so long, the bootstrap addresses are asked again: brokers
# may have other addresses now. A third would ask at each pause of a busy broker.
LOST_S = 3.0
# Of a message. Far above any broker's message.max.bytes (Kafka's default is 1 MB), so that the
# broker decides.
MESSAGE_BYTES_MAX = 100 * 1024 * 1024

_log = logging.getLogger("amcast.settings")

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")  # that need a name and a password only


class ProducerSettings(NamedTuple):
    """What the client settings say of a producer; None: they do not say."""

    linger_ms: int | None
    compression: str
    batch_bytes: int | None


def check_client(client: Mapping[str, str]) -> None:
    """Raise `UsageError` for an unknown or refused setting, and for an impossible value."""
    if not isinstance(client, Mapping) or not all(isinstance(name, str) for name in client):
        raise UsageError(f"The client settings are {client!r}; give them by their names.")
    for name in sorted(set(client) & set(REFUSED)):
        raise UsageError(f"Client setting {name} is refused: {REFUSED[name]}.")
    for name, value in client.items():
        if not isinstance(value, str):
            raise UsageError(  # without the value, which may be a password
                f"Client setting {name} is not a str but of type {type(value).__name__}; put the "
                f"value in quotes."
            )
    accepted = (*KNOWN, *OF_PRODUCERS, *OF_GROUPS)
    unknown = sorted(set(client) - set(accepted))
    if unknown:
        raise UsageError(
            f"Unknown client setting {', '.join(unknown)}; known are {', '.join(accepted)}."
        )
    protocol = client.get("security.protocol", "PLAINTEXT")
    if protocol.upper() not in PROTOCOLS:
        raise UsageError(
            f"Unknown security.protocol {protocol!r}; known are {', '.join(PROTOCOLS)}."
        )
    if protocol.upper().startswith("SASL"):
        _check_login(protocol, client)
    producer_settings(client)
    group_settings(client)
    if protocol.upper() == "SASL_PLAINTEXT":
        _warn(
            "security.protocol is SASL_PLAINTEXT: whoever sees the network reads all messages, and "
            "with sasl.mechanism PLAIN the password; SASL_SSL encrypts both"
        )
    unchecked = client.get(CHECK_OF_NAMES, "https").lower() in UNCHECKED
    if unchecked and protocol.upper().endswith("SSL"):
        _warn(
            f"{CHECK_OF_NAMES} is switched off: whoever has any certificate that is trusted here "
            f"can pass for a broker"
        )


@cache
def _warn(text: str) -> None:
    """Log it, once in a process."""
    _log.warning("%s", text)


def _check_login(protocol: str, client: Mapping[str, str]) -> None:
    mechanism = client.get("sasl.mechanism")
    if mechanism is not None and mechanism not in MECHANISMS:
        raise UsageError(
            f"Unknown sasl.mechanism {mechanism!r}; known are {', '.join(MECHANISMS)}."
        )
    missing = [
        name for name in ("sasl.mechanism", "sasl.username", "sasl.password") if name not in client
    ]
    if missing:
        raise UsageError(f"security.protocol {protocol} also needs {', '.join(missing)}.")


def producer_settings(client: Mapping[str, str]) -> ProducerSettings:
    """Read the settings in `OF_PRODUCERS`; raises `UsageError` for an impossible value."""
    compression = client.get("compression.type", "none")
    if compression not in CODECS:
        raise UsageError(
            f"Unknown compression.type {compression!r}; known are {', '.join(CODECS)}."
        )
    return ProducerSettings(
        linger_ms=_whole(client, "linger.ms", 0, _LINGER_MS_MAX),
        compression=compression,
        batch_bytes=_whole(client, "batch.size", 1, MESSAGE_BYTES_MAX),
    )


def group_settings(client: Mapping[str, str]) -> tuple[str | None, int | None]:
    """Read the settings in `OF_GROUPS`; raises `UsageError` for an impossible value."""
    instance = client.get("group.instance.id")
    if instance is not None and not re.fullmatch("[A-Za-z0-9._-]{1,249}", instance):
        raise UsageError(
            f"group.instance.id is {instance!r}; give 1 to 249 letters, digits, '.', '_' and '-'."
        )
    return instance, _whole(client, "session.timeout.ms", 1, _SESSION_MS_MAX)


def check_seconds(name: str, value: float, *, zero: bool = False) -> None:
    """Raise `UsageError` unless it is a time that a client can wait for, with `zero` also 0."""
    usable = isinstance(value, int | float) and value <= threading.TIMEOUT_MAX
    if not usable or not (value >= 0 if zero else value > 0):
        least = "0 or more" if zero else "more than 0"
        raise UsageError(f"{name} is {value!r}; give a number of seconds, {least}.")


def check_linger(linger_ms: int, delivery_timeout_s: float) -> None:
    """Raise `UsageError` unless half the delivery time-out is left for the brokers."""
    if not isinstance(linger_ms, int | float) or linger_ms < 0:
        raise UsageError(f"linger_ms is {linger_ms!r}; give a number of milliseconds, 0 or more.")
    if linger_ms > 500 * delivery_timeout_s:
        raise UsageError(
            f"Messages would linger for {linger_ms} ms, though their outcome is due within "
            f"{delivery_timeout_s:g} s; lower linger.ms (linger_ms) to half of that, or raise "
            f"delivery_timeout_s."
        )


def _whole(client: Mapping[str, str], name: str, least: int, most: int) -> int | None:
    text = client.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most))):
        number = None
    else:
        number = int(text)
    if number is None or not least <= number <= most:
        raise UsageError(f"{name} is {text!r}; give a whole number from {least} to {most}.")
    return number
