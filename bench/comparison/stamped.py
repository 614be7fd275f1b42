"""A driver whose appenders note how long each append took, for the producer of a benchmark."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from typing import Any

from bench.comparison.events import Accepted
from bench.comparison.workload import STAMP_BYTES
from multicast.drivers.protocol import (
    Appended,
    Appender,
    AppendOutcome,
    DoneAll,
    Driver,
    Headers,
    TopicPartition,
)


class Stamped:
    """An appender that notes how long each append took; with `accepted`, also each outcome."""

    def __init__(
        self, inner: Appender, took: array[int], accepted: list[Accepted] | None = None
    ) -> None:
        self._inner, self.ready, self.prepare = inner, inner.ready, inner.prepare
        self._took = took
        self._accepted = accepted
        self.errors = 0

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Append, and note the time until the acknowledgement."""
        began = time.monotonic_ns()

        def acknowledged(outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                self._note(value, began, outcome.offset)
            else:
                self.errors += 1
            done(outcome)

        self._inner.append(partition, value, key=key, headers=headers, done=acknowledged)

    def _note(self, value: bytes | None, began: int, offset: int) -> None:
        now = time.monotonic_ns()
        self._took.append(now - began)
        if self._accepted is not None and value:
            stamp = value[:STAMP_BYTES]
            self._accepted.append(Accepted(stamp, len(value), began, now, offset))

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        done: DoneAll,
        **fields: Any,
    ) -> int:
        """Append all, and note the time until the acknowledgement of each."""
        began = time.monotonic_ns()

        def acknowledged(first: int, count: int, outcome: AppendOutcome) -> None:
            if isinstance(outcome, Appended):
                for more, value in enumerate(values[first : first + count]):
                    self._note(value, began, outcome.offset + more)
            else:
                self.errors += count
            done(first, count, outcome)

        return self._inner.append_all(partition, values, done=acknowledged, **fields)

    def flush(self, timeout_s: float) -> bool:
        """Wait until every append so far has its outcome."""
        return self._inner.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Close the appender."""
        self._inner.close(timeout_s)


class StampedDriver:
    """A driver whose appenders are `Stamped`; everything else is delegated."""

    def __init__(self, inner: Driver, accepted: list[Accepted] | None = None) -> None:
        self._inner = inner
        self.took = array("q")
        self.accepted = accepted
        self.appenders: list[Stamped] = []

    def appender(self, **settings: Any) -> Appender:
        """Open a `Stamped` appender; what is sent beside messages is not stamped."""
        opened = Stamped(self._inner.appender(**settings), self.took, self.accepted)
        self.appenders.append(opened)
        return opened

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
