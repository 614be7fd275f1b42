"""Opens and ends clients of the package, and stands in their place afterwards.

A client holds one of the process's 1,024 keys for thread-specific data (PTHREAD_KEYS_MAX), even a
closed one, until nothing refers to it. Its owner therefore lets go of it at the end: readers and
appenders may be kept, and Python looks for cycles among old objects too seldom.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Never

from confluent_kafka import KafkaException

from multicast.drivers.librdkafka.settings import LOG
from multicast.errors import AmcastError, UsageError

_END_S = 5.0  # librdkafka's threads take milliseconds to release what they hold
_POLL_S = 0.05  # a plain choice: how late the end notices that nothing is held any more


def open_client(kind: Callable[..., Any], settings: Mapping[str, Any]) -> Any:
    """Open a producer or a consumer of the package.

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


def end_later(producer: Any) -> threading.Thread:
    """End a producer on a thread of its own: it may last as long as a DNS look-up of a broker."""
    held = [producer]
    thread = threading.Thread(
        target=_end_producer, args=(held,), name="amcast-appender-end", daemon=True
    )
    thread.start()
    return thread


def _end_producer(held: list[Any]) -> None:
    """Purge what a producer holds; the package closes it with the last reference, held here."""
    producer = held.pop()
    deadline = time.monotonic() + _END_S
    while len(producer) and time.monotonic() < deadline:
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        with contextlib.suppress(KafkaException):  # the package reports its failure once more
            producer.poll(_POLL_S)


class EndedClient:
    """Stands in place of a client that has ended: nothing comes, any other use is an error."""

    def __init__(self, error: UsageError) -> None:
        self._error = error

    def poll(self, _timeout_s: float) -> None:
        """Give nothing, at once."""

    def __getattr__(self, name: str) -> Never:
        raise self._error
