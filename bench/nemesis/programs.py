"""The clients of a nemesis run, as roles of `bench.harness.client`.

Each process writes its own history file (`bench.nemesis.histories` has the format); the first line
is written once the client is open. After SIGTERM a process finishes within bounds, and notes this
at the end of its file.

    begun       the line of a call is written BEFORE the message is sent, so a call that a kill
                interrupts is known
    noted       the line of a delivery is written BEFORE its cursor is committed, so a killed
                consumer delivers some messages again, and skips none
    retried     a retriable error means that the cluster is away for a while. Any other error ends
                the process
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.harness.client import Notes, Talk
from bench.nemesis.histories import AUDIT
from multicast.consuming.batches import Batch
from multicast.consuming.consumer import Consumer
from multicast.drivers.protocol import Appended, AppendFailed, AppendOutcome
from multicast.errors import AmcastError, TimedOut
from multicast.producing.producer import Producer

_NS = 10**9
_TICK_S = 0.02  # the longest wait between two looks at outcomes
_POLL_S = 0.1  # how long a poll waits: a process notices SIGTERM in this time
_AGAIN_S = 0.2  # between two attempts while the cluster is away: five a second load no broker
_AHEAD_S = 1.0  # for so long a call waits for those before it; then it fails
_LATE_S = 1.0  # after a freeze, the calls of at most this time are made at once
_CLOSE_S = 5.0  # for the driver to close, after its delivery time-out
FILLING = b"!"  # of the messages of a bulk, and of no other
_pause = threading.Event()  # never set; used to sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Produce:
    """Multicast to these sets in turns, at intended times, whatever the cluster does.

    `rate`            messages/s
    `unsettled_max`   the greatest number of calls without an outcome; further calls are dropped
                      and counted
    `bulk`            if above 0: only one message to the first set, then so many by one call
    `fifo`            keep this producer's own order; each call waits for those before, at most 1 s
    """

    bootstrap: str
    topic: str
    name: str
    instance: str
    sets: Sequence[Sequence[str]]
    rate: float
    history: str
    bytes: int = 100
    driver: str = "librdkafka"
    client: Mapping[str, str] = field(default_factory=dict)
    unsettled_max: int = 3000
    delivery_timeout_s: float = 30.0
    bulk: int = 0
    fifo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Consume:
    """Deliver to one consumer of the plan, from its committed cursor until SIGTERM.

    Then deliver up to the current end, for at most `end_timeout_s`. `late` marks a consumer that
    joins in a later epoch. With `audits`, deliver everything that is addressed to the consumer from
    the start, under the auditor's own name; note the values, and commit nothing.
    """

    bootstrap: str
    topic: str
    name: str
    instance: str
    history: str
    driver: str = "librdkafka"
    client: Mapping[str, str] = field(default_factory=dict)
    commit_every_s: float = 0.2
    end_timeout_s: float = 60.0
    late: bool = False
    audits: bool = False


# -- producing ----------------------------------------------------------------------------------


def produce(task: Produce, talk: Talk) -> None:
    """Multicast until told to end; then wait for the outstanding outcomes."""
    notes = Notes(task.history)
    producer = talk.opened(
        lambda: Producer(
            task.bootstrap,
            topic=task.topic,
            driver=task.driver,
            client=task.client,
            block_s=_AHEAD_S if task.fifo else 0.0,
            fifo=task.fifo,
            delivery_timeout_s=task.delivery_timeout_s,
        )
    )
    if producer is None:
        return
    if task.bulk:
        _bulk(task, producer, notes)
        return
    calling = _Calling(task, producer, notes)
    try:
        while not talk.stop:
            calling.turn()
    finally:
        calling.end()


def _bulk(task: Produce, producer: Producer, notes: Notes) -> None:
    """Multicast one message, and once it has its outcome many by one call."""
    notes.write({"producer": task.name, "instance": task.instance, "ns": _now()})
    for numbers, filling in (range(1), b""), (range(1, task.bulk + 1), FILLING):
        notes.write(*({"begun": n, "to": task.sets[0], "ns": _now()} for n in numbers))
        values = [_value(task, number, filling) for number in numbers]
        receipts = producer.multicast_all(values, to=task.sets[0])
        with contextlib.suppress(TimedOut):
            receipts.wait(task.delivery_timeout_s + _CLOSE_S)
        outcomes = zip(numbers, receipts.outcomes, strict=True)
        name = receipts.log.name
        notes.write(*(_line(n, _now(), one, name) for n, one in outcomes if one is not None))
    producer.close(_CLOSE_S)
    notes.write({"end": True, "ns": _now()})


def _value(task: Produce, number: int, filling: bytes = b"") -> bytes:
    value = f"{task.name}/{task.instance}/{number} ".encode()
    return value.ljust(task.bytes, filling) if filling else value


def _line(number: int, ns: int, outcome: AppendOutcome, log: str) -> dict[str, Any]:
    line: dict[str, Any] = {"call": number, "outcome": _word(outcome), "ns": ns}
    if isinstance(outcome, Appended):
        line["message_id"] = f"{log}:{outcome.offset}"
    return line


class _Calling:
    """An open loop of multicasts, and their outcomes."""

    def __init__(self, task: Produce, producer: Producer, notes: Notes) -> None:
        self._task = task
        self._producer = producer
        self._notes = notes
        self._begun = 0
        self._settled = 0
        self._due = 0
        self._dropped = 0
        self._outcomes: deque[tuple[int, int, AppendOutcome]] = deque()
        self._logs: dict[int, str] = {}  # by call without an outcome
        opened = {"producer": task.name, "instance": task.instance, "ns": _now()}
        notes.write({**opened, "fifo": True} if task.fifo else opened)
        self._began_ns = _now()

    def turn(self) -> None:
        """Wait for the next intended time, and make the calls that are due."""
        task = self._task
        wait_s = (self._began_ns - _now()) / _NS + self._due / task.rate
        if wait_s > 0:
            _pause.wait(min(wait_s, _TICK_S))
        due = int((_now() - self._began_ns) / _NS * task.rate) + 1 - self._due
        self._due += max(0, due)
        lines = self._take_outcomes()
        # After a freeze, or without room, the load continues at its rate; missed calls are dropped.
        room = task.unsettled_max - (self._begun - self._settled)
        count = max(0, min(due, room, int(_LATE_S * task.rate) + 1))
        if due > count:
            self._dropped += due - count
            lines.append({"dropped": self._dropped})
        numbers = range(self._begun, self._begun + count)
        lines += [{"begun": n, "to": self._to(n), "ns": _now()} for n in numbers]
        self._notes.write(*lines)
        self._begun += count
        for number in numbers:
            self._call(number)

    def end(self) -> None:
        """Wait for the outcomes, at most for the delivery time-out, and note them."""
        with contextlib.suppress(TimedOut):  # the remaining outcomes become unknown by closing
            self._producer.flush(self._task.delivery_timeout_s + _CLOSE_S)
        self._producer.close(_CLOSE_S)
        self._notes.write(*self._take_outcomes(), {"end": True, "ns": _now()})

    def _to(self, number: int) -> Sequence[str]:
        return self._task.sets[number % len(self._task.sets)]

    def _call(self, number: int) -> None:
        task = self._task
        value = _value(task, number, b".")
        try:
            receipt = self._producer.multicast(
                value, to=self._to(number), done=partial(self._done, number)
            )
        except AmcastError as error:
            if not error.retriable:
                raise
            # Nothing was sent. The next call is another message: no message is sent twice.
            self._done(number, AppendFailed(error))
        else:
            self._logs[number] = receipt.log.name

    def _done(self, number: int, outcome: AppendOutcome) -> None:
        """Keep an outcome and its time. Runs on the driver's thread."""
        self._outcomes.append((number, _now(), outcome))

    def _take_outcomes(self) -> list[dict[str, Any]]:
        lines = []
        for _ in range(len(self._outcomes)):
            number, ns, outcome = self._outcomes.popleft()
            lines.append(_line(number, ns, outcome, self._logs.pop(number, "")))
        self._settled += len(lines)
        return lines


