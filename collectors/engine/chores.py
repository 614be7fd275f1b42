"""One thread for what blocks: opening instances, filling holes, looking for recreated topics.

What several instances need at the same time is asked of the brokers in one request. Where the
answer is an error, only the instances that it concerns fail, as far as the error names a partition.

    open    the ids of an instance's topics are checked; from then on it stands ready
    begin   its epoch has begun: the ends of its streams are asked for, and it starts to work
    recheck a log has grown, or lags: its topic, or the one of the order, may have been deleted, and
            created again, so their ids are checked; then its leader is asked (`questions.py`)
    state   a loss was found: it is written to the control topic if the topics' ids are those of the
            plan. A topic that was created again has lost nothing
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol, TypeVar

from collectors.core.actions import Fill
from collectors.engine.assignment import Assignment
from collectors.engine.loops import Loop
from collectors.engine.questions import Asking, Questions, is_whole
from collectors.engine.skips import fill
from multicast.control import ControlState
from multicast.control.topic_identity import refuse_changed_topics, refuse_other_topics
from multicast.drivers.protocol import Appender, Driver, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable

_T = TypeVar("_T")
Statements = Sequence[tuple[bytes, bytes]]  # records of the control topic: key and value
# One question about ids for all logs that have grown. Ten times as long, a collector would order
# a recreated topic for 10 s before it stops.
_RECHECK_EVERY_S = 1.0


class Hosted(Protocol):
    """An instance (`instance.py`) from `Engine.add` on; `open` and `begin` may raise anything."""

    @property
    def assignment(self) -> Assignment:
        """The collector that it runs."""

    @property
    def over(self) -> bool:
        """Whether it has ended."""

    def open(self, topic_ids: Mapping[str, str]) -> None:
        """Stand ready; these are the cluster's ids of the topics of its logs."""

    def begin(self, state: ControlState, ends: Mapping[TopicPartition, int]) -> None:
        """Start to work: its epoch has begun, and the streams that it reads end at these."""

    def control_changed(self, state: ControlState) -> None:
        """Take the control topic's new state."""

    def stop(self) -> None:
        """End without an error."""

    def fail(self, error: Exception) -> None:
        """End with an error."""


class Working(Asking, Protocol):
    """The part of it that runs the core (`core_runner.py`)."""

    skips_appended: int

    @property
    def over(self) -> bool:
        """Whether it has ended."""

    def filled(self, log: int, end: int | None) -> None:
        """Take the end of a log after a fill; None where it is unknown."""

    def fail(self, error: Exception) -> None:
        """End with an error."""


