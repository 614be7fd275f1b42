"""Opens a driver by its name; each client is imported only where it is used."""

from __future__ import annotations

from collections.abc import Mapping

from multicast.errors import UsageError
from multicast.log import Driver


def open_driver(name: str, bootstrap: str, client: Mapping[str, str]) -> Driver:
    """Open "librdkafka" or "kafka-python"; raises `UsageError` for another name."""
    if name == "librdkafka":
        from multicast.librdkafka import LibrdkafkaDriver  # noqa: PLC0415

        return LibrdkafkaDriver(bootstrap, client)
    if name == "kafka-python":
        from multicast.kafka_python import KafkaPythonDriver  # noqa: PLC0415

        return KafkaPythonDriver(bootstrap, client)
    raise UsageError(f"driver {name!r} is unknown; choose librdkafka or kafka-python")