def _word(outcome: AppendOutcome) -> str:
    if isinstance(outcome, Appended):
        return "accepted"
    return "failed" if outcome.error.definite else "unknown"


# -- consuming ----------------------------------------------------------------------------------


def consume(task: Consume, talk: Talk) -> None:
    """Deliver until told to end, then up to the current end; an auditor only the latter."""
    notes = Notes(task.history)
    consumer = talk.opened(
        lambda: Consumer(
            task.bootstrap,
            topic=task.topic,
            name=task.name,
            committed=not task.audits,
            driver=task.driver,
            client=task.client,
        )
    )
    if consumer is None:
        return
    with consumer:
        # Of an auditor: earlier epochs did not cover its interest.
        late = task.late or (task.audits and consumer.position.epoch > 1)
        delivering = _Delivering(consumer, task, notes)
        while not (task.audits or talk.stop):
            delivering.turn(lambda: consumer.poll(_POLL_S))
            delivering.commit(every_s=task.commit_every_s)
        delivering.to_end(task.end_timeout_s, late=late)
        if not task.audits:
            delivering.commit(every_s=0.0)


class _Delivering:
    """One process's deliveries: first noted, then committed."""

    def __init__(self, consumer: Consumer, task: Consume, notes: Notes) -> None:
        self._consumer = consumer
        label = task.name + AUDIT if task.audits else task.name
        self._who = {"consumer": label, "instance": task.instance}
        self._notes = notes
        self._values = task.audits
        self._sequence = 0
        self._cursor = self._committed = consumer.position
        self._committed_s = time.monotonic()
        interest = {"interest": consumer.interest, "from": str(self._cursor), "ns": _now()}
        notes.write({**self._who, **interest})

    def turn(self, poll: Callable[[], Iterable[Batch]]) -> bool:
        """Note the deliveries of one poll; False if the cluster is away."""
        try:
            for batch in poll():
                self._note(batch)
        except AmcastError as error:
            if not error.retriable:
                raise
            _pause.wait(_AGAIN_S)
            return False
        return True

    def commit(self, *, every_s: float) -> None:
        """Commit the cursor if it has moved; the next commit replaces a failed one."""
        now = time.monotonic()
        if self._cursor == self._committed or now - self._committed_s < every_s:
            return
        self._committed_s = now
        cursor = self._cursor
        try:
            self._consumer.commit(cursor)
        except AmcastError as error:
            if not error.retriable:
                raise
        else:
            self._committed = cursor

    def to_end(self, timeout_s: float, *, late: bool) -> None:
        """Deliver everything up to the current end, and note the end; raises `TimedOut`."""
        deadline = time.monotonic() + timeout_s

        def batches() -> Iterator[Batch]:
            left_s = max(1.0, deadline - time.monotonic())
            for batch in self._consumer.until_end(timeout=left_s):
                yield batch
                if time.monotonic() > deadline:
                    break

        while not self.turn(batches):
            if time.monotonic() > deadline:
                break
        if time.monotonic() > deadline:
            raise TimedOut(f"the end was not reached within {timeout_s:g} s")
        end = {"end": True, "ns": _now()}
        self._notes.write({**self._who, **end, **({"late": True} if late else {})})

    def _note(self, batch: Batch) -> None:
        """Note a batch BEFORE the cursor moves behind it."""
        lines: list[dict[str, Any]] = []
        now_ns = _now()
        for record in batch.records:
            line = {
                **self._who,
                "sequence": self._sequence,
                "message_id": f"{batch.log.label}:{record.offset}",
                "to": batch.to,
                "epoch": batch.epoch,
                "ns": now_ns,
            }
            if self._values:
                line["value"] = (record.value or b"").partition(b" ")[0].decode(errors="replace")
            lines.append(line)
            self._sequence += 1
        cursor = batch.cursor()
        lines[-1]["cursor"] = str(cursor)
        self._notes.write(*lines)
        self._cursor = cursor


def _now() -> int:
    return time.monotonic_ns()
