"""The package's event loop, without its log lines, lost interrupts and sockets that stay open.

Log lines: the package logs some ten INFO lines for each connection, and every driver opens several.
A filter drops INFO and DEBUG lines of the package on a thread while it drives one of our event
loops. It keeps warnings, and lines of an application that uses the package itself. Of a loop that
`ends` it drops all: the package logs an error for each request that has no answer yet. To see all:
`logging.getLogger("amcast.kafka_python").setLevel(logging.DEBUG)`.

Interrupts: an exception out of a signal handler (Ctrl-C, an alarm) may come at any line of the
loop. kafka-python 3.0.12 only logs it if a task has run then; the task is lost, and with it
perhaps the one that reads a connection. Here the exception reaches the caller, and the loop is
marked: whoever drives it opens another one.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from multicast.drivers.kafka.private import NetworkSelector

_OURS = logging.getLogger("amcast.kafka_python")
_driving = threading.local()


class _WhileOurLoopRuns(logging.Filter):
    """Drops lines below WARNING on a thread that drives one of our loops, and all if it ends."""

    def filter(self, record: logging.LogRecord) -> bool:
        loops = getattr(_driving, "loops", None)
        if not loops:
            return True
        if record.levelno >= logging.WARNING and not (loops[-1] and loops[-1].is_ending):
            return True
        return _OURS.level != logging.NOTSET and _OURS.level <= record.levelno


_FILTER = _WhileOurLoopRuns()


def attach() -> None:
    """Have the loggers of the package drop what `quiet` says."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (name == "kafka" or name[:6] == "kafka."):
            logger.addFilter(_FILTER)  # a logger keeps each filter only once


@contextmanager
def quiet(loop: QuietSelector | None = None) -> Iterator[None]:
    """Drop the package's INFO and DEBUG lines on this thread; some of them hold the password.

    `loop`, if it is known, is the one that this thread drives.
    """
    if not hasattr(_driving, "loops"):
        _driving.loops = []
    _driving.loops.append(loop)
    try:
        yield
    finally:
        _driving.loops.pop()


class QuietSelector(NetworkSelector):  # type: ignore[misc]
    """The package's event loop, without log lines below WARNING.

    transports    those that were opened on this loop; `close` closes their sockets
    unfinished    a turn has begun and not ended; a loop with a thread of its own has no such mark
    is_ending     what uses it ends: no line of the package tells anything
    """

    _closed: bool
    is_ending = False

    def __init__(self, **settings: Any) -> None:
        self.transports: weakref.WeakSet[Any] = weakref.WeakSet()
        self._unfinished = False
        self._interrupt: BaseException | None = None  # that ended a task and is not raised yet
        attach()
        super().__init__(slow_task_threshold_secs=0, **settings)

    @property
    def interrupted(self) -> bool:
        """Whether an exception from outside has left a turn; another thread's turn goes on."""
        return self._unfinished and self._poll_owner in (None, threading.current_thread())

    def poll(self, *arguments: Any, **settings: Any) -> Any:
        """Run the loop once, as the package does."""
        with quiet(self):
            return super().poll(*arguments, **settings)

    def run_forever(self) -> None:
        """Run the loop on its own thread, as the package does for its producer."""
        with quiet(self):
            super().run_forever()

    @contextmanager
    def ends(self) -> Iterator[None]:
        """Drop all lines of the package from now on, on this thread meanwhile and on the loop's."""
        self.is_ending = True
        with quiet(self):
            yield

    def close(self) -> None:
        """Close the loop as the package does, and every socket.

        kafka-python 3.0.12 leaves the socket of a connection open whose request is not sent yet: it
        waits for the socket to be writable, and nothing runs any more that could wait. Nothing runs
        on a loop that was interrupted, either: a lock of the package may be held for good.
        """
        transports = list(self.transports)  # a task that ends here may hold the last reference
        if not self.interrupted:
            with self.ends():
                if self._io_thread is None and not self._closed:
                    # A task that waited for metadata ends now. Once the loop is closed, it would
                    # wait again, which is an error then, and the package logs that as one.
                    self.drain()
                super().close()
        else:
            self._closed = True  # all that follows may be done twice: it may be interrupted, too
            for task in list(self._pending_tasks):
                with suppress(AssertionError):  # one that has run when the loop was interrupted
                    task.close()
            self._wakeup_r.close()
            self._wakeup_w.close()
            self._selector.close()
        for transport in {*transports, *self.transports}:
            opened = transport._sock  # noqa: SLF001
            if opened is not None:
                opened.close()

    def unregister_event(self, fileobj: Any, event: int) -> None:
        """Wait for a file no longer, as the package does; a closed loop waits for none."""
        if not self._closed:
            super().unregister_event(fileobj, event)

    def _poll_once(self, timeout: float | None = None) -> None:
        """Run the loop once, as the package does; raise what has interrupted it."""
        before, self._unfinished = self._unfinished, self._io_thread is None
        try:
            super()._poll_once(timeout)
        except Exception:
            if self._interrupt is None:
                self._unfinished = before
                raise
        if self._interrupt is not None:
            interrupt, self._interrupt = self._interrupt, None
            raise interrupt
        self._unfinished = before

    def _task_done(self, task: Any) -> None:
        """Note the exception that the package is handling; it only logs it."""
        self._note(sys.exc_info()[1])
        super()._task_done(task)

    async def _invoke(self, coro: Any, *arguments: Any) -> Any:
        """Run a coroutine, as the package does; note what else only its future would get."""
        try:
            return await super()._invoke(coro, *arguments)
        except BaseException as error:
            self._note(error)
            raise

    def _note(self, error: BaseException | None) -> None:
        # What closes a coroutine is no interrupt.
        if error is not None and not isinstance(error, Exception | GeneratorExit):
            self._interrupt = error
