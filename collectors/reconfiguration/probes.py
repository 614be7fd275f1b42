"""Probes: consumers that read during the change of a plan, and check what they deliver.

Each consumer of the running plan gets a probe with its interest; of many consumers, only some that
are spread over the plan (each probe takes threads and sockets, and so delays what it measures). A
probe begins at the end of the order before the change, and reads until the next epoch has begun.

    delay    from a message's timestamp by its producer to its delivery to a probe. Only messages
             count that were stamped after all probes had caught up: the delay of older ones shows
             the start of the probe, not the delivery
    window   of a log, the messages that all its probes have delivered. Only these are checked,
             because probes begin and end at different moments
    interest of a probe: that of its consumer in the epoch of each message, as the new plan may
             change it

Invariant: a probe commits nothing, and `judged` stops it at the latest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Self

from multicast.consuming.consumer import Consumer
from multicast.consuming.delivery import Batch
from multicast.consuming.subscription import End, SubscriptionRequest
from multicast.control import SINGLE_LOG, ControlReader, ControlState
from multicast.drivers.protocol import Driver
from multicast.errors import AmcastError
from multicast.history import History
from multicast.order.runs import OFFSET_MAX
from multicast.properties import check_all
from multicast.verification.audit import AuditCollector
from topology.carry_over import Retained, retained
from topology.tree import Plan

_POLL_S = 0.1  # only how soon a probe notices that it has to stop
_QUIET_S = 1.0  # a probe that has delivered nothing for so long is taken to be at the end
_NEW_MS = 100.0  # a probe that delivers a message younger than this has caught up
_CAUGHT_UP_S = 5.0  # on an overloaded system a probe may never catch up: then apply goes on
_MESSAGES_MAX = 2_000_000  # kept by a probe for the check; bounds its memory on a busy topic
PROBES_MAX = 16  # with ten times more, the probes themselves would delay deliveries
_JOIN_S = 10.0  # a thread that hangs in a poll for longer is left behind; it is a daemon


@dataclass(frozen=True, slots=True)
class Seen:
    """What the probes delivered; a delay is None if no message came during the change.

    `violations` are witnesses in words; `unread` names probes that stopped with an error.
    """

    messages: int
    deliveries: int
    violations: tuple[str, ...]
    delay_p99_ms: float | None
    delay_max_ms: float | None
    delay_p99_ms_of: Mapping[str, float | None]
    consumers: int  # of the plan; `delay_p99_ms_of` names those that were probed
    unread: tuple[str, ...]


class _Probe:
    def __init__(self, driver: Driver, topic: str, name: str) -> None:
        self.name = name
        self.consumer = Consumer(
            topic=topic, name=name, start="latest", committed=False, driver=driver
        )
        self.begun_epoch = self.consumer.position.epoch
        self.deliveries: list[tuple[str, int, tuple[str, ...]]] = []
        self.delays: list[tuple[float, float]] = []  # the producer's stamp, and the delay; in ms
        self.caught_up = threading.Event()
        self.error: AmcastError | None = None
        self.epoch = 0
        self.quiet_since = time.monotonic()

    def take(self, batches: Sequence[Batch]) -> None:
        now_ms, now = time.time() * 1000, time.monotonic()
        if not batches or now_ms - batches[-1].records[-1].timestamp_ms < _NEW_MS:
            self.caught_up.set()
        for batch in batches:
            self.epoch = batch.epoch
            self.quiet_since = now
            if len(self.deliveries) > _MESSAGES_MAX:
                continue
            for record in batch.records:
                self.deliveries.append((batch.log.name, record.offset, batch.to))
                self.delays.append((record.timestamp_ms, now_ms - record.timestamp_ms))


class Probes:
    """The probes of one change, a thread each; a context manager that starts and ends them."""

    def __init__(self, driver: Driver, plan: Plan, *, most: int = PROBES_MAX) -> None:
        self._driver = driver
        self._plan = plan
        entries = plan.consumers
        count = min(most, len(entries))
        probed = [entries[number * len(entries) // count] for number in range(count)]
        self._stop = threading.Event()
        self._probes = [_Probe(driver, plan.topic, entry.name) for entry in probed]
        self._threads = [
            threading.Thread(target=self._read, args=(probe,), daemon=True)
            for probe in self._probes
        ]
        self._begun_ms = 0.0

    def __enter__(self) -> Self:
        """Start all probes, and wait for at most `_CAUGHT_UP_S` until they have caught up."""
        for thread in self._threads:
            thread.start()
        deadline = time.monotonic() + _CAUGHT_UP_S
        for probe in self._probes:
            probe.caught_up.wait(max(0.0, deadline - time.monotonic()))
        self._begun_ms = time.time() * 1000
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for probe in self._probes:
            probe.consumer.close()

    def _end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _read(self, probe: _Probe) -> None:
        try:
            while not self._stop.is_set():
                probe.take(probe.consumer.poll(_POLL_S))
        except AmcastError as error:
            probe.error = error
            probe.caught_up.set()

    def wait_for_new(self, timeout_s: float) -> bool:
        """Wait until each probe has delivered a message that was sent after this call.

        Returns whether that was so within `timeout_s` seconds.
        """
        deadline, called_ms = time.monotonic() + timeout_s, time.time() * 1000
        while not all(probe.delays and probe.delays[-1][0] >= called_ms for probe in self._probes):
            if time.monotonic() > deadline:
                return False
            self._stop.wait(_POLL_S)
        return True

    def judged(self, after: Plan, *, timeout_s: float = 10.0) -> Seen:
        """Read until all probes are in the epoch of `after` or quiet; then check what they saw.

        A probe of a retained collector or log notices no change, so nobody waits for it. Blocks for
        at most `timeout_s` seconds, and then stops the probes.
        """
        deadline = time.monotonic() + timeout_s
        kept = retained(self._plan, after)
        waiting = [probe for probe in self._probes if not _is_kept(probe, kept)]
        while time.monotonic() < deadline and not all(_done(each, after.epoch) for each in waiting):
            self._stop.wait(_POLL_S)
        self._end()
        during = {
            probe.name: [delay for stamp, delay in probe.delays if stamp >= self._begun_ms]
            for probe in self._probes
        }
        delays = list(chain.from_iterable(during.values()))
        control = ControlReader(self._driver, self._plan.topic)
        try:
            report = check_all(_history(self._probes, control.refresh()))
        finally:
            control.close()
        return Seen(
            messages=report.messages,
            deliveries=report.deliveries,
            violations=tuple(str(violation.witness) for violation in report.violations),
            delay_p99_ms=_p99(delays),
            delay_max_ms=max(delays, default=None),
            delay_p99_ms_of={name: _p99(delays) for name, delays in during.items()},
            consumers=len(self._plan.consumers),
            unread=tuple(f"{probe.name}: {probe.error}" for probe in self._probes if probe.error),
        )


def _p99(delays: list[float]) -> float | None:
    delays.sort()
    return delays[int(0.99 * (len(delays) - 1))] if delays else None


def _is_kept(probe: _Probe, kept: Retained) -> bool:
    source = probe.consumer.position.source
    return source in kept.collectors or source.removeprefix(SINGLE_LOG) in kept.logs


def _done(probe: _Probe, epoch: int) -> bool:
    quiet = time.monotonic() - probe.quiet_since > _QUIET_S
    return probe.error is not None or probe.epoch >= epoch or quiet


def _history(probes: Sequence[_Probe], control: ControlState) -> History:
    """Make a history of the messages of each log's window; `control` was read after them."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for probe in probes:
        firsts: dict[str, int] = {}
        lasts: dict[str, int] = {}
        for log, offset, _ in probe.deliveries:
            firsts.setdefault(log, offset)
            lasts[log] = offset
        for log, offset in firsts.items():
            first[log] = max(first.get(log, 0), offset)
            last[log] = min(last.get(log, lasts[log]), lasts[log])
    end = End(control.epoch, control.epoch, dict.fromkeys(first, OFFSET_MAX))
    audit = AuditCollector(end)
    for probe in probes:
        audit.begins(probe.name, SubscriptionRequest.of(probe.name, None), probe.begun_epoch)
        for (log, to), run in groupby(probe.deliveries, key=lambda delivery: delivery[::2]):
            offsets = [offset for _, offset, _ in run if first[log] <= offset <= last[log]]
            audit.delivered_offsets(probe.name, "probe", log, to, offsets)
    return audit.history(control)
