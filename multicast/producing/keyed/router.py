"""Finds the partitions of keys: by the plan in force and the topic's number of Kafka partitions.

    index       a Kafka partition of the topic, from 0: what a partitioner gives for a key
    layout      for each index, the plan's partition whose log it is: "P1" is 0, "P2" is 1, …

Kafka's producers compute the index from the number of partitions that the topic has. A plan that
declares another number would put keys elsewhere than they do, so nothing is sent by key then.

The layout is read once before the first key is routed, and again when it is `_CHECK_EVERY_S` old:
on a thread, so that no message waits for it. While it is refused, each call reads it again, at most
once in `_RETRY_S`. (Java's producers look for new partitions every five minutes.)
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import SupportsIndex

from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver
from multicast.errors import (
    AmcastError,
    PartitionsDiffer,
    TopicMissing,
    UndeclaredDestination,
    UsageError,
)
from multicast.producing.keyed.partitioners import Partitioner
from topology.tree import Plan

# Two requests so often for each producer that sends by keys. Ten times more often would cost as
# much as following the control topic; ten times more rarely, keys would go to their old partitions
# for minutes after partitions were added.
_CHECK_EVERY_S = 10.0
# A caller in a loop must not turn each of its refusals into two requests.
_RETRY_S = 1.0
_JOIN_S = 10.0  # `close` waits so long for the thread, which may be in a request to the cluster
_KEY_SHOWN_MAX = 40  # characters of a key in an error


class KeyRouter:
    """Routes keys to partitions. Safe from any thread.

    `newest_plan` reads the plan in force from the control topic; it is called on any thread.
    """

    def __init__(
        self, driver: Driver, partitioner: Partitioner, newest_plan: Callable[[], Plan]
    ) -> None:
        self._driver = driver
        self._clock = clock_of(driver)
        self._partitioner = partitioner
        self._newest_plan = newest_plan
        self._lock = threading.Lock()  # to read the layout
        # The layout, or why keys are refused; replaced as a whole. Empty before the first look.
        self._layout: tuple[str | None, ...] | PartitionsDiffer = ()
        self._checked_at = 0.0
        self._thread: threading.Thread | None = None

    def partitions(self, of: Sequence[bytes]) -> list[str]:
        """Give the partition of each key; blocks for two requests before the first answer.

        Raises `PartitionsDiffer` if the plan and the topic have different numbers of partitions,
        `UndeclaredDestination` if the plan has no log for a key's index, `UsageError` for an index
        that does not exist, and `ClusterUnreachable`.
        """
        layout = self._current()
        names = []
        for key in of:
            index = self._partitioner(key, len(layout))
            if not isinstance(index, SupportsIndex) or not 0 <= index < len(layout):
                raise UsageError(
                    f"the partitioner gives partition {index!r} for key {_shown(key)}; the topic "
                    f"has {len(layout)}, from 0"
                )
            name = layout[index]
            if name is None:
                raise UndeclaredDestination(
                    f"key {_shown(key)} goes to Kafka partition {index}, for which the plan has no "
                    f"partition; add it to the interest file, then run "
                    f"'amcast topology plan --from-cluster' and 'amcast topology apply'"
                )
            names.append(name)
        return names

    @property
    def ready(self) -> bool:
        """Whether `partitions` would answer now without any request."""
        return bool(self._layout) and not isinstance(self._layout, PartitionsDiffer)

    def close(self) -> None:
        """Wait for the thread, if it runs."""
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _current(self) -> tuple[str | None, ...]:
        layout = self._layout
        age_s = self._clock.monotonic() - self._checked_at
        if not layout or isinstance(layout, PartitionsDiffer):
            layout = self._read(age_s)
        elif age_s > _CHECK_EVERY_S and self._lock.acquire(blocking=False):
            self._checked_at = self._clock.monotonic()
            if not self._clock.threads:
                self._check_later()
                return self._current()
            self._thread = threading.Thread(
                target=self._check_later, name="amcast-keys", daemon=True
            )
            self._thread.start()
        if isinstance(layout, PartitionsDiffer):
            raise PartitionsDiffer(str(layout))  # a new one: the traceback is of this call
        return layout

    def _read(self, age_s: float) -> tuple[str | None, ...] | PartitionsDiffer:
        """Read the layout here, unless it was read a moment ago."""
        with self._lock:
            if not self._layout or age_s > _RETRY_S:
                self._check()
            return self._layout

    def _check_later(self) -> None:
        """Read the layout, under the lock; an outage leaves the one that is known."""
        try:
            with contextlib.suppress(AmcastError):
                self._check()
        finally:
            self._lock.release()

    def _check(self) -> None:
        plan = self._newest_plan()
        topic = plan.topic
        count = self._driver.partition_counts([topic]).get(topic, 0)
        if not count:
            raise TopicMissing(f"topic {topic} does not exist; 'amcast topology apply' makes it")
        by_index = {log.partition: log.name for log in plan.logs if log.topic == topic}
        self._checked_at = self._clock.monotonic()
        if count == len(by_index):
            self._layout = tuple(by_index.get(index) for index in range(count))
        else:
            self._layout = PartitionsDiffer(
                f"topic {topic} has {count} partitions, but the plan of epoch {plan.epoch} has "
                f"{len(by_index)}: keys would go elsewhere than the topic's other producers put "
                f"them; name all {count} in the interest file, then run 'amcast topology plan "
                f"--from-cluster' and 'amcast topology apply', or name the partitions in 'to'"
            )


def _shown(key: bytes) -> str:
    text = repr(key)
    return text if len(text) <= _KEY_SHOWN_MAX else f"{text[: _KEY_SHOWN_MAX - 1]}…"
