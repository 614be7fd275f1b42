"""What threads, processes and tasks share: what comes in, what fails, what may be committed.

hand     messages that were delivered and that the schedule has not taken yet
attempt  one call of the handler
ending   nothing more is read or taken: it was asked to stop, or a message failed for good
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import BrokenExecutor
from dataclasses import replace
from typing import TypedDict

from multicast.consuming.batches import Batch, Message
from multicast.consuming.cursor import Cursor
from multicast.control import groups_topic
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import (
    Appender,
    AppendFailed,
    AppendOutcome,
    Driver,
    TopicPartition,
)
from multicast.errors import HandlerFailed, TimedOut, UsageError
from multicast.workers.schedule import WorkSchedule

Handler = Callable[[Message], object]
KeysOf = Callable[[Message], Iterable[Hashable]]

MESSAGES_MAX = 100  # of one poll: beside what is taken, so many are in memory at most
WAIT_S = 0.05  # how late a stop is noticed while messages are handled
_RECORD_BYTES = 500  # what a message takes beside its payload, key and headers
_COMMIT_EVERY_S = 1.0  # after a crash the messages of so many seconds are handled again
_STORED_S = 30.0  # a broker's failure must not end the work: Kafka elects others after 9 s
_ERROR_CHARACTERS_MAX = 1000  # of a dead letter's header: enough for a sentence, and no dump
_LOGGER = logging.getLogger("amcast.consumer")


class WorkOptions(TypedDict, total=False):
    """What workers may be told beside `n` and `keys` (docs/workers.md)."""

    attempts: int
    dead_letters: str | None
    open_max: int
    processes: bool
    until_end: bool
    stop: Callable[[], bool]


def own_key(message: Message) -> tuple[Hashable, ...]:
    """Give the key of a message; all messages without one have the same."""
    return (message.key,)


class Work:
    """The messages between a consumer and whoever handles them."""

    def __init__(
        self,
        driver: Driver,
        topic: str,
        n: int,
        keys: KeysOf,
        *,
        attempts: int = 3,
        dead_letters: str | None = None,
        open_max: int = 1000,  # with handlers of 10 ms, 15 times what 64 of them have in hand
        processes: bool = False,
        until_end: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        for name, count in {"n": n, "attempts": attempts, "open_max": open_max}.items():
            if type(count) is not int or count < 1:
                raise UsageError(f"{name} is {count!r}; give a whole number from 1")
        if dead_letters in (topic, groups_topic(topic)):
            raise UsageError(f"{dead_letters} holds messages; give dead_letters another topic")
        self.clock = clock_of(driver)
        self.dead_letters = None if dead_letters is None else DeadLetters(driver, dead_letters)
        self.failure: HandlerFailed | None = None
        self.n, self.processes, self.until_end = n, processes, until_end
        self.schedule = WorkSchedule(in_hand_max=n, open_max=open_max, attempts_max=attempts)
        self._keys, self._stop = keys, stop
        self._hand: deque[Message] = deque()
        self._commit_at = self.clock.monotonic() + _COMMIT_EVERY_S
        self._committed: Cursor | None = None

    @property
    def ending(self) -> bool:
        """Whether nothing more is read or taken."""
        return self.failure is not None or self._stop()

    @property
    def wants(self) -> bool:
        """Whether more should be read."""
        return not self._hand and self.schedule.room

    @property
    def rests(self) -> bool:
        """Whether all that was given is done."""
        return not self._hand and not self.schedule.busy

    def give(self, batches: Iterable[Batch]) -> None:
        """Take what was delivered; each message by itself, so that none keeps its batch."""
        for batch in batches:
            for record in batch.records:
                self._hand.append(Message(replace(batch, records=(record,)), record))

    def begin(self) -> list[tuple[int, Message]]:
        """Take as much as there is room for, and give the messages to handle now."""
        while self._hand and self.schedule.room and not self.ending:
            message = self._hand.popleft()
            try:
                keys = self._keys(message)
                if isinstance(keys, str | bytes):
                    raise TypeError(f"keys are a set, like {{{keys!r}}}")  # noqa: TRY301
                self.schedule.take(message, keys, _size(message))
            except Exception as error:  # noqa: BLE001 - the application's
                self._fail(f"message {message.message_id} has no keys", error)
        return self.schedule.begin(self.clock.monotonic())

    def ended(self, number: int, message: Message, error: BaseException | None) -> bool:
        """Note how an attempt ended; True: the message is to be stored as a dead letter."""
        if error is None:
            self.schedule.done(number)
            return False
        left = self.schedule.failed(number, self.clock.monotonic())
        broken = not isinstance(error, Exception) or isinstance(error, BrokenExecutor)
        if left and not broken:
            text = "the handler failed at message %s (attempts left: %d): %r"
            _LOGGER.warning(text, message.message_id, left, error)
        elif broken or self.dead_letters is None:
            self._fail(f"the handler failed at message {message.message_id}", error)
        else:
            return True
        return False

    def to_commit(self, *, last: bool = False) -> Cursor | None:
        """Give the cursor behind all that is done, if it is time to commit it."""
        now, cursor = self.clock.monotonic(), self.schedule.cursor
        if cursor == self._committed or not (last or now >= self._commit_at):
            return None
        self._commit_at = now + _COMMIT_EVERY_S
        return cursor

    def committed(self, cursor: Cursor) -> None:
        """Note that a cursor is stored."""
        self._committed = cursor

    def close(self) -> None:
        """Close what stores dead letters."""
        if self.dead_letters is not None:
            self.dead_letters.close()

    def _fail(self, what: str, error: BaseException) -> None:
        self.schedule.halt()
        if self.failure is None:
            self.failure = HandlerFailed(
                f"{what}: {type(error).__name__}: {error}; what is done before it is committed: "
                f"mend the handler and start again, or give dead_letters a topic"
            )
            self.failure.__cause__ = error


class DeadLetters:
    """Partition 0 of a topic, for messages that cannot be handled."""

    def __init__(self, driver: Driver, topic: str) -> None:
        self._clock = clock_of(driver)
        self._partition = TopicPartition(topic, 0)
        driver.last_stable_offsets([self._partition])  # raises if it does not exist
        self._driver = driver
        self._appender: Appender | None = None  # opened by the first letter

    def store(self, message: Message, error: BaseException | None) -> None:
        """Store a message with its ID and why; blocks. After a crash it may be stored again."""
        why = f"{type(error).__name__}: {error}"[:_ERROR_CHARACTERS_MAX]
        said = {"id": str(message.message_id), "to": ",".join(message.to), "error": why}
        added = [(f"amcast.{name}", text.encode("utf-8", "replace")) for name, text in said.items()]
        changed = threading.Condition()
        outcomes: list[AppendOutcome] = []

        def done(outcome: AppendOutcome) -> None:
            with changed:
                outcomes.append(outcome)
                changed.notify_all()

        if self._appender is None:
            self._appender = self._driver.appender()
        headers = [*message.headers, *added]
        key, payload = message.key, message.payload
        self._appender.append(self._partition, payload, key=key, headers=headers, done=done)
        if not self._clock.wait_for(changed, lambda: bool(outcomes), _STORED_S):
            raise TimedOut(f"message {message.message_id} was not stored as a dead letter in time")
        if isinstance(outcomes[0], AppendFailed):
            raise outcomes[0].error
        _LOGGER.warning("message %s is a dead letter: %s", message.message_id, why)

    def close(self) -> None:
        """Release what the letters needed."""
        if self._appender is not None:
            self._appender.close()


def _size(message: Message) -> int:
    parts = [message.payload, message.key, *(value for _, value in message.headers)]
    return _RECORD_BYTES + sum(len(part) for part in parts if part is not None)
