"""A thread that repeats one turn until it is stopped.

A loop serves many collectors and must not end because of one: it hands the error of a turn to
`failed` and goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError

_log = logging.getLogger("amcast.collectors")
# Pause after a turn that failed, so that a cluster that is away is asked twice a second and not in
# a busy loop. Ten times as long, collectors would resume 5 s after the cluster.
_AFTER_FAILURE_S = 0.5
# Turns wait 0.5 s at most, but a question to a broker that is away may block for longer. What does
# not end within 5 s is left to the end of the process: the threads are daemons.
_JOIN_S = 5.0


def partition_of(error: Exception) -> TopicPartition | None:
    """Give the Kafka partition that an error concerns; None where it names none."""
    named = error.partition if isinstance(error, AmcastError) else None
    return None if named is None else TopicPartition(*named)


class Loop:
    """Calls `turn` again and again; `wake` ends the wait of a turn."""

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
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its turn; returns at once. Safe from any thread."""
        self.stopped.set()
        self._wake()

    def join(self) -> bool:
        """Wait for the last turn to end, for at most five seconds; say whether it has ended."""
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self.stopped.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - `failed` tells the collectors concerned
                if not isinstance(error, AmcastError):
                    _log.exception("%s failed", self._thread.name)
                self._failed(error)
                self.stopped.wait(_AFTER_FAILURE_S)