class Chores:
    """Does for all instances of a process what may block. Its calls return at once."""

    def __init__(
        self,
        driver: Driver,
        appender: Appender,
        control: Callable[[], ControlState],
        write_control: Callable[[bytes, bytes], None],
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        self._driver = driver
        self._appender = appender
        self._control = control
        self._write_control = write_control
        self._questions = Questions(driver)
        self._to_open: queue.SimpleQueue[Hosted] = queue.SimpleQueue()
        self._to_begin: queue.SimpleQueue[Hosted] = queue.SimpleQueue()
        self._to_fill: queue.SimpleQueue[tuple[Working, Fill]] = queue.SimpleQueue()
        self._to_state: queue.SimpleQueue[tuple[Working, Statements]] = queue.SimpleQueue()
        self._to_recheck: set[Working] = set()  # with a log that has grown since the last time
        self._recheck_lock = threading.Lock()
        self._wanted = threading.Event()
        self._recheck_due_s = time.monotonic() + _RECHECK_EVERY_S
        self.loop = Loop("chores", self._turn, wake=self._wanted.set, failed=failed)

    def open(self, instance: Hosted) -> None:
        """Open this instance soon, together with all others that wait for it."""
        self._to_open.put(instance)
        self._wanted.set()

    def begin(self, instance: Hosted) -> None:
        """Begin this instance soon; its epoch has begun."""
        self._to_begin.put(instance)
        self._wanted.set()

    def fill(self, instance: Working, action: Fill) -> None:
        """Carry out a `Fill`; `filled` of the instance gets the log's end."""
        self._to_fill.put((instance, action))
        self._wanted.set()

    def state(self, instance: Working, statements: Statements) -> None:
        """Write to the control topic what was lost, once it is known that nothing was recreated."""
        self._to_state.put((instance, statements))
        self._wanted.set()

    def recheck(self, instance: Working) -> None:
        """Check within a second that its topics are those of its plan, and what its logs have."""
        with self._recheck_lock:
            self._to_recheck.add(instance)

    # -- the loop's thread --------------------------------------------------------------------

    def _turn(self) -> None:
        self._wanted.wait(max(0.0, self._recheck_due_s - time.monotonic()))
        self._wanted.clear()
        self._open_all(_drained(self._to_open))
        self._begin_all(_drained(self._to_begin))
        for instance, action in _drained(self._to_fill):
            self._fill(instance, action)
        for instance, statements in _drained(self._to_state):
            self._state(instance, statements)
        now = time.monotonic()
        if now >= self._recheck_due_s:
            self._recheck_due_s = now + _RECHECK_EVERY_S
            due = self._refuse_recreated()
            with _failing_all(due):
                if not self._questions.ask(due):
                    for instance in due:
                        self.recheck(instance)

    def _open_all(self, instances: Sequence[Hosted]) -> None:
        if not instances:
            return
        with _failing_all(instances):
            ids = self._driver.topic_ids(_topics_of(instances))
            for instance in instances:
                with _failing(instance):
                    instance.open(ids)

    def _begin_all(self, instances: Sequence[Hosted]) -> None:
        left = [instance for instance in instances if not instance.over]
        while left:
            state = self._control()  # before the ends: what it names lies below them
            try:
                streams = {stream: None for each in left for stream in each.assignment.streams}
                ends = self._driver.last_stable_offsets(list(streams))
            except AmcastError as error:
                blamed = [each for each in left if error.partition in each.assignment.streams]
                blamed = blamed or left
                for instance in blamed:
                    instance.fail(error)
                left = [instance for instance in left if instance not in blamed]
                continue
            for instance in left:
                with _failing(instance):
                    instance.begin(state, ends)
            return

    def _fill(self, instance: Working, action: Fill) -> None:
        if instance.over:
            return

        def filled(end: int | None) -> None:
            instance.filled(action.log, end)

        with _failing(instance):
            instance.skips_appended += fill(
                self._driver,
                self._appender,
                instance.assignment.plan,
                action.log,
                below=action.below,
                is_whole=lambda: is_whole(self._driver, instance, action.log),
                filled=filled,
            )

    def _state(self, instance: Working, statements: Statements) -> None:
        plan, topics = instance.assignment.plan, instance.assignment.topics
        with _failing(instance), suppress(ClusterUnreachable):  # what is not stated comes again
            refuse_changed_topics(self._driver, plan, topics)
            for key, value in statements:
                self._write_control(key, value)

    def _refuse_recreated(self) -> list[Working]:
        """Fail the instances whose plan was made for another topic of the same name; give the rest.

        While no broker answers, that is none.
        """
        with self._recheck_lock:
            due, self._to_recheck = list(self._to_recheck), set()
        if not due:
            return []
        with _failing_all(due):
            try:
                ids = self._driver.topic_ids(_topics_of(due))
            except ClusterUnreachable:
                for instance in due:
                    self.recheck(instance)
                return []
            for instance in due:
                with _failing(instance):
                    refuse_other_topics(ids, instance.assignment.plan, instance.assignment.topics)
        return [instance for instance in due if not instance.over]


def _topics_of(instances: Iterable[Hosted | Working]) -> list[str]:
    return sorted({topic for instance in instances for topic in instance.assignment.topics})


@contextmanager
def _failing(instance: Hosted | Working) -> Iterator[None]:
    """Fail the one instance that an exception concerns, whatever it is, and no other."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - it must not end the loop that serves all
        instance.fail(error)


@contextmanager
def _failing_all(instances: Sequence[Hosted | Working]) -> Iterator[None]:
    """Fail all these at an error of Kafka."""
    try:
        yield
    except AmcastError as error:
        for instance in instances:
            instance.fail(error)


def _drained(waiting: queue.SimpleQueue[_T]) -> list[_T]:
    items: list[_T] = []
    while True:
        try:
            items.append(waiting.get_nowait())
        except queue.Empty:
            return items
