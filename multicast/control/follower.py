"""Follows the control topics for the parts of a producer: one thread and one reader for all.

Every producer pays for each read, and all of them ask the same brokers: so a read is a long poll.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

from multicast.control.reader import ControlReader
from multicast.control.state import ControlState
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, Truncated

# One wait for a record of the control topic, where most of the time none comes. So often learners
# look at their own time, too.
_WAIT_S = 5.0
# The least time between two reads. Until the second one tickets go to the streams of the last
# epoch, so messages of a new one wait for a collector's patience.
_EVERY_S = 1.0
_JOIN_S = 10.0  # `close` waits so long for the thread, which may be in a request to the cluster


class ControlFollower:
    """Calls each of `learners` with the state of the control topic: `state`, then what changes.

    After the first call, by the constructor, they are called on the follower's thread, one after
    the other: when records come, at most once a second, and each five seconds. One that raises an
    `AmcastError` is called again then. Where clients start no threads, whoever waits calls them,
    when records have come. Where there are no learners, nothing is called.
    """

    def __init__(
        self,
        driver: Driver,
        state: ControlState,
        learners: Sequence[Callable[[ControlState], None]],
    ) -> None:
        self._driver = driver
        self._state = state
        self._lost: Truncated | None = None
        self._learners = learners
        self._stop = threading.Event()
        self._control: ControlReader | None = None
        self._thread: threading.Thread | None = None
        self._clock = clock_of(driver)
        if learners and not self._clock.threads:
            self._clock.parties.append(self._turn)
        elif learners:
            self._teach(state)
            self._thread = threading.Thread(target=self._run, name="amcast-control", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread; waits for a request to the cluster that is under way, 10 s at most."""
        self._stop.set()
        if self._control is not None:
            self._control.wake()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        elif self._turn in self._clock.parties:
            self._clock.parties.remove(self._turn)
            if self._control is not None:
                self._control.close()

    def refuse_lost(self) -> None:
        """Raise `Truncated` once the control topic has lost what was read; does not block."""
        if self._lost is not None:
            raise Truncated(str(self._lost)) from self._lost

    def _note(self, error: AmcastError) -> None:
        if isinstance(error, Truncated):
            self._lost = error

    def _run(self) -> None:
        try:
            pause_s = _EVERY_S
            while not self._stop.wait(pause_s):
                pause_s = _EVERY_S
                try:
                    self._read()
                except AmcastError as error:
                    pause_s = _WAIT_S
                    self._note(error)
                self._teach(self._state)
        finally:
            if self._control is not None:
                self._control.close()

    def _turn(self) -> bool:
        """Learn what is new, in place of the thread."""
        self._control = self._control or ControlReader(self._driver, self._state.topic)
        before = self._control.positions
        try:
            self._state = self._control.refresh()
        except Truncated as error:
            self._note(error)
        moved = self._control.positions != before
        if moved:
            self._teach(self._state)
        return moved

    def _read(self) -> None:
        if self._control is None:
            with contextlib.ExitStack() as opened:
                control = ControlReader(self._driver, self._state.topic)
                opened.callback(control.close)
                self._state = control.refresh()
                self._control, _ = control, opened.pop_all()
        else:
            self._control.follow(_WAIT_S)

    def _teach(self, state: ControlState) -> None:
        for learn in self._learners:
            with contextlib.suppress(AmcastError):
                learn(state)
