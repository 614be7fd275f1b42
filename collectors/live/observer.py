"""Follows a running topic: its control topic, order streams, ends of logs, and status pages.

Threads of its own; memory is bounded whatever the load is. It appends nothing and joins no
group.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, TypeVar

from collectors.doctor.streams import now_ms
from collectors.live.cluster import ClusterWatch
from collectors.live.facts import LivePicture, Reported, begun, worst_check
from collectors.live.ordered_runs import OrderedRuns
from collectors.reconfiguration.status_pages import acting_first, read_pages, unchecked
from multicast.control import (
    ControlReader,
    ControlState,
    StatusPage,
    log_partition,
    stream_partition,
)
from multicast.drivers import open_driver
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.errors import AmcastError, ProtocolViolation, TimedOut
from multicast.order.stream import OrderStream
from multicast.settings import Settings
from topology.tree import Plan

_T = TypeVar("_T")
TICK_S = 0.5  # a page that shows a dead collector within two seconds has three tries
_MISSES = 3  # answers in a row that do not come: then a process is taken to be down
_CLUSTER_S = 2.0  # between two looks at brokers and consumers: some requests
_PAGE_S = 1.0  # a page takes milliseconds; one that hangs must be shown within 2 s as well
# Records of each stream before its end that are read at the start, so that the timeline can say who
# ordered the last messages, and when.
LOOKBACK_RECORDS = 200
_JOIN_S = 15.0  # a thread may be in a request to a cluster that does not answer
_RETRY_S = 2.0  # after an error: a cluster that is away is asked rarely


class Observer:
    """Follows one topic until it is closed, with its driver; opening it reads nothing yet.

    `picture` is None until the first tick, and `error` says in a sentence why there is none, or why
    it is out of date.
    """

    def __init__(self, driver: Driver, topic: str, cluster: ClusterWatch | None = None) -> None:
        self.driver = driver
        self.picture: LivePicture | None = None
        self.state: ControlState | None = None
        self.error = ""
        self.runs = OrderedRuns()
        self._topic = topic
        self._stop = threading.Event()
        self._moved = threading.Condition()
        self._drawing = threading.Lock()  # held to change the picture, and to read it
        self._ticks = 0
        self._listeners: dict[Callable[[], None], None] = {}
        self._streams: dict[TopicPartition, OrderStream] = {}
        self._pages: dict[StatusPage, Mapping[str, Any] | str] = {}  # as last answered
        self._missed: dict[StatusPage, int] = {}  # in a row, of those that have answered before
        self._cluster = cluster
        self._threads = [
            threading.Thread(target=work, name=f"amcast-live-{name}", daemon=True)
            for name, work in (
                ("order", self._follow),
                ("pages", self._read_pages),
                ("cluster", self._watch_cluster),
            )
        ]
        for thread in self._threads:
            thread.start()

    def listen(self, moved: Callable[[], None]) -> None:
        """Have `moved` called after each tick, in a thread of the observer; it must not block."""
        self._listeners[moved] = None

    def ignore(self, moved: Callable[[], None]) -> None:
        """Call it no more."""
        self._listeners.pop(moved, None)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the next tick; False after `timeout_s` seconds."""
        with self._moved:
            before = self._ticks
            return self._moved.wait_for(lambda: self._ticks != before, max(0.0, timeout_s))

    def first(self, timeout_s: float) -> LivePicture:
        """Wait for the first tick; raises `TimedOut`, with the cause, after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        while self.picture is None:
            if not self.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                why = self.error or "the order was not read to its end"
                raise TimedOut(f"topic {self._topic} gave nothing in {timeout_s:g} s: {why}")
        return self.picture

    def look(self, described: Callable[[LivePicture], _T]) -> _T:
        """Describe the picture, while no tick changes it; there must have been a first one."""
        assert self.picture is not None
        with self._drawing:
            return described(self.picture)

    def close(self) -> None:
        """End both threads and close the driver; returns within seconds."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_JOIN_S)
        self.driver.close()

    # -- the order ----------------------------------------------------------------------------

    def _follow(self) -> None:
        checkpoints = True
        while not self._stop.is_set():
            try:
                self._follow_once(checkpoints=checkpoints)
            except ProtocolViolation as error:
                # A checkpoint does not match its stream: read from the epoch's start instead.
                checkpoints, self.error = False, str(error)
            except AmcastError as error:
                self.error = str(error)
            except Exception as error:  # noqa: BLE001 - a defect here must be seen on the page
                self.error = f"the live picture has failed: {error!r}"
            self._tell()
            self._stop.wait(_RETRY_S)

    def _follow_once(self, *, checkpoints: bool) -> None:
        self._streams = {}
        plan: Plan | None = None
        with (
            closing(ControlReader(self.driver, self._topic)) as control,
            closing(self.driver.reader({})) as reader,
        ):
            control.refresh()
            while not self._stop.is_set():
                due = time.monotonic() + TICK_S
                state = control.follow(0.0)
                if plan is None or state.begun_epoch > plan.epoch:
                    plan = state.plan(state.begun_epoch)
                    reader.remove(list(self._streams))
                    self._streams = self._opened(state, plan, checkpoints=checkpoints)
                    reader.add({each: stream.offset_next for each, stream in self._streams.items()})
                    self._catch_up(reader)
                    with self._drawing:
                        self.picture = begun(plan, now_ms(), self.picture)
                assert self.picture is not None
                self.state = state.copy()
                self._tick(self.picture, state)
                self.error = ""
                self._tell()
                while (left := due - time.monotonic()) > 0 and not self._stop.is_set():
                    self._read(reader, left)

    def _opened(
        self, state: ControlState, plan: Plan, *, checkpoints: bool
    ) -> dict[TopicPartition, OrderStream]:
        names = {stream_partition(plan, node.name): node.name for node in plan.collectors}
        ends = self.driver.last_stable_offsets(list(names))
        return {
            each: state.stream(
                plan.epoch, name, below=max(0, ends[each] - LOOKBACK_RECORDS) if checkpoints else 0
            )
            for each, name in names.items()
        }

    def _catch_up(self, reader: Any) -> None:
        """Read all streams to their present ends, before anything is shown of them."""
        ends = self.driver.last_stable_offsets(list(self._streams))
        quiet = 0.0
        while any(stream.offset_next < ends[each] for each, stream in self._streams.items()):
            if self._stop.is_set():
                return
            quiet = 0.0 if self._read(reader, TICK_S) else quiet + TICK_S
            if quiet > _JOIN_S:
                raise TimedOut(f"the order streams gave no record for {_JOIN_S:g} s")

    def _read(self, reader: Any, timeout_s: float) -> bool:
        moved = reader.poll(timeout_s)
        for fetched in moved:
            stream = self._streams.get(fetched.partition)
            if stream is None:
                continue
            for record in fetched.records:
                ordered = stream.read(record.offset, record.value)
                if isinstance(ordered, tuple):
                    self.runs.add(stream, record.offset, ordered, record.timestamp_ms)
            stream.passed(fetched.position)
        return bool(moved)

    def _tick(self, picture: LivePicture, state: ControlState) -> None:
        plan = picture.plan
        ends = self.driver.last_stable_offsets([log_partition(log) for log in plan.logs])
        positions = {
            stream.collector: {
                stream.plan.logs[number].name: place
                for number, place in stream.state.positions.items()
            }
            for stream in self._streams.values()
        }
        check = worst_check(
            answer.get("check") for answer in self._pages.values() if not isinstance(answer, str)
        )
        reported = {node.name: self._reported(state, plan, node.name) for node in plan.collectors}
        by_log = {log.name: ends[log_partition(log)] for log in plan.logs}
        with self._drawing:
            picture.check = check
            picture.unchecked = next(iter(unchecked(self._pages).values()), "")
            picture.tick(now_ms(), by_log, positions, reported)

    def _tell(self) -> None:
        with self._moved:
            self._ticks += 1
            self._moved.notify_all()
        for moved in list(self._listeners):
            moved()

    # -- the pages ----------------------------------------------------------------------------

    def _read_pages(self) -> None:
        while not self._stop.is_set():
            due = time.monotonic() + TICK_S
            state = self.state
            if state is not None:
                pages = state.advertised.pages.values()
                wanted = {page: None for page in pages if page is not None}
                self._pages = self._without_slips(read_pages(wanted, _PAGE_S))
            self._stop.wait(max(0.0, due - time.monotonic()))

    def _without_slips(
        self, answers: Mapping[StatusPage, Mapping[str, Any] | str]
    ) -> dict[StatusPage, Mapping[str, Any] | str]:
        """Keep a page's last answer until it misses `_MISSES` in a row: a machine may be slow.

        A port at which nobody listens is no miss: its process has ended.
        """
        kept = dict(answers)
        missed: dict[StatusPage, int] = {}
        for page, answer in answers.items():
            if not isinstance(answer, str):
                missed[page] = 0
            elif page in self._missed:
                missed[page] = self._missed[page] + 1
                if missed[page] < _MISSES and os.strerror(errno.ECONNREFUSED) not in answer:
                    kept[page] = self._pages[page]
        self._missed = missed
        return kept

    def _watch_cluster(self) -> None:
        while self._cluster is not None and not self._stop.is_set():
            if (picture := self.picture) is not None:
                seen = self._cluster.look(picture.plan)
                with self._drawing:
                    (self.picture or picture).take_cluster(now_ms(), seen)
            self._stop.wait(_CLUSTER_S if picture is not None else TICK_S)
        if self._cluster is not None:
            self._cluster.close()

    def _reported(self, state: ControlState, plan: Plan, name: str) -> Reported:
        """Choose the description of the instance that acts, wherever it is."""
        pages, page = self._pages, state.advertised.pages.get(name)
        epoch = state.first_epoch(plan.epoch, name)
        for where, node in acting_first(pages, pages, name, epoch):
            return _described(node, where.process.hex())
        answer = pages.get(page) if page is not None else None
        if page is None:
            return Reported(why="no process has said where its status page is")
        if isinstance(answer, str):
            return Reported(why=answer, known=page in self._missed)
        return Reported(state="starting")


def observe(settings: Settings) -> Observer:
    """Open an observer of the topic of these settings; raises `ClusterUnreachable`."""
    driver = open_driver(settings.driver, settings.bootstrap, settings.client)
    return Observer(driver, settings.topic, ClusterWatch(settings, driver))


def _described(node: Mapping[str, Any], process: str) -> Reported:
    held, lost, restarts = node.get("held"), node.get("lost"), node.get("restarts")
    return Reported(
        state=str(node.get("state")),
        error=str(node.get("error") or ""),
        held=tuple(map(str, held)) if isinstance(held, list) else (),
        lost=lost if isinstance(lost, dict) else {},
        restarts=restarts if isinstance(restarts, int) else 0,
        process=process,
    )
