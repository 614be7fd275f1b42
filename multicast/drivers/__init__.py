"""Which driver is meant by which name.

In goes a name from configuration; out comes an open driver. The clients' packages are imported
only when asked for: each of them costs time to load, and one may be missing.
"""

from __future__ import annotations

from collections.abc import Mapping

from multicast.drivers.protocol import Driver
from multicast.errors import UsageError

DRIVERS = ("kafka-python", "librdkafka")


def open_driver(
    name: str,
    bootstrap: str,
    client: Mapping[str, str] | None = None,
    *,
    request_timeout_s: float = 10.0,
    delivery_timeout_s: float = 30.0,
) -> Driver:
    """Open a way to the cluster at `bootstrap` ("host:port,host:port").

    `client` are Kafka's client settings by their dotted names (`client_settings.KNOWN`). Raises
    `UsageError` for an unknown name or addresses that are none, `ClusterUnreachable` where nobody
    answers in time.
    """
    if not isinstance(bootstrap, str) or not all(one.strip() for one in bootstrap.split(",")):
        raise UsageError(
            f"the bootstrap addresses are {bootstrap!r}; give one or more of the brokers' "
            f'addresses as "host:port,host:port"'
        )
    if name == "kafka-python":
        from multicast.drivers.kafka_python import KafkaPythonDriver  # noqa: PLC0415

        return KafkaPythonDriver(
            bootstrap,
            client,
            request_timeout_s=request_timeout_s,
            delivery_timeout_s=delivery_timeout_s,
        )
    if name == "librdkafka":
        from multicast.drivers.kafka_python import KafkaPythonDriver  # noqa: PLC0415
        from multicast.drivers.librdkafka import LibrdkafkaDriver  # noqa: PLC0415

        return LibrdkafkaDriver(
            bootstrap,
            client,
            questions=KafkaPythonDriver(bootstrap, client, request_timeout_s=request_timeout_s),
            request_timeout_s=request_timeout_s,
            delivery_timeout_s=delivery_timeout_s,
        )
    raise UsageError(f"Unknown driver {name!r}; known are {', '.join(DRIVERS)}.")
