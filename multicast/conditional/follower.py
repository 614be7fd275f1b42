"""Follows the logs of conditional messages: tells their receipts whether they take effect.

A decision depends on the log alone (`judge.py`), so no order stream is read. A thread reads a log
from the border of a message's segment on, payloads included, and only while a receipt waits for
it. Where the driver's clock allows no threads (`drivers/clock.py`), the thread that waits reads.

    goal    of a log: the last offset that a receipt has asked for; the log is read up to it
    known   of a log: its decisions from this offset on, up to `next`, can be asked for

After an error everything is forgotten; who waited gets the error, and who asks next begins anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from multicast.conditional.judge import EFFECTIVE, Decision, LogJudge, border
from multicast.consuming.tails import LostLogs
from multicast.control import log_partition
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, Fetched, Reader, TopicPartition
from multicast.errors import AmcastError, Trimmed, Truncated, UsageError
from topology.tree import Log

_POLL_S = 0.5  # one wait for records; a new goal and `close` end it
# Void messages that are remembered of each log (48 MB, by tracemalloc). Far more than one segment:
# a message that is read again for a receipt is not forgotten before the receipt gets its decision.
_VOID_MAX = 1 << 18
_JOIN_S = 10.0  # `close` waits so long for the thread, which may be in a request to the cluster


@dataclass(slots=True)
class _FollowedLog:
    """What is known of one log; a `None` among the decisions is one that cannot be known."""

    judge: LogJudge
    known: int
    next: int
    goal: int
    retained: int = 0
    reading: bool = False
    void: dict[int, Decision | None] = field(default_factory=dict)


class DecisionFollower:
    """Reads the logs whose decisions are asked for. All methods may be called from any thread."""

    def __init__(self, driver: Driver, lost: LostLogs | None = None) -> None:
        self._driver = driver
        self._lost = lost or LostLogs()
        self._lost.moved = self._look_again
        self._clock = clock_of(driver)
        self._moved = threading.Condition()
        self._logs: dict[TopicPartition, _FollowedLog] = {}
        self._partitions: dict[str, TopicPartition] = {}
        self._error: AmcastError | None = None
        self._errors = 0
        self._listener: Callable[[AmcastError | None], None] | None = None
        self._stop = threading.Event()
        self._reader: Reader = driver.reader({})
        self._thread: threading.Thread | None = None
        if self._clock.threads:
            self._thread = threading.Thread(target=self._run, name="amcast-decided", daemon=True)
            self._thread.start()

    def add(self, logs: Iterable[Log]) -> None:
        """Make logs known, so that they can be asked for by their names."""
        self._partitions.update({log.name: log_partition(log) for log in logs})

    def wait(self, log: str, offset: int, timeout_s: float) -> Decision | None:
        """Wait for the decision on a message; None after `timeout_s` seconds.

        Raises `Trimmed` if retention has removed what decides, `Truncated` if the log has lost the
        message, the error that reading the log gave meanwhile, and `UsageError` once the follower
        is closed.
        """
        deadline = self._clock.monotonic() + timeout_s
        errors = self._errors
        while True:
            with self._moved:
                decision = self.decision(log, offset)
                if decision is None and self._errors != errors and self._error is not None:
                    raise self._error
                remaining = deadline - self._clock.monotonic()
                if decision is None and self._stop.is_set():
                    raise UsageError("the producer is closed; the message's decision stays")
                if decision is not None or remaining <= 0:
                    return decision
                if self._thread is not None:
                    self._moved.wait(min(remaining, threading.TIMEOUT_MAX))
                    continue
            self._turn(min(remaining, _POLL_S))

    def decision(self, log: str, offset: int) -> Decision | None:
        """Give the decision on a message if it is known, else have it found out; does not block.

        Raises `Trimmed` and `Truncated` as `wait`.
        """
        self._lost.refuse(log, offset)
        with self._moved:
            partition = self._partitions[log]
            followed = self._logs.get(partition)
            if followed is not None and followed.known <= offset < followed.next:
                decision = followed.void.get(offset, EFFECTIVE)
                if decision is None:
                    raise _trimmed(log, offset)
                return decision
            if followed is not None and offset < followed.retained:
                raise _trimmed(log, offset)
            first = border(offset)
            is_idle = followed is None or followed.goal < followed.next
            if followed is None or offset < followed.known or (is_idle and first > followed.next):
                followed = _FollowedLog(LogJudge(log, first), first, first, offset)
                self._logs[partition] = followed
            if is_idle or offset > followed.goal:
                followed.goal = max(followed.goal, offset)
                self._moved.notify_all()
                self._reader.wake()
            return None

    def is_decided(self, log: str, offset: int) -> bool:
        """Whether `decision` has an answer now, or raises; else it is found out. Does not block."""
        try:
            return self.decision(log, offset) is not None
        except (Trimmed, Truncated):
            return True

    def listen(self, moved: Callable[[AmcastError | None], None]) -> None:
        """Have `moved` called, in the follower's thread, when answers of `is_decided` may change.

        It gets the error if one has ended all reading, and must neither block nor raise. There is
        one listener.
        """
        self._listener = moved

    def close(self) -> None:
        """Stop the thread and release the reader."""
        self._stop.set()
        with self._moved:
            self._moved.notify_all()
        self._reader.wake()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._reader.close()

    # -- in the thread that reads -----------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn(_POLL_S)
            except AmcastError as error:
                self._fail(error)
            except Exception as error:  # noqa: BLE001 - it would end the thread, and nobody would learn
                failed = AmcastError(f"the logs could not be read, by a defect: {error!r}")
                failed.__cause__ = error
                self._fail(failed)

    def _fail(self, error: AmcastError) -> None:
        with self._moved:
            self._error = error
            self._errors += 1
            self._reader.remove(list(self._logs))
            self._logs.clear()
            self._notify(error)

    def _look_again(self) -> None:
        with self._moved:
            self._notify()

    def _notify(self, error: AmcastError | None = None) -> None:
        self._moved.notify_all()
        if self._listener is not None:
            self._listener(error)

    def _turn(self, timeout_s: float) -> None:
        """Read for at most `timeout_s` seconds the logs that have not reached their goals."""
        with self._moved:
            wanted = {p: log for p, log in self._logs.items() if log.goal >= log.next}
            idle = [p for p, log in self._logs.items() if log.reading and p not in wanted]
            fresh = {p: log for p, log in wanted.items() if not log.reading}
            for partition, log in self._logs.items():
                log.reading = partition in wanted
            if not wanted and not idle and self._thread is not None and not self._stop.is_set():
                self._moved.wait(timeout_s)
                return
        self._reader.remove(idle)
        if fresh:
            self._begin(fresh)
        if not wanted:
            return
        answers = self._reader.poll(timeout_s)
        with self._moved:
            for fetched in answers:
                self._take(fetched)
            if answers:
                self._notify()

    def _begin(self, fresh: dict[TopicPartition, _FollowedLog]) -> None:
        """Read these logs, each from where it stopped, or from its first retained offset."""
        retained = self._driver.log_start_offsets(list(fresh))
        with self._moved:
            for partition, log in fresh.items():
                if retained[partition] > log.next:
                    log.judge = LogJudge(log.judge.log, retained[partition])
                    log.known = log.next = log.retained = retained[partition]
                    log.void.clear()
        self._reader.add({partition: log.next for partition, log in fresh.items()})

    def _take(self, fetched: Fetched) -> None:
        log = self._logs.get(fetched.partition)
        if log is None or not log.reading:  # begun anew while the poll waited
            return
        for record in fetched.records:
            decision = log.judge.replay(record)
            if decision is not EFFECTIVE:
                log.void[record.offset] = decision
        log.next = max(log.next, fetched.position)
        if len(log.void) > _VOID_MAX:
            offsets = sorted(log.void)
            log.known = offsets[len(offsets) // 2]
            log.void = {offset: v for offset, v in log.void.items() if offset >= log.known}


def _trimmed(log: str, offset: int) -> Trimmed:
    return Trimmed(
        f"retention has removed messages of log {log} that decide whether message {log}:{offset} "
        f"takes effect"
    )
