"""What calls a handler: threads, processes, or, without threads, the caller (the test double)."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from queue import SimpleQueue

from multicast.consuming.batches import Message

Handler = Callable[[Message], object]
Ended = Callable[[BaseException | None], None]  # is told why an attempt failed
_PR_SET_PDEATHSIG = 1  # sys/prctl.h


class Runner:
    """Makes each attempt at once, in the caller's thread."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def start(self, message: Message, ended: Ended) -> None:
        """Begin an attempt; `ended` is called on any thread. Raises `RuntimeError` if it cannot."""
        ended(_error_of(self._handler, message))

    def close(self) -> None:
        """Wait for the attempts, and release what they needed."""


class ThreadRunner(Runner):
    """n threads that take attempts from one queue, at half the cost of Python's own pool."""

    def __init__(self, handler: Handler, n: int) -> None:
        super().__init__(handler)
        self._attempts: SimpleQueue[tuple[Message, Ended] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._run, name="amcast-worker", daemon=True) for _ in range(n)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, message: Message, ended: Ended) -> None:
        """Begin an attempt."""
        self._attempts.put((message, ended))

    def close(self) -> None:
        """Wait for the attempts."""
        for _ in self._threads:
            self._attempts.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while (attempt := self._attempts.get()) is not None:
            message, ended = attempt
            ended(_error_of(self._handler, message))


class ProcessRunner(Runner):
    """n processes; the handler is a function of a module, or can be pickled."""

    def __init__(self, handler: Handler, n: int) -> None:
        super().__init__(handler)
        context = get_context("spawn")  # a fork would have copies of the clients
        given = handler, os.getpid()
        self._pool = ProcessPoolExecutor(n, context, initializer=_begin, initargs=given)

    def start(self, message: Message, ended: Ended) -> None:
        """Begin an attempt."""
        attempt = self._pool.submit(_handle, message)
        attempt.add_done_callback(lambda made: ended(made.exception()))

    def close(self) -> None:
        """Wait for the attempts, and end the processes."""
        self._pool.shutdown()


_handlers: list[Handler] = []  # in a process of the pool: its handler


def _begin(handler: Handler, parent: int) -> None:
    """End with the parent: what a restart repeats must not still be in the hands of an orphan."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    _handlers.append(handler)


def _handle(message: Message) -> None:
    error = _error_of(_handlers[0], message)
    if error is not None:
        # Not every error can be pickled, and one that cannot be read again breaks the pool.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _error_of(handler: Handler, message: Message) -> BaseException | None:
    try:
        handler(message)
    except BaseException as error:  # noqa: BLE001 - the application's
        return error
    return None
