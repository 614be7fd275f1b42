"""The foreign work of a whole run: what the plan predicts, against what was counted.

The collectors' counts come from their status pages, the consumers' from the consumers themselves
(`Consumer.entries`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self

from bench.measured_work import MeasuredWork, WorkRow, measured_work
from collectors.reconfiguration.status_pages import ReportedCounts, reported_counts
from multicast.consuming.entries_read import ConsumerEntries
from multicast.control import ControlReader, log_partition
from multicast.drivers.protocol import Driver
from topology.tree import Plan

# For the last entries to reach the last collector, which takes tens of milliseconds; what was not
# counted by then is shown as a difference.
_SETTLE_S = 10.0
_PAUSE_S = 0.1  # between two looks at the status pages, which people do not notice


class RunWork:
    """Measures from its opening on; a context manager. All calls block, for `_SETTLE_S` at most."""

    def __init__(self, driver: Driver, plan: Plan) -> None:
        self._driver = driver
        self._plan = plan
        self._logs = {log_partition(log): log.name for log in plan.logs}
        with ExitStack() as opened:
            self._control = ControlReader(driver, plan.topic)
            opened.callback(self._control.close)
            self._first = driver.last_stable_offsets(list(self._logs))
            self._began = time.monotonic()
            self._before = self._counts()
            _wait(self._all_counted)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def measured(self, consumers: Callable[[], Mapping[str, ConsumerEntries]]) -> MeasuredWork:
        """Wait until nothing that the plan predicts is outstanding; give what was counted.

        `consumers` gives, by name, what each consumer that reads a collector has counted so far.
        """
        work = self._now(consumers())

        def is_settled() -> bool:
            nonlocal work
            work = self._now(consumers())
            return all(_is_complete(row) for row in (*work.collectors, *work.consumers))

        _wait(is_settled)
        return work

    def _now(self, consumers: Mapping[str, ConsumerEntries]) -> MeasuredWork:
        last = self._driver.last_stable_offsets(list(self._logs))
        after = self._counts()
        growth = {name: last[log] - self._first[log] for log, name in self._logs.items()}
        return measured_work(
            self._plan,
            growth,
            self._before.counts,
            after.counts,
            consumers,
            seconds=time.monotonic() - self._began,
            missing=after.missing,
        )

    def _all_counted(self) -> bool:
        self._before = self._counts()
        return not self._before.missing

    def _counts(self) -> ReportedCounts:
        return reported_counts(self._control.refresh())


def _is_complete(row: WorkRow) -> bool:
    """Return whether all that is predicted was counted, where counting was possible at all."""
    passed_on, dropped = row.passed_on_measured, row.dropped_measured
    return (passed_on is None or passed_on >= row.passed_on_predicted) and (
        dropped is None or dropped >= row.dropped_predicted
    )


def _wait(condition: Callable[[], bool]) -> None:
    """Wait for a condition, for a bounded time."""
    deadline, pause = time.monotonic() + _SETTLE_S, threading.Event()
    while not condition() and time.monotonic() < deadline:
        pause.wait(_PAUSE_S)
