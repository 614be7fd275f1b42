"""`Workers`: reads a consumer, has others handle the messages, and commits; all in one thread.

hand     messages that were delivered and that the schedule has not taken yet
attempt  one call of the handler, by a runner: threads, processes, or an event loop's tasks
ending   nothing more is read or taken: it was asked to stop, or a message failed for good
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import BrokenExecutor
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, TypedDict

from multicast.consuming.batches import Message
from multicast.consuming.cursor import Cursor
from multicast.control import groups_topic
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError, HandlerFailed, TimedOut, UsageError
from multicast.workers.dead_letters import DeadLetters
from multicast.workers.runners import Handler, ProcessRunner, Runner, ThreadRunner
from multicast.workers.schedule import WorkSchedule

KeysOf = Callable[[Message], Iterable[Hashable]]

_MESSAGES_MAX = 100  # of one poll: beside what is taken, so many are in memory at most
_RECORD_BYTES = 500  # what a message takes beside its payload, key and headers
_POLL_S = 0.2  # how late a stop is noticed while nothing comes
_WAIT_S = 0.05  # how late a stop is noticed while messages are handled
_LOOK_S = 0.005  # how late a message that comes is noticed while others are handled
_QUIET_S = 30.0  # as `Consumer.until_end`: a broker's failure must not end it
_COMMIT_EVERY_S = 1.0  # after a crash the messages of so many seconds are handled again
_LOGGER = logging.getLogger("amcast.consumer")


class WorkOptions(TypedDict, total=False):
    """What workers may be told beside `n` and `keys` (docs/workers.md)."""

    attempts: int
    dead_letters: str | None
    runner: Runner | None
    open_max: int
    processes: bool
    until_end: bool
    stop: Callable[[], bool]


def own_key(message: Message) -> tuple[Hashable, ...]:
    """Give the key of a message; all messages without one have the same."""
    return (message.key,)


class Workers:
    """Handles a consumer's messages.

    `place` is the consumer's driver and topic, and what has its next poll begin at a cursor.
    """

    def __init__(
        self,
        consumer: Any,  # a `Consumer`, which imports this
        place: tuple[Driver, str, Callable[[Cursor], None]],
        handler: Handler,
        *,
        n: int,
        keys: KeysOf,
        attempts: int = 3,
        dead_letters: str | None = None,
        runner: Runner | None = None,
        open_max: int = 1000,  # with handlers of 10 ms, 15 times what 64 of them have in hand
        processes: bool = False,
        until_end: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        for name, count in {"n": n, "attempts": attempts, "open_max": open_max}.items():
            if type(count) is not int or count < 1:
                raise UsageError(f"{name} is {count!r}; give a whole number from 1")
        if iscoroutinefunction(handler) and runner is None:
            raise UsageError("the handler is a coroutine function: give it to an AsyncConsumer")
        if processes and runner is not None:
            raise UsageError("tasks run in one process; processes=True is of a Consumer")
        driver, topic, self._hand_back = place
        if dead_letters in (topic, groups_topic(topic)):
            raise UsageError(f"{dead_letters} holds messages; give dead_letters another topic")
        self._consumer, self._clock = consumer, clock_of(driver)
        self._letters = None if dead_letters is None else DeadLetters(driver, dead_letters)
        ahead = n if self._clock.threads else 0  # so that none has to wait
        self._schedule = WorkSchedule(
            in_hand_max=n + ahead, open_max=open_max, attempts_max=attempts
        )
        if runner is None and not self._clock.threads:
            runner = Runner(handler)
        elif runner is None:
            runner = ProcessRunner(handler, n) if processes else ThreadRunner(handler, n)
        self._runner = runner
        self._keys, self._until_end, self._stop = keys, until_end, stop
        self._hand: deque[Message] = deque()
        self._changed = threading.Condition()
        self._ended: deque[tuple[int, Message, BaseException | None]] = deque()
        self._failure: BaseException | None = None
        self._begun_at: Cursor | None = None  # before the first message that came
        self._committed: Cursor | None = None
        self._commit_at = self._clock.monotonic() + _COMMIT_EVERY_S

    def run(self) -> None:
        """Handle messages; whatever ends that, wait for those that were begun, and commit."""
        try:
            self._read()
            self._schedule.drain()
        except BaseException as error:  # noqa: BLE001 - raised again once the workers rest
            self._fail(error)
        try:  # after Ctrl-C, nobody knows between which two lines, only the watermark holds
            while self._schedule.busy and isinstance(self._failure, Exception | None):
                try:
                    self._turn(_WAIT_S)
                except AmcastError as error:  # of a commit
                    self._fail(error)
        finally:
            self._runner.close()
            if self._letters is not None:
                self._letters.close()
            reached = self._schedule.cursor or self._begun_at
            if reached is not None and self._consumer.position != reached:
                self._hand_back(reached)
        try:
            self._commit()
        except AmcastError as error:
            self._fail(error)
        if self._failure is not None:
            raise self._failure

    @property
    def _ending(self) -> bool:
        return self._failure is not None or self._stop()

    def _read(self) -> None:
        end = self._consumer.end() if self._until_end else None
        lacks: str | None = ""
        quiet_until = self._clock.monotonic() + _QUIET_S
        while not self._ending:
            wait_s, busy = _WAIT_S, self._schedule.busy
            if self._hand or busy or self._consumer.stands_by:
                quiet_until = self._clock.monotonic() + _QUIET_S
            elif lacks is None:
                return
            elif end is not None and self._clock.monotonic() > quiet_until:
                raise TimedOut(f"no message came for {_QUIET_S:g} s: {lacks}")
            if lacks is not None and not self._hand and self._schedule.room:
                timeout, before = 0.0 if busy else _POLL_S, self._consumer.position
                batches = self._consumer.poll(timeout, messages_max=_MESSAGES_MAX)
                if batches and self._begun_at is None:
                    self._begun_at = before
                for batch in batches:
                    self._hand.extend(map(batch.alone, batch.records))
                    quiet_until = self._clock.monotonic() + _QUIET_S
                wait_s = _LOOK_S if busy and not self._hand else 0.0
                lacks = "" if end is None else self._consumer.lacks(end)
            self._turn(wait_s)

    def _turn(self, wait_s: float) -> None:
        """Begin what may be begun, wait for an attempt to end, and commit once a second."""
        while self._hand and self._schedule.room and self._failure is None:
            self._take(self._hand.popleft())
        begun = self._schedule.begin(self._clock.monotonic())
        if not self._clock.threads:  # in another order than that of delivery, as with threads
            begun.reverse()
        for number, message in begun:
            try:
                self._runner.start(message, partial(self._note, number, message))
            except Exception as error:  # noqa: BLE001 - no thread or process, or no way to send it
                unstarted = BrokenExecutor(f"no worker could begin: {error!r}")
                self._note(number, message, unstarted)
        wait_s = min(wait_s, self._schedule.next_try - self._clock.monotonic())
        self._clock.wait_for(self._changed, lambda: bool(self._ended), max(0.0, wait_s))
        while self._ended:
            number, message, why = self._ended.popleft()
            if why is None:
                self._schedule.done(number)
            else:
                self._failed(number, message, why)
        if self._clock.monotonic() >= self._commit_at:
            try:
                self._commit()
            except AmcastError as error:
                if not error.retriable:
                    raise

    def _take(self, message: Message) -> None:
        try:
            keys = self._keys(message)
            if isinstance(keys, str | bytes):
                raise TypeError(f"keys are a set, like {{{keys!r}}}")  # noqa: TRY301
            parts = [message.payload, message.key, *(value for _, value in message.headers)]
            size = _RECORD_BYTES + sum(len(part) for part in parts if part is not None)
            self._schedule.take(message, keys, size)
        except Exception as error:  # noqa: BLE001 - the application's
            self._fail(_failure(f"message {message.message_id} has no keys", error))

    def _failed(self, number: int, message: Message, error: BaseException) -> None:
        left = self._schedule.failed(number, self._clock.monotonic())
        if not isinstance(error, Exception) or isinstance(error, BrokenExecutor):
            left = -1  # it is the worker's end, and none of the message
        if left > 0:
            text = "the handler failed at message %s (attempts left: %d): %r"
            _LOGGER.warning(text, message.message_id, left, error)
        elif self._letters is not None and left == 0:
            try:
                self._letters.store(message, error)
            except AmcastError as refused:
                what = f"message {message.message_id} cannot be stored as a dead letter"
                self._fail(_failure(what, refused))
            else:
                self._schedule.done(number)
                _LOGGER.warning("message %s is a dead letter: %r", message.message_id, error)
        else:
            self._fail(_failure(f"the handler failed at message {message.message_id}", error))

    def _fail(self, failure: BaseException) -> None:
        self._schedule.halt()
        self._failure = self._failure or failure

    def _commit(self) -> None:
        cursor = self._schedule.cursor
        self._commit_at = self._clock.monotonic() + _COMMIT_EVERY_S
        if cursor is not None and cursor != self._committed:
            self._consumer.commit(cursor)
            self._committed = cursor

    def _note(self, number: int, message: Message, error: BaseException | None) -> None:
        with self._changed:
            self._ended.append((number, message, error))
            self._changed.notify()


def _failure(what: str, error: BaseException) -> HandlerFailed:
    failure = HandlerFailed(
        f"{what}: {type(error).__name__}: {error}; what is done before it is committed: mend the "
        f"handler and start again, or give dead_letters a topic"
    )
    failure.__cause__ = error
    return failure
