"""Opens clients of the package, and stands in their place afterwards.

A client holds one of the process's 1,024 keys for thread-specific data (PTHREAD_KEYS_MAX), even a
closed one, until nothing refers to it. Its owner therefore lets go of it at the end: readers may be
kept, and Python looks for cycles among old objects too seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Never

from confluent_kafka import KafkaException

from multicast.drivers.librdkafka_reader.settings import LOG
from multicast.errors import AmcastError, UsageError


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
