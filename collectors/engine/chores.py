"""One thread for what blocks: opening collectors, skips for holes, topics that were made again.

What many collectors ask at the same time is asked of the brokers in one request. A collector whose
question cannot be answered fails alone, where the error names the partition that it is about.

    open        its topics are looked at; from then on it stands ready
    begin       its epoch has begun: where its own stream ends is asked, and it starts to work
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from collectors.collector import Fill
from collectors.engine.loops import Loop
from collectors.engine.skips import fill
from multicast.control import ControlState
from multicast.drivers.protocol import Appender, DirectAppender, Driver
from multicast.errors import AmcastError, ClusterUnreachable

if TYPE_CHECKING:
    from collectors.engine.instance import CollectorInstance

_T = TypeVar("_T")
_MEND_EVERY_S = 0.25
_SAME_EVERY_S = 1.0


class Chores:
    """Does for all collectors what may take a while."""

    def __init__(
        self,
        driver: Driver,
        appender: Appender,
        direct: DirectAppender | None,
        control: Callable[[], ControlState],
        *,
        failed: Callable[[Exception], None],
    ) -> None:
        self._driver = driver
        self._appender = appender
        self._direct = direct
        self._control = control
        self._to_open: queue.SimpleQueue[CollectorInstance] = queue.SimpleQueue()
        self._to_begin: queue.SimpleQueue[CollectorInstance] = queue.SimpleQueue()
        self._to_fill: queue.SimpleQueue[tuple[CollectorInstance, Fill]] = queue.SimpleQueue()
        self._moved: dict[
            CollectorInstance, set[str]
        ] = {}  # topics that grew since they were looked at
        self._moved_lock = threading.Lock()
        self._wanted = threading.Event()
        self._mend_at = 0.0
        self._same_at = time.monotonic() + _SAME_EVERY_S
        self.loop = Loop("chores", self._turn, wake=self._wanted.set, failed=failed)

    def open(self, node: CollectorInstance) -> None:
        """Open this one soon, with all others that come at the same time."""
        self._to_open.put(node)
        self._wanted.set()

    def begin(self, node: CollectorInstance) -> None:
        """Begin with this one soon; its epoch has begun."""
        self._to_begin.put(node)
        self._wanted.set()

    def fill(self, node: CollectorInstance, action: Fill) -> None:
        """Carry out a `Fill`; the node hears how it ended."""
        self._to_fill.put((node, action))
        self._wanted.set()

    def moved(self, node: CollectorInstance, topics: set[str]) -> None:
        """Look within a second whether these topics still are the node's."""
        with self._moved_lock:
            self._moved.setdefault(node, set()).update(topics)

    # -- the loop's thread --------------------------------------------------------------------

    def _turn(self) -> None:
        self._wanted.wait(min(_MEND_EVERY_S, _SAME_EVERY_S))
        self._wanted.clear()
        self._open_all(_drained(self._to_open))
        self._begin_all(_drained(self._to_begin))
        for node, action in _drained(self._to_fill):
            self._fill(node, action)
        now = time.monotonic()
        if now >= self._same_at:
            self._same_at = now + _SAME_EVERY_S
            self._refuse_made_again()
        if self._direct is not None and now >= self._mend_at:
            self._direct.reconnect()
            self._mend_at = time.monotonic() + _MEND_EVERY_S

    def _open_all(self, nodes: Sequence[CollectorInstance]) -> None:
        topics = sorted({topic for node in nodes for topic in node.topics})
        if not nodes:
            return
        try:
            ids = self._driver.topic_ids(topics)
        except AmcastError as error:
            for node in nodes:
                node.fail(error)
            return
        for node in nodes:
            node.open(ids)
        self._mend_at = 0.0

    def _begin_all(self, nodes: Sequence[CollectorInstance]) -> None:
        left = [node for node in nodes if not node.over]
        while left:
            try:
                ends = self._driver.last_stable_offsets([node.own_at for node in left])
            except AmcastError as error:
                blamed = [node for node in left if node.own_at == error.partition] or left
                for node in blamed:
                    node.fail(error)
                left = [node for node in left if node not in blamed]
                continue
            state = self._control()
            for node in left:
                node.begin(state, ends[node.own_at])
            return

    def _fill(self, node: CollectorInstance, action: Fill) -> None:
        if node.over:
            return

        def told(end: int | None) -> None:
            node.filled(action.log, end)

        try:
            node.skips_appended += fill(
                self._driver, self._appender, node.plan, action.log, below=action.below, told=told
            )
        except Exception as error:  # noqa: BLE001 - the one node's failure, whatever it is
            node.fail(error)

    def _refuse_made_again(self) -> None:
        """Fail who follows a topic that is another one by now: soon after its end moved."""
        with self._moved_lock:
            moved, self._moved = self._moved, {}
        if not moved:
            return
        try:
            ids = self._driver.topic_ids(sorted(set().union(*moved.values())))
        except ClusterUnreachable:
            for node, topics in moved.items():
                self.moved(node, topics)
            return
        except AmcastError as error:
            for node in moved:
                node.fail(error)
            return
        for node, topics in moved.items():
            node.refuse_other(ids, topics)


def _drained(waiting: queue.SimpleQueue[_T]) -> list[_T]:
    found: list[_T] = []
    while True:
        try:
            found.append(waiting.get_nowait())
        except queue.Empty:
            return found
