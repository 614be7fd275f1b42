"""The drain at work: one epoch is brought to its end, so that the next one begins.

Goes in: a driver and a control topic whose newest plan has not begun. What is to be done at each
step says `replan.py`; here it is carried out. Every step looks first at what stands in the logs, so
a drain that was killed anywhere is simply run again, and several at once do no harm.

    ready     a collector of the next epoch that has told its address: it waits for the end only
    helped    a collector of the old epoch that did not freeze in time: it is run here (any process
              may run any collector at any time)

Invariant: the ends are written once every collector is frozen and every log reaches its end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

from collectors.filling import fill
from collectors.node import Node
from collectors.replan import ends_of, logs_to_mark
from multicast.control import (
    ControlReader,
    control_partition,
    ends_record,
    log_partition,
    markers_record,
    stream_partition,
)
from multicast.errors import AccessDenied, AmcastError, AppendUnknown, TimedOut
from multicast.log import (
    Appended,
    AppendFailed,
    AppendOutcome,
    Driver,
    Reader,
    TopicPartition,
)
from multicast.messages import epoch_header
from multicast.order import OrderStream
from topology.tree import Plan

_READY_S = 3.0
_HELP_S = 1.5
_POLL_S = 0.05
_HELPER_STOP_S = 5.0


def drain(
    driver: Driver,
    control: ControlReader,
    epoch: int,
    *,
    timeout_s: float,
    say: Callable[[str], None],
) -> None:
    """Bring an epoch to its end; return once the next one can begin.

    The plan of the next epoch stands in the control topic already. Blocks for at most `timeout_s`
    seconds, then raises `TimedOut`: run it again. `say` hears of each step, in a sentence.
    """
    with ExitStack() as opened:
        steps = _Drain(driver, control, epoch, deadline=time.monotonic() + timeout_s, say=say)
        opened.callback(steps.appender.close)
        steps.run(opened)


@dataclass(frozen=True, slots=True)
class _Streams:
    reader: Reader
    places: Mapping[TopicPartition, OrderStream]

    def read(self, timeout_s: float) -> None:
        for fetched in self.reader.poll(timeout_s):
            stream = self.places[fetched.at]
            for record in fetched.records:
                stream.read(record.offset, record.value)
            stream.passed(fetched.position)


class _Drain:
    def __init__(
        self,
        driver: Driver,
        control: ControlReader,
        epoch: int,
        *,
        deadline: float,
        say: Callable[[str], None],
    ) -> None:
        self.appender = driver.appender()
        self._driver = driver
        self._control = control
        self._plan: Plan = control.state.plan(epoch)
        self._carried = control.state.carried(epoch)
        self._next: Plan = control.state.plan(epoch + 1)
        self._deadline = deadline
        self._denied: AccessDenied | None = None  # what keeps us from helping
        self._say = say

    def run(self, opened: ExitStack) -> None:
        epoch = self._plan.epoch
        state = self._control.refresh()
        if epoch in state.ends:
            return
        if epoch not in state.markers:
            self._wait_for_ready()
        # Before anything freezes: what is opened later makes the pause longer.
        streams = self._open_streams(opened)
        if epoch not in state.markers:
            positions = self._mark()
            self._write(*markers_record(epoch, positions, attempt=uuid4().hex))
            state = self._control.refresh()
        self._say(f"epoch {epoch}: its collectors freeze")
        ends = self._wait_for_freeze(streams, state.markers[epoch], opened)
        self._fill(ends)
        if epoch not in self._control.refresh().ends:
            self._write(*ends_record(epoch, ends, attempt=uuid4().hex))
        self._say(f"epoch {epoch} has ended")

    def _wait_for_ready(self) -> None:
        """Let the next epoch's collectors come up first: then the pause is short.

        Nothing depends on it; who takes no announcements tells no address.
        """
        until = min(self._deadline, time.monotonic() + _READY_S)
        names = {node.name for node in self._next.collectors} - self._carried.collectors
        while time.monotonic() < until:
            told = self._control.state.addresses
            ready = {name for name in names if told.get(name, (0, None))[0] == self._next.epoch}
            if ready == names:
                return
            self._control.follow(_POLL_S)

    def _mark(self) -> dict[str, int]:
        """Append an epoch marker to every log that needs one; give what is one past each."""
        outcomes: dict[str, AppendOutcome] = {}
        names = logs_to_mark(self._plan, self._carried)
        for name in names:

            def done(outcome: AppendOutcome, name: str = name) -> None:
                outcomes[name] = outcome

            at = log_partition(self._plan.log(name))
            header = epoch_header(name, self._next.epoch)
            self.appender.append(at, None, headers=[header], done=done)
        self._flush()
        return {name: _offset(outcomes.get(name), name) + 1 for name in names}

    def _open_streams(self, opened: ExitStack) -> _Streams:
        """Begin to read the streams that have to freeze."""
        epoch = self._plan.epoch
        places: dict[TopicPartition, OrderStream] = {}
        for node in self._plan.collectors:
            if node.name not in self._carried.collectors:
                at = stream_partition(self._plan, node.name)
                end = self._driver.ends([at])[at]
                places[at] = self._control.state.stream(epoch, node.name, below=end)
        reader = self._driver.reader({at: stream.offset_next for at, stream in places.items()})
        opened.callback(reader.close)
        streams = _Streams(reader, places)
        streams.read(0.0)
        return streams

    def _wait_for_freeze(
        self, streams: _Streams, markers: Mapping[str, int], opened: ExitStack
    ) -> dict[str, int]:
        """Read the streams until all are frozen; give where each log ends."""
        epoch = self._plan.epoch
        named = {stream.collector: stream for stream in streams.places.values()}
        help_at = time.monotonic() + _HELP_S
        helped = False
        while (ends := ends_of(self._plan, named, markers, self._carried)) is None:
            now = time.monotonic()
            waits = [name for name, stream in named.items() if not stream.state.frozen]
            if self._denied is not None:
                raise self._denied
            if now >= self._deadline:
                raise TimedOut(
                    f"epoch {epoch} has not ended in time: {', '.join(waits)} did not freeze; "
                    f"run 'amcast topology apply' again"
                )
            if now >= help_at and not helped:
                helped = True
                self._help(waits, opened)
            streams.read(min(_POLL_S, self._deadline - now))
        return ends

    def _help(self, names: list[str], opened: ExitStack) -> None:
        """Run collectors that did not freeze in time: perhaps nobody else does."""
        self._say(f"{', '.join(names)} did not freeze in time; an instance of each runs here")
        for name in names:
            node = Node(self._driver, self._plan.topic, name, epoch=self._plan.epoch)

            def run(node: Node = node) -> None:
                try:
                    node.run()
                except AccessDenied as error:
                    self._denied = error
                except AmcastError as error:
                    self._say(f"{node.name}: {error}")

            thread = threading.Thread(target=run, name=f"amcast-drain-{name}", daemon=True)
            thread.start()
            opened.callback(thread.join, _HELPER_STOP_S)
            opened.callback(node.stop)

    def _fill(self, ends: Mapping[str, int]) -> None:
        """Fill every log to where its epoch ends: an early run may have gone further."""
        at = {name: log_partition(self._plan.log(name)) for name in ends}
        while True:
            there = self._driver.next_offsets(list(at.values()))
            short = [name for name, end in ends.items() if there[at[name]] < end]
            if not short:
                return
            if time.monotonic() >= self._deadline:
                raise TimedOut(f"log {short[0]} could not be filled to its end in time")
            for name in short:
                fill(
                    self._driver,
                    self.appender,
                    self._plan,
                    self._plan.number(name),
                    below=ends[name],
                    told=_ignore,
                )
            self._flush()

    def _write(self, key: bytes, value: bytes) -> None:
        outcomes: list[AppendOutcome] = []
        at = control_partition(self._plan.topic)
        self.appender.append(at, value, key=key, done=outcomes.append)
        self._flush()
        _offset(outcomes[0] if outcomes else None, at.topic)

    def _flush(self) -> None:
        if not self.appender.flush(max(0.0, self._deadline - time.monotonic())):
            raise TimedOut("the brokers did not acknowledge the records of the drain in time")


def _offset(outcome: AppendOutcome | None, name: str) -> int:
    if isinstance(outcome, Appended):
        return outcome.offset
    if isinstance(outcome, AppendFailed):
        raise outcome.error
    raise AppendUnknown(f"{name} did not acknowledge a record")


def _ignore(_: int | None) -> None:
    """Look again instead."""
