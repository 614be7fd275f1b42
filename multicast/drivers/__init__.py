"""Opens the driver that a configuration names.

A client's package is imported only when its driver is opened, because it takes time to load and
may not be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial

from multicast.drivers.client_settings import DELIVERY_TIMEOUT_S, PROTOCOLS, REQUEST_TIMEOUT_S
from multicast.drivers.protocol import Driver
from multicast.errors import UsageError

DRIVERS = ("kafka-python", "librdkafka")
# Packages that replace Python's threads in a whole process: by whom to ask whether they have, and
# the drivers that work nevertheless. librdkafka waits outside of Python, and all else with it;
# eventlet takes away `select.poll`.
_PATCHERS = {
    "gevent": ("gevent.monkey", "is_module_patched", "threading", ("kafka-python",)),
    "eventlet": ("eventlet.patcher", "is_monkey_patched", "thread", ()),
}


def open_driver(
    name: str,
    bootstrap: str,
    client: Mapping[str, str] | None = None,
    *,
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    delivery_timeout_s: float = DELIVERY_TIMEOUT_S,
) -> Driver:
    """Open the driver `name` for the cluster at `bootstrap` ("host:port,host:port").

    `client` holds Kafka's client settings by their dotted names (`client_settings`). Blocks
    until a broker answers, `request_timeout_s` at most. Raises `UsageError` for an unknown name, an
    unknown setting or unusable addresses, `AccessDenied` if the brokers refuse, and
    `ClusterUnreachable` if no broker answers in time.
    """
    if (
        not isinstance(bootstrap, str)
        or not all(_is_address(address.strip()) for address in bootstrap.split(","))
        or bootstrap.encode(errors="ignore").decode() != bootstrap  # half of a surrogate pair
    ):
        raise UsageError(
            f"the bootstrap addresses are {bootstrap!r}; give one or more of the brokers' "
            f'addresses as "host:port,host:port"'
        )
    _refuse_patched(name)
    if name not in DRIVERS:
        raise UsageError(f"Unknown driver {name!r}; known are {', '.join(DRIVERS)}.")
    from multicast.drivers.kafka import KafkaPythonDriver  # noqa: PLC0415

    open_plain = partial(
        KafkaPythonDriver,
        bootstrap,
        client,
        request_timeout_s=request_timeout_s,
        delivery_timeout_s=delivery_timeout_s,
    )
    if name == "kafka-python":
        return open_plain()
    from multicast.drivers.librdkafka_reader import LibrdkafkaDriver  # noqa: PLC0415

    return LibrdkafkaDriver(
        bootstrap, client, delegate=open_plain(), request_timeout_s=request_timeout_s
    )


def _refuse_patched(name: str) -> None:
    """Raise `UsageError` where a driver would wait for ever for threads that are none."""
    for package, (module, asked, of, working) in _PATCHERS.items():
        patcher = sys.modules.get(module)
        if patcher is not None and name not in working and getattr(patcher, asked)(of):
            ways = [f"choose driver {other}" for other in working]
            ways += [f"use a process whose threads {package} has not patched"]
            raise UsageError(
                f"{package} has replaced the threads of this process, and driver {name} would stop "
                f"it for ever: {', or '.join(ways)}."
            )


def _is_address(text: str) -> bool:
    """Whether the clients may take it for an address; librdkafka waits in vain at "kafka://…"."""
    protocol, separator, _ = text.partition("://")
    return bool(text) and (not separator or protocol.upper() in PROTOCOLS)
