"""A thread that takes turns until it is told to stop.

What one turn does says its owner. An error of a turn is handed to `failed` and the loop goes on: it
serves many collectors, and must not end because of one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError

_log = logging.getLogger("amcast.collectors")
_AFTER_FAILURE_S = 0.5
_JOIN_S = 5.0


def partition_of(error: Exception) -> TopicPartition | None:
    """Give the one Kafka partition that an error is about; None where it is not known."""
    named = error.partition if isinstance(error, AmcastError) else None
    return None if named is None else TopicPartition(*named)


class Loop:
    """Calls `turn` again and again; `wake` ends a turn that waits."""

    def __init__(
        self,
        name: str,
        turn: Callable[[], None],
        *,
        wake: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        self.stopped = threading.Event()
        self._turn = turn
        self._wake = wake
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name=f"amcast-{name}", daemon=True)

    def start(self) -> None:
        """Begin to take turns, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Begin to stop. Safe from any thread."""
        self.stopped.set()
        self._wake()

    def join(self) -> bool:
        """Wait for a while until the last turn has ended; say whether it has."""
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - whose collectors it concerns are told
                if not isinstance(error, AmcastError):
                    _log.exception("%s failed", self._thread.name)
                self._failed(error)
                self.stopped.wait(_AFTER_FAILURE_S)
