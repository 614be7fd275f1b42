"""What an administrator asks for and is told, and a call that is waited for with an end. No Kafka.

The package's own calls may wait without an end, so each runs on a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic to make: partitions at least this many; replication -1 is the cluster's default."""

    partitions: int
    replication: int = -1
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that is open in a Kafka partition, from its first offset there on.

    `since_ms` is when it began, or else when its producer last appended there; the transactional id
    and the time-out are None where the cluster does not tell them.
    """

    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int
    transactional_id: str | None = None
    timeout_ms: int | None = None


class BoundedCall:
    """A call on a thread of its own, waited for with an end."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.value: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="amcast-admin", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, at most so long; say whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.value = self._call()
        except Exception as error:  # noqa: BLE001 - carried to the waiting thread
            self.error = error
