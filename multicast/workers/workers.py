"""`Workers`: handles what a consumer delivers in threads or processes.

The caller's thread reads, hands out, and commits. Where clients have no threads (the test double),
it handles the messages, too.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import (
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
)
from inspect import iscoroutinefunction
from multiprocessing import get_context
from typing import Any

from multicast.consuming.batches import Message
from multicast.consuming.cursor import Cursor
from multicast.errors import AmcastError, TimedOut, UsageError
from multicast.workers.work import MESSAGES_MAX, WAIT_S, Handler, Work

_POLL_S = 0.2  # how late a stop is noticed while nothing comes
_LOOK_S = 0.005  # how late a message that comes is noticed while others are handled
_QUIET_S = 30.0  # as `Consumer.until_end`: a broker's failure must not end it
_PR_SET_PDEATHSIG = 1  # sys/prctl.h


class Workers:
    """Handles a consumer's messages; `hand_back` has its next poll begin at a cursor."""

    def __init__(
        self,
        consumer: Any,  # a `Consumer`, which imports this
        handler: Handler,
        work: Work,
        hand_back: Callable[[Cursor], None],
    ) -> None:
        if iscoroutinefunction(handler):
            raise UsageError("the handler is a coroutine function: give it to an AsyncConsumer")
        self._consumer, self._work, self._hand_back = consumer, work, hand_back
        self._handler, self._executor = self._open(handler)
        self._changed = threading.Condition()
        self._ended: deque[tuple[int, Message, BaseException | None]] = deque()

    def run(self) -> None:
        """Handle messages, and wait for those that were begun, whatever ended it."""
        work, reached = self._work, self._consumer.position
        failure: BaseException | None = None
        try:
            self._read()
            work.schedule.drain()
        except BaseException as error:  # noqa: BLE001 - raised again once the workers rest
            work.schedule.halt()
            failure = error
        try:
            while work.schedule.busy:
                self._turn(WAIT_S)
        finally:
            self._executor.shutdown()
            work.close()
            reached = work.schedule.cursor or reached
            if self._consumer.position != reached:
                self._hand_back(reached)
        try:
            self._commit(work.to_commit(last=True))
        except AmcastError as error:
            failure = failure or work.failure or error
        failure = failure or work.failure
        if failure is not None:
            raise failure

    def _read(self) -> None:
        work, consumer = self._work, self._consumer
        end = consumer.end() if work.until_end else None
        lacks = ""
        quiet_until = work.clock.monotonic() + _QUIET_S
        while not work.ending:
            wait_s, batches = WAIT_S, []
            if lacks is not None and work.wants:
                busy = work.schedule.busy
                batches = consumer.poll(0.0 if busy else _POLL_S, messages_max=MESSAGES_MAX)
                work.give(batches)
                wait_s = _LOOK_S if busy and not batches else 0.0
                lacks = "" if end is None else consumer.lacks(end)
            elif lacks is None and work.rests:
                return
            if not work.rests:
                quiet_until = work.clock.monotonic() + _QUIET_S
            elif end is not None and lacks and work.clock.monotonic() > quiet_until:
                raise TimedOut(f"no message came for {_QUIET_S:g} s: {lacks}")
            self._turn(wait_s)

    def _turn(self, wait_s: float) -> None:
        work = self._work
        begun = work.begin()
        if not work.clock.threads:  # in another order than that of delivery, as with threads
            begun.reverse()
        for number, message in begun:
            self._submit(number, message)
        wait_s = max(0.0, min(wait_s, work.schedule.next_try - work.clock.monotonic()))
        work.clock.wait_for(self._changed, lambda: bool(self._ended), wait_s)
        while self._ended:
            number, message, error = self._ended.popleft()
            if work.ended(number, message, error) and work.dead_letters is not None:
                work.dead_letters.store(message, error)
                work.schedule.done(number)
        try:
            self._commit(work.to_commit())
        except AmcastError as error:
            if not error.retriable:
                raise

    def _commit(self, cursor: Cursor | None) -> None:
        if cursor is not None:
            self._consumer.commit(cursor)
            self._work.committed(cursor)

    def _submit(self, number: int, message: Message) -> None:
        try:
            attempt = self._executor.submit(self._handler, message)
        except BrokenExecutor as error:
            self._note(number, message, error)
        else:
            attempt.add_done_callback(lambda ended: self._note(number, message, ended.exception()))

    def _note(self, number: int, message: Message, error: BaseException | None) -> None:
        with self._changed:
            self._ended.append((number, message, error))
            self._changed.notify()

    def _open(self, handler: Handler) -> tuple[Handler, Executor]:
        work = self._work
        if not work.clock.threads:
            return handler, _InTurn()
        work.schedule.in_hand_max *= 2  # so that no worker waits for the thread that reads
        if not work.processes:
            return handler, ThreadPoolExecutor(work.n, thread_name_prefix="amcast-worker")
        return _handle, ProcessPoolExecutor(
            work.n,
            mp_context=get_context("spawn"),  # a fork would have copies of the clients
            initializer=_begin_process,
            initargs=(handler, os.getpid()),
        )


class _InTurn(Executor):
    """Makes each call at once, in the caller's thread."""

    def submit(self, call: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        """Make a call; the result is there."""
        made: Future[Any] = Future()
        try:
            made.set_result(call(*given, **named))
        except BaseException as error:  # noqa: BLE001 - as in a thread
            made.set_exception(error)
        return made


# In a process of the pool: its handler.
_handlers: list[Handler] = []


def _begin_process(handler: Handler, parent: int) -> None:
    """End with the parent: what a restart repeats must not still be in the hands of an orphan."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    _handlers.append(handler)


def _handle(message: Message) -> None:
    try:
        _handlers[0](message)
    except Exception as error:
        # Not every error can be pickled, and one that cannot be read again breaks the pool.
        raise RuntimeError(f"{type(error).__name__}: {error}") from error
