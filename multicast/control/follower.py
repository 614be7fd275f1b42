"""Follows the control topic for the parts of a producer: one thread and one reader for all of them.

Every producer pays for each read, and nothing waits for one: what the parts learn late costs time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from multicast.control.reader import ControlReader
from multicast.control.state import ControlState
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError

# How often the control topic is read. Until then tickets go to the streams of the last epoch, so
# messages of a new one wait for a collector's patience.
_EVERY_S = 1.0
_JOIN_S = 10.0  # `close` waits so long for the thread, which may be in a request to the cluster


class ControlFollower:
    """Calls each of `learners` with the state of the control topic: `state`, then each second.

    After the first call, by the constructor, they are called on the follower's thread, one after
    the other. One that raises an `AmcastError` is called again a second later. Where there are no
    learners, or clients start no threads, nothing is called.
    """

    def __init__(
        self,
        driver: Driver,
        state: ControlState,
        learners: Sequence[Callable[[ControlState], None]],
    ) -> None:
        self._driver = driver
        self._topic = state.topic
        self._learners = learners
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if learners and clock_of(driver).threads:
            self._teach(state)
            self._thread = threading.Thread(target=self._run, name="amcast-control", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a request to the cluster that is under way, 10 s at most."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        control: ControlReader | None = None
        try:
            while not self._stop.wait(_EVERY_S):
                with contextlib.suppress(AmcastError):
                    control = control or ControlReader(self._driver, self._topic)
                    self._teach(control.refresh())
        finally:
            if control is not None:
                control.close()

    def _teach(self, state: ControlState) -> None:
        for learn in self._learners:
            with contextlib.suppress(AmcastError):
                learn(state)
