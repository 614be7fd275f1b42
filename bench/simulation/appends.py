"""Appends whose fate the simulator chooses one by one: lost, doubled, late, refused.

Collectors and operators of the simulator append by them. Producers do by the product's appender,
whose requests meet their fates at the brokers (`requests.py`).

    pending     an append without an outcome

Invariant, for each appender: every append is settled once, at the latest by `close`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from multicast.drivers.memory.logs import MemoryLog, name
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    IN_FLIGHT_MAX,
    Appended,
    AppendFailed,
    AppendOutcome,
    DoneAll,
    Headers,
    TopicPartition,
)
from multicast.errors import AppendRefused, AppendUnknown, BufferFull, UsageError


class PendingAppend:
    """An append in flight, which a simulator may lose, duplicate or delay.

    `store` writes the record to the log (each time it is called); `settle` reports the outcome to
    the caller and must be called once. An append that `FatedAppender.close` settled as unknown may
    still be stored.
    """

    __slots__ = ("_done", "_log", "headers", "key", "partition", "settled", "value")

    def __init__(
        self,
        log: MemoryLog,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None,
        headers: Headers,
        done: Callable[[AppendOutcome], None],
    ) -> None:
        self._log = log
        self._done = done
        self.partition = partition
        self.value = value
        self.key = key
        self.headers = headers
        self.settled = False

    @property
    def size(self) -> int:
        """The bytes of value and key."""
        return len(self.value or b"") + len(self.key or b"")

    def store(self) -> AppendOutcome:
        """Write the record to the log and return the outcome for `settle`."""
        if self.size > self._log.message_bytes_max:
            return AppendFailed(
                AppendRefused(
                    f"A message of {self.size} bytes is too large for {name(self.partition)}, "
                    f"which accepts {self._log.message_bytes_max}."
                )
            )
        try:
            offset = self._log.write(self.partition, self.value, key=self.key, headers=self.headers)
        except UsageError as error:
            return AppendFailed(AppendRefused(str(error)))
        return Appended(offset)

    def settle(self, outcome: AppendOutcome) -> None:
        """Report the outcome to the caller; only the first call has an effect."""
        with self._log.changed:
            first, self.settled = not self.settled, True
        if first:
            self._done(outcome)


class FatedAppender:
    """An appender of a `MemoryLog` that calls `step` with each append."""

    def __init__(
        self,
        log: MemoryLog,
        *,
        step: Callable[[PendingAppend], None],
        in_flight_max: int = IN_FLIGHT_MAX,
    ) -> None:
        self._log = log
        self._step = step
        self._in_flight_max = in_flight_max
        self._in_flight: dict[int, PendingAppend] = {}
        self._count = 0
        self._closed = False

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Start an append by a call of `step`."""
        if self._closed:
            raise UsageError("This appender is closed; open another one.")
        with self._log.changed:
            number = self._count = self._count + 1

            def settled(outcome: AppendOutcome) -> None:
                with self._log.changed:
                    del self._in_flight[number]
                    self._log.changed.notify_all()
                done(outcome)

            append = PendingAppend(
                self._log, partition, value, key=key, headers=headers, done=settled
            )
            if len(self._in_flight) >= self._in_flight_max:
                raise BufferFull(
                    f"{len(self._in_flight)} appends are in flight; wait for some outcomes, then "
                    f"append again."
                )
            self._in_flight[number] = append
        self._step(append)

    def ready(self, partition: TopicPartition) -> bool:  # noqa: ARG002 - no append waits here
        """Return True."""
        return True

    def prepare(self, partition: TopicPartition) -> None:
        """Do nothing."""

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start one append after another until the buffer is full."""
        for index, value in enumerate(values):
            try:
                self.append(
                    partition,
                    value,
                    key=None if keys is None else keys[index],
                    headers=() if headers is None else headers[index],
                    done=partial(done, index, 1),
                )
            except BufferFull:
                return index
        return len(values)

    def flush(self, timeout_s: float) -> bool:
        """Wait (if the log can wait) until nothing is in flight."""
        return self._log.wait_for(lambda: not self._in_flight, timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, then settle the remaining appends as unknown."""
        self._closed = True
        self.flush(timeout_s)
        for append in list(self._in_flight.values()):
            append.settle(
                AppendFailed(
                    AppendUnknown(
                        f"It is unknown whether {name(append.partition)} holds the record: the "
                        f"appender was closed."
                    )
                )
            )
