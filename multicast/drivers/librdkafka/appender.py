"""Appends through librdkafka's idempotent producer.

In go records; out come outcomes, each once. librdkafka itself bounds what is in flight and says
at once when that is full. What its errors mean stands in `outcomes.py`.

No record is ever stored twice. librdkafka's own promise ends where it *bumps the epoch* of its
producer: from then on it sends again, under a new sequence, what the brokers may have stored
before. So nothing here may make it do that (`driver.py` has the settings, docs/hazards.md the
whole list), and a producer that has left a gap in its sequence sends no more:

    overdue     an append has waited for the delivery time-out: we settle it as unknown, and
                librdkafka, whose own time-out is off, still tries
    stuck       librdkafka has tried for twice that time: the producer is replaced
    broken      an append failed, or librdkafka has given up on its producer: it is replaced, too
    replaced    no new append goes to it. It may deliver what it holds while acknowledgements
                come; what is left is purged, settled as unknown, and never sent again by us
    held        appends that are started meanwhile; the next producer gets them, in their order
    busy        appends come so fast that the appending thread serves the callbacks itself: the
                package takes the interpreter's lock once for each, and two threads that fight
                for it halve the rate

Invariants: an append that was started is settled once, at the latest by `close`. Of all producers
of an appender one at most sends; at most `_ENDING_MAX` more are being closed.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from multicast.drivers.access import Access, user_of
from multicast.drivers.librdkafka.outcomes import Outcomes, name, not_sent, unknown
from multicast.drivers.librdkafka.settings import LOG
from multicast.drivers.librdkafka.started import DONE_FAILED, Many, Started
from multicast.drivers.protocol import AppendFailed, AppendOutcome, Headers, TopicPartition
from multicast.errors import BufferFull, UsageError

_SERVED_EVERY = 32
_BUSY_S = 0.002
_IDLE_S = 0.25  # an outcome ends the wait at once; only `close` and the guard may wait so long
_LOOK_S = 0.1
_STUCK_AFTER = 2  # delivery time-outs
_DRAIN_S = 1.0
_STALLED_S = 0.25  # no acknowledgement for so long: those that are left do not come soon
_POLL_S = 0.05
_PURGE_S = 0.5  # librdkafka's threads need milliseconds to give up what they hold
_END_S = 5.0
_ENDING_MAX = 2


_CLOSED = "This appender was closed before."


class _Append(NamedTuple):
    partition: TopicPartition
    value: bytes | None
    key: bytes | None
    headers: Headers


class LibrdkafkaAppender:
    """An appender with a producer of its own, whose callbacks a thread of ours serves."""

    def __init__(self, settings: Mapping[str, Any], *, delivery_timeout_s: float) -> None:
        self._settings = dict(settings)
        self._bootstrap = settings["bootstrap.servers"]
        self._held_max = int(settings["queue.buffering.max.messages"])
        self._held_bytes_max = int(settings["queue.buffering.max.kbytes"]) * 1024
        self._delivery_timeout_s = delivery_timeout_s
        self._looked_s = time.monotonic()
        self._producer = self._open()
        self._successor: Any = None
        self._ending: list[threading.Thread] = []
        user = user_of(settings.get("sasl.username"), settings.get("ssl.certificate.location"))
        self._outcomes = Outcomes(self._bootstrap, Access(self._bootstrap, user))
        self._started = Started(LOG)
        self._of_many = 0  # so many appends were started by calls with many
        self._lock = threading.Lock()  # to start an append, and to change the producer
        self._serving = threading.Lock()  # to settle; it is taken before the other one
        # By number, while the producer is being replaced: appends that the next one gets.
        self._held: dict[int, _Append] | None = None
        self._held_bytes = 0
        self._last_sent = 0  # the last number that went to a producer that is being replaced
        self._broken = ""  # why the producer may be used no longer
        self._given_up = ""  # why what it holds was purged
        self._closing = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="amcast-appender", daemon=True)
        self._thread.start()

    def append(
        self,
        partition: TopicPartition,
        value: bytes | None,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        done: Callable[[AppendOutcome], None],
    ) -> None:
        """Start an append; outcomes come on the serving thread, or on one that appends."""
        refused = None
        try:
            with self._lock:
                if self._closing:
                    raise UsageError(_CLOSED)
                # This is the hot path: `Started.enter` and `_produce`, without their calls.
                started = self._started
                number = started.last = started.last + 1
                started.waiting[number] = (partition, done)
                try:
                    if self._held is None and not headers:
                        self._producer.produce(
                            partition.topic,
                            value,
                            key,
                            partition.partition,
                            partial(self._settled, number),
                        )
                    else:
                        self._start(number, _Append(partition, value, key, headers))
                except BaseException as error:  # noqa: BLE001
                    refused = self._not_started(
                        number, error, _Append(partition, value, key, headers)
                    )
        except BufferError as error:
            self._serve_here()
            raise BufferFull(
                f"{len(self._producer)} appends to {self._bootstrap} are in flight already."
            ) from error
        if refused is not None:
            done(self._outcomes.not_taken(partition, refused))
        if number % _SERVED_EVERY == 0:
            self._serve_here()

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        done: Callable[[int, AppendOutcome], None],
    ) -> int:
        """Start appends in one call of the package, which takes them up to where it is full.

        It takes none while the producer is being replaced.
        """
        taken = 0
        refused: list[tuple[int, Any]] = []
        with self._lock:
            if self._closing:
                raise UsageError(_CLOSED)
            if values and self._held is None:
                many = Many(partition, done, len(values))
                number = self._started.enter(many)
                try:
                    taken, refused = self._start_all(many, values)
                except BaseException:
                    del self._started.waiting[number]
                    raise
                not_started = [*(index for index, _ in refused), *range(taken, len(values))]
                self._started.drop_some(many, not_started)
                self._of_many += taken
        for index, error in refused:
            done(index, self._outcomes.not_taken(partition, error))
        self._serve_here()
        return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight, and each outcome was taken."""
        deadline = time.monotonic() + timeout_s
        while self._started.waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            if self._serving.acquire(timeout=min(left_s, _BUSY_S)):
                try:
                    self._poll(min(left_s, 0.1))
                finally:
                    self._serving.release()
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Flush, then give up what is left."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        self.flush(timeout_s)
        self._closed.set()
        self._thread.join()
        self._stop_sending(self._started.last)
        self._given_up = self._given_up or "the appender was closed"
        with self._serving:
            self._give_up()
            self._started.forget(
                self._started.last, lambda at: not_sent(at, "the appender was closed")
            )
        self._held, self._successor = {}, None

    # -- under the lock that starts appends ---------------------------------------------------

    def _start(self, number: int, append: _Append) -> None:
        if self._held is None:
            self._produce(number, append)
        else:
            self._hold(number, append)

    def _not_started(self, number: int, error: BaseException, append: _Append) -> Any:
        """Give the error of an append that the package refuses for good; raise any other one.

        What is refused because librdkafka has given up on its producer is held for the next one.
        """
        why = error.args[0] if isinstance(error, KafkaException) else None
        try:
            if why is not None and _is_fatal(why):
                self._break(why)
                self._stop_sending(number - 1)
                self._hold(number, append)
                return None
        except BufferError:
            del self._started.waiting[number]
            raise
        del self._started.waiting[number]
        if why is None:
            raise error
        return why

    def _produce(self, number: int, append: _Append) -> None:
        at, value, key, headers = append
        settled = partial(self._settled, number)
        if headers:
            self._producer.produce(
                at.topic, value, key, at.partition, settled, headers=list(headers)
            )
        else:
            self._producer.produce(at.topic, value, key, at.partition, settled)

    def _hold(self, number: int, append: _Append) -> None:
        """Keep an append for the next producer; raises `BufferError` as the package does."""
        assert self._held is not None, "only where a producer is being replaced, another one comes"
        size = len(append.value or b"") + len(append.key or b"")
        full = self._held and self._held_bytes + size > self._held_bytes_max
        if full or len(self._held) >= self._held_max:
            raise BufferError
        self._held[number] = append
        self._held_bytes += size

    def _start_all(
        self, many: Many, values: Sequence[bytes | None]
    ) -> tuple[int, list[tuple[int, Any]]]:
        """Say how many were taken, and which of these the package refuses for good."""
        messages: list[dict[str, Any]] = [
            {"value": value, "callback": partial(self._settled_of_many, many, index)}
            for index, value in enumerate(values)
        ]
        refused: list[tuple[int, Any]] = []
        if self._producer.produce_batch(
            many.partition.topic, messages, many.partition.partition
        ) == len(messages):
            return len(messages), refused
        for index, message in enumerate(messages):
            error = message.get("_error")
            if error is None:
                continue
            # What stands behind the first that found the queue full was not taken, either.
            if error.code() == KafkaError._QUEUE_FULL:  # noqa: SLF001
                return index, refused
            if _is_fatal(error):
                self._break(error)
                self._stop_sending(self._started.last)
                return index, refused
            refused.append((index, error))
        return len(messages), refused

    def _stop_sending(self, last_sent: int) -> None:
        if self._held is None:
            self._held = {}
            self._held_bytes = 0
            self._last_sent = last_sent

    def _break(self, error: Any) -> None:
        self._broken = self._broken or f"an error ended its sequence ({error.str()})"

    # -- on whatever thread settles, one at a time --------------------------------------------

    def _poll(self, timeout_s: float) -> int:
        """Have the package call back with outcomes; say how many came."""
        try:
            return int(self._producer.poll(timeout_s))
        except KafkaException as error:
            # So the package tells, once, that librdkafka has given up on its producer.
            if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                self._outcomes.denied = True
            self._break(error.args[0])
            return 1

    def _serve_here(self) -> None:
        # One thread at a time, so that outcomes come in the order of their offsets. A callback
        # that appends again finds the lock held, too: nothing nests.
        if self._serving.acquire(blocking=False):
            try:
                self._poll(0)
            finally:
                self._serving.release()

    def _settled(self, number: int, error: Any, message: Any) -> None:
        one = self._started.waiting.get(number)
        if not isinstance(one, tuple):
            self._hear_late(number, error)
            self._started.given_up.pop(number, None)
            return
        at, done = one
        try:
            done(self._outcome(at, error, message))
        except Exception:  # noqa: BLE001
            LOG.exception(DONE_FAILED)
        finally:
            self._started.waiting.pop(number, None)

    def _settled_of_many(self, many: Many, index: int, error: Any, message: Any) -> None:
        if many.open[index]:
            many.open[index] = 0
            try:
                many.done(index, self._outcome(many.partition, error, message))
            except Exception:  # noqa: BLE001
                LOG.exception(DONE_FAILED)
        else:
            self._hear_late(many.number, error)
        many.left -= 1
        if many.left <= many.dropped:
            self._started.finish(many)

    def _hear_late(self, number: int, error: Any) -> None:
        """Hear what became of an append that was given up, maybe with its producer."""
        at = self._started.given_up.get(number)
        if at is not None and error is not None and self._outcomes.breaks(at, error):
            self._break(error)

    def _outcome(self, partition: TopicPartition, error: Any, message: Any) -> AppendOutcome:
        if error is None:
            return self._outcomes.stored(partition, message.offset())
        if self._outcomes.breaks(partition, error):
            self._break(error)
        return self._outcomes.failed(partition, error, self._given_up or self._broken)

    # -- on the serving thread ----------------------------------------------------------------

    def _open(self) -> Any:
        try:
            return confluent_kafka.Producer(self._settings, logger=LOG)
        except (KafkaException, ValueError) as error:
            raise UsageError(f"librdkafka refuses the client settings: {error}.") from error

    def _serve(self) -> None:
        seen = 0
        while not self._closed.is_set():
            count = self._started.last + self._of_many
            busy = count - seen > _SERVED_EVERY
            seen = count
            if busy:
                self._closed.wait(_BUSY_S)
            looks = self._broken or time.monotonic() - self._looked_s >= _LOOK_S
            if looks or not busy:
                with self._serving:
                    self._poll(0 if busy else _IDLE_S)
            if looks:
                self._guard()

    def _guard(self) -> None:
        """Hold the delivery time-out, and go on with a new producer where one is needed."""
        # What was overdue before outcomes were taken: they may have come while we were frozen.
        overdue = self._started.by(self._looked_s - self._delivery_timeout_s)
        stuck_s = _STUCK_AFTER * self._delivery_timeout_s
        self._looked_s = now = time.monotonic()
        self._started.mark(now, keep_s=stuck_s)
        oldest = self._started.oldest()
        if self._given_up:  # and its successor could not be opened yet
            with self._serving:
                self._succeed()
        elif self._broken:
            # One that may write nowhere is as good as the next one until somebody appends.
            if not self._outcomes.denied or self._started.waiting:
                self._replace(self._broken)
        elif oldest is not None and oldest <= overdue:
            at = self._started.at(oldest)
            if at is not None and oldest <= self._started.by(now - stuck_s):
                self._replace(f"{name(at)} acknowledged nothing for {stuck_s:g} s")
            why = f"no broker acknowledged it within {self._delivery_timeout_s:g} s"
            with self._serving:
                self._started.give_up(overdue, lambda at: unknown(at, why))

    def _replace(self, why: str) -> None:
        """Settle all that the producer holds, and let another one take its place."""
        LOG.warning("A producer is replaced: %s", why)
        with self._lock:
            self._stop_sending(self._started.last)
        self._prepare()  # it connects while the other one is drained
        with self._serving:
            self._drain()
            self._given_up = f"its producer was replaced, since {why}"
            self._give_up()
            self._succeed()

    def _drain(self) -> None:
        """Let the producer deliver what it can, while acknowledgements come."""
        now = heard = time.monotonic()
        end = now + _DRAIN_S
        while self._started.waits(self._last_sent) and not self._closed.is_set():
            if now >= end or now - heard >= _STALLED_S:
                return
            served = self._poll(_POLL_S)
            now = time.monotonic()
            heard = now if served else heard

    def _give_up(self) -> None:
        """Purge what the producer holds, and settle it as unknown."""
        end = time.monotonic() + _PURGE_S
        while True:
            # With the setting for gapless sequences this ends the producer: it sends no more.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            if not self._started.waits(self._last_sent) or time.monotonic() >= end:
                break
            self._poll(_POLL_S)
        self._started.forget(self._last_sent, lambda at: unknown(at, self._given_up))

    def _prepare(self) -> bool:
        """Open the successor; there is none while too many others are still being closed."""
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        if self._successor is None and len(self._ending) < _ENDING_MAX:
            try:
                self._successor = self._open()
            except UsageError as error:
                LOG.warning("No producer can take the place of one that was given up: %s", error)
        return self._successor is not None

    def _succeed(self) -> None:
        """Hand over to the successor what was held; without one, see that its time runs out."""
        failed: dict[int, AppendFailed] = {}
        refused: dict[int, tuple[TopicPartition, Any]] = {}
        with self._lock:
            assert self._held is not None, "nothing is appended to a producer that was given up"
            held = self._held
            if self._prepare():
                self._close_later(self._producer)
                self._producer, self._successor = self._successor, None
                self._held, self._broken, self._given_up = None, "", ""
                for number, append in held.items():
                    try:
                        self._produce(number, append)
                    except BufferError as error:
                        failed[number] = not_sent(append.partition, str(error))
                    except KafkaException as error:
                        refused[number] = (append.partition, error.args[0])
            else:
                overdue = self._started.by(time.monotonic() - self._delivery_timeout_s)
                for number in [number for number in held if number <= overdue]:
                    at = held.pop(number).partition
                    failed[number] = not_sent(at, "no producer could be opened in time")
        if refused:
            self._poll(0)  # it tells why librdkafka has given up on this producer already
        for number, (at, why) in refused.items():
            failed[number] = self._outcomes.not_taken(at, why)
        for number, outcome in failed.items():
            self._started.settle(number, outcome)

    def _close_later(self, producer: Any) -> None:
        """Close a producer in a thread: that may take as long as one of its addresses is sought."""
        held = [producer]
        thread = threading.Thread(
            target=_end, args=(held,), name="amcast-appender-end", daemon=True
        )
        self._ending.append(thread)
        thread.start()


def _is_fatal(error: Any) -> bool:
    return bool(error.fatal() or error.code() == KafkaError._FATAL)  # noqa: SLF001


def _end(held: list[Any]) -> None:
    """Give up what a producer still holds; with the last reference to it the package closes it."""
    producer = held.pop()
    end = time.monotonic() + _END_S
    while len(producer) and time.monotonic() < end:
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        with contextlib.suppress(KafkaException):  # its end is told once more
            producer.poll(_POLL_S)
