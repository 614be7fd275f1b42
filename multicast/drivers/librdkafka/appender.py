"""Appends through librdkafka's idempotent producer.

librdkafka itself bounds what is in flight and refuses an append at once when its queue is full.
`outcomes.py` translates its errors.

No record is ever stored twice. librdkafka does not promise that once it *bumps the epoch* of its
producer: it then sends again, under new sequence numbers, what the brokers may have stored. So the
settings in `driver.py` prevent an epoch bump (docs/hazards.md lists the causes), and a producer
with a gap in its sequence is replaced:

    overdue     an append has waited for the delivery time-out: it is settled as unknown, while
                librdkafka, whose own time-out is off, keeps trying
    stuck       librdkafka has tried for twice that time: the producer is replaced
    broken      an append failed, or librdkafka's producer failed for good: it is replaced
    replaced    a producer that gets no new appends. It may deliver what it holds while
                acknowledgements come; the rest is purged, settled as unknown and never sent again
    held        appends that start meanwhile; the next producer gets them in their order
    busy        appends come so fast that the appending thread serves the callbacks itself: each
                callback needs the interpreter's lock, and two threads competing for it halve the
                rate

Invariants: every append that started is settled once, at the latest by `close`. Of an appender's
producers, those that send <= 1, and those that are being closed <= `_ENDING_MAX`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from multicast.drivers.access import Access, user_of
from multicast.drivers.home_process import HomeProcess
from multicast.drivers.librdkafka.client import EndedClient, end_later, open_client
from multicast.drivers.librdkafka.outcomes import Outcomes, is_fatal, name, not_sent, unknown
from multicast.drivers.librdkafka.settings import LOG
from multicast.drivers.librdkafka.started import DONE_FAILED, HeldAppend, Many, Place, Started
from multicast.drivers.protocol import (
    CLOSE_TIMEOUT_S,
    AppendFailed,
    AppendOutcome,
    DoneAll,
    Headers,
    TopicPartition,
    append_each,
)
from multicast.errors import BufferFull, UsageError

# The appending thread serves callbacks after this many appends. A plain choice: serving each time
# adds a call and a lock to each append; serving after 300 would delay outcomes under load.
_SERVE_APPENDS = 32
_BUSY_S = 0.002  # how late the serving thread notices that appends have paused
_IDLE_S = 0.25  # an outcome ends this wait at once; only `close` and the guard may wait as long
_GUARD_S = 0.1  # the period of the guard: overdue outcomes may be 1 s late (docs/hazards.md)
_STUCK_TIMEOUTS = 2  # delivery time-outs; each replacement settles all waiting appends as unknown
_DRAIN_S = 1.0  # a replaced producer delays new appends by this much, to deliver its own
_REPLACED_S = 3.0  # a replacement takes two seconds (docs/hazards.md)
_STALLED_S = 0.25  # after such a pause in acknowledgements, the rest does not come soon
_POLL_S = 0.05  # a plain choice: how late the drain and the purge notice that they are done
_FLUSH_POLL_S = 0.1  # an outcome ends it at once; meanwhile no other thread can serve
_PURGE_S = 0.5  # librdkafka's threads take milliseconds to release what they hold
# Closing lasts as long as a DNS look-up of a broker; without a limit, an outage would pile up
# replaced producers, each with a thread for every broker.
_ENDING_MAX = 2

_CLOSED = "This appender is closed; open another one."


class LibrdkafkaAppender:
    """An appender with its own producer, and a thread that serves the producer's callbacks."""

    def __init__(self, settings: Mapping[str, Any], *, delivery_timeout_s: float) -> None:
        self._home = HomeProcess("producer", self)
        self._settings = dict(settings)
        self._bootstrap = settings["bootstrap.servers"]
        self._held_max = int(settings["queue.buffering.max.messages"])
        self._held_bytes_max = int(settings["queue.buffering.max.kbytes"]) * 1024
        self._delivery_timeout_s = delivery_timeout_s
        self._guarded_at_s = time.monotonic()
        self._producer = self._open()
        self._successor: Any = None
        self._ending: list[threading.Thread] = []
        user = user_of(settings.get("sasl.username"), settings.get("ssl.certificate.location"))
        self._outcomes = Outcomes(self._bootstrap, Access(self._bootstrap, user))
        self._started = Started(LOG)
        self._of_many = 0  # the number of appends started by calls with many
        self._lock = threading.Lock()  # to start an append, and to change the producer
        self._serving = threading.Lock()  # to settle; taken before the other lock
        # While the producer is being replaced: appends for the next one, by number.
        self._held: dict[int, HeldAppend] | None = None
        self._held_bytes = 0
        self._last_sent = 0  # the last number that the producer being replaced got
        self._broken = ""  # why the producer must be replaced
        self._given_up = ""  # why its remaining appends were purged
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
        """Start an append; outcomes come on the serving thread, or on an appending one."""
        self._home.check()
        refused = None
        try:
            with self._lock:
                if self._closing:
                    raise UsageError(_CLOSED)
                # This is the hot path: `Started.enter` and `_produce`, inlined.
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
                        self._start(number, HeldAppend(partition, value, key, headers))
                except BaseException as error:  # noqa: BLE001
                    refused = self._not_started(
                        number, error, HeldAppend(partition, value, key, headers)
                    )
        except BufferError as error:
            self._serve_here()
            raise BufferFull(
                f"{len(self._producer)} appends to {self._bootstrap} are in flight; wait for some "
                f"outcomes, then append again."
            ) from error
        if refused is not None:
            done(self._outcomes.not_taken(partition, refused))
        if number % _SERVE_APPENDS == 0:
            self._serve_here()

    def ready(self, partition: TopicPartition) -> bool:  # noqa: ARG002 - a producer serves all
        """Return whether no producer is being replaced: an append may wait until that is done."""
        return self._held is None

    def prepare(self, partition: TopicPartition) -> None:
        """Wait while the producer is being replaced, for `_REPLACED_S` seconds at most."""
        deadline = time.monotonic() + _REPLACED_S
        while not (self.ready(partition) or self._closed.is_set() or time.monotonic() > deadline):
            self._closed.wait(_POLL_S)

    def append_all(
        self,
        partition: TopicPartition,
        values: Sequence[bytes | None],
        *,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers] | None = None,
        done: DoneAll,
    ) -> int:
        """Start appends by one call of the package; none while the producer is being replaced."""
        if headers is not None:  # which takes none
            return append_each(self, partition, values, keys=keys, headers=headers, done=done)
        self._home.check()
        taken, refused = 0, list[tuple[int, Any]]()
        with self._lock:
            if self._closing:
                raise UsageError(_CLOSED)
            if values and self._held is None:
                many = Many(partition, done, len(values))
                number = self._started.enter(many)
                try:
                    taken, refused = self._start_all(many, values, keys or [None] * len(values))
                except BaseException:
                    del self._started.waiting[number]
                    raise
                not_started = [*(index for index, _ in refused), *range(taken, len(values))]
                self._started.drop_some(many, not_started)
                self._of_many += taken
        for index, error in refused:
            done(index, 1, self._outcomes.not_taken(partition, error))
        self._serve_here()
        return taken

    def flush(self, timeout_s: float) -> bool:
        """Wait until each append so far has its outcome."""
        self._home.check()
        deadline = time.monotonic() + timeout_s
        while self._started.waiting:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            if self._serving.acquire(timeout=min(left_s, _BUSY_S)):
                try:
                    self._poll(min(left_s, _FLUSH_POLL_S))
                finally:
                    self._serving.release()
        return True

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Flush, settle the remaining appends as unknown, and end the producer or let it end."""
        if self._home.is_left:
            return
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
                self._started.last,
                lambda partition: not_sent(partition, "the appender was closed"),
            )
            self._ending.append(end_later(self._producer))
            self._producer, self._successor = EndedClient(UsageError(_CLOSED)), None
            self._held = {}
        self._ending[-1].join(_PURGE_S)

    # -- under the lock that starts appends ---------------------------------------------------

    def _start(self, number: int, append: HeldAppend) -> None:
        if self._held is None:
            self._produce(number, append)
        else:
            self._hold(number, append)

    def _not_started(self, number: int, error: BaseException, append: HeldAppend) -> Any:
        """Return the error of an append that the package refuses for good; raise any other error.

        If librdkafka's producer failed for good, the append is held for the next one.
        """
        why = error.args[0] if isinstance(error, KafkaException) else None
        try:
            if why is not None and is_fatal(why):
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

    def _produce(self, number: int, append: HeldAppend) -> None:
        (topic, partition), value, key, headers = append
        settled = partial(self._settled, number)
        more = {"headers": list(headers)} if headers else {}
        self._producer.produce(topic, value, key, partition, settled, **more)

    def _hold(self, number: int, append: HeldAppend) -> None:
        """Keep an append for the next producer; raises `BufferError` as the package does."""
        assert self._held is not None, "only a producer that is being replaced has a successor"
        size = len(append.value or b"") + len(append.key or b"")
        full = self._held and self._held_bytes + size > self._held_bytes_max
        if full or len(self._held) >= self._held_max:
            raise BufferError
        self._held[number] = append
        self._held_bytes += size

    def _start_all(
        self, many: Many, values: Sequence[bytes | None], keys: Sequence[bytes | None]
    ) -> tuple[int, list[tuple[int, Any]]]:
        """Return how many the package took, and those among them that it refuses for good."""
        messages: list[dict[str, Any]] = [
            {"value": value, "key": key, "callback": partial(self._settled_of_many, many, index)}
            for index, (value, key) in enumerate(zip(values, keys, strict=True))
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
            # After the first that found the queue full, no other was taken.
            if error.code() == KafkaError._QUEUE_FULL:  # noqa: SLF001
                return index, refused
            if is_fatal(error):
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

    # -- on any thread that settles, one at a time --------------------------------------------

    def _poll(self, timeout_s: float) -> int:
        """Have the package call back with outcomes; return how many there were."""
        try:
            return int(self._producer.poll(timeout_s) or 0)
        except KafkaException as error:
            # The package raises this once, when librdkafka's producer has failed for good.
            if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                self._outcomes.denied = True
            self._break(error.args[0])
            return 1

    def _serve_here(self) -> None:
        # One thread at a time, so that outcomes come in the order of their offsets. A callback
        # that appends finds the lock held as well, so calls do not nest.
        if self._serving.acquire(blocking=False):
            try:
                self._poll(0)
            finally:
                self._serving.release()

    def _settled(self, number: int, error: Any, message: Any) -> None:
        entry = self._started.waiting.get(number)
        if not isinstance(entry, tuple):
            self._check_late(number, error)
            self._started.given_up.pop(number, None)
            return
        partition, done = entry
        try:
            done(self._outcome(partition, (number, 0), error, message))
        except Exception:  # noqa: BLE001
            LOG.exception(DONE_FAILED)
        finally:
            self._started.waiting.pop(number, None)

    def _settled_of_many(self, many: Many, index: int, error: Any, message: Any) -> None:
        if many.open[index]:
            many.open[index] = 0
            try:
                place = (many.number, index)
                many.done(index, 1, self._outcome(many.partition, place, error, message))
            except Exception:  # noqa: BLE001
                LOG.exception(DONE_FAILED)
        else:
            self._check_late(many.number, error)
        many.left -= 1
        if many.left <= many.dropped:
            self._started.finish(many)

    def _check_late(self, number: int, error: Any) -> None:
        """Check the late outcome of an append that was given up: it may break the producer."""
        late = self._started.given_up.get(number)
        if late is not None and error is not None and self._outcomes.breaks(late, error):
            self._break(error)

    def _outcome(
        self, partition: TopicPartition, place: Place, error: Any, message: Any
    ) -> AppendOutcome:
        if error is None:
            return self._outcomes.stored(partition, message.offset())
        if self._outcomes.breaks(partition, error):
            self._break(error)
        return self._outcomes.failed(partition, place, error, self._given_up or self._broken)

    # -- on the serving thread ----------------------------------------------------------------

    def _open(self) -> Any:
        return open_client(confluent_kafka.Producer, self._settings)

    def _serve(self) -> None:
        seen = 0
        while not self._closed.is_set():
            count = self._started.last + self._of_many
            busy = count - seen > _SERVE_APPENDS
            seen = count
            if busy:
                self._closed.wait(_BUSY_S)
            looks = self._broken or time.monotonic() - self._guarded_at_s >= _GUARD_S
            if looks or not busy:
                with self._serving:
                    self._poll(0 if busy else _IDLE_S)
            if looks:
                self._guard()

    def _guard(self) -> None:
        """Enforce the delivery time-out, and replace the producer if it is stuck or broken."""
        # Overdue at the last look: this process may have been frozen, with outcomes still waiting.
        overdue = self._started.by(self._guarded_at_s - self._delivery_timeout_s)
        stuck_s = _STUCK_TIMEOUTS * self._delivery_timeout_s
        self._guarded_at_s = now = time.monotonic()
        self._started.mark(now, keep_s=stuck_s)
        oldest = self._started.oldest()
        if self._given_up:  # its successor could not be opened yet
            with self._serving:
                self._succeed()
        elif self._broken:
            # If the user may write nowhere, a new producer would fail, too: wait for an append.
            if not self._outcomes.denied or self._started.waiting:
                self._replace(self._broken)
        elif oldest is not None and oldest <= overdue:
            stuck = self._started.partition_of(oldest)
            if stuck is not None and oldest <= self._started.by(now - stuck_s):
                self._replace(f"{name(stuck)} acknowledged nothing for {stuck_s:g} s")
            why = f"no broker acknowledged it within {self._delivery_timeout_s:g} s"
            with self._serving:
                self._started.give_up(overdue, lambda partition: unknown(partition, why))

    def _replace(self, why: str) -> None:
        """Settle all appends of the producer, and open another one in its place."""
        LOG.warning("A producer is replaced: %s", why)
        with self._lock:
            self._stop_sending(self._started.last)
        self._prepare()  # the successor connects while the old producer is drained
        with self._serving:
            self._drain()
            self._given_up = f"its producer was replaced, since {why}"
            self._give_up()
            self._succeed()

    def _drain(self) -> None:
        """Let the producer deliver what it holds, as long as acknowledgements come."""
        now = served_at = time.monotonic()
        end = now + _DRAIN_S
        while self._started.waits(self._last_sent) and not self._closed.is_set():
            if now >= end or now - served_at >= _STALLED_S:
                return
            served = self._poll(_POLL_S)
            now = time.monotonic()
            served_at = now if served else served_at

    def _give_up(self) -> None:
        """Purge the producer's remaining appends, and settle them as unknown."""
        end = time.monotonic() + _PURGE_S
        while True:
            # With enable.gapless.guarantee a purge stops the producer for good.
            self._producer.purge(in_queue=True, in_flight=True, blocking=False)
            if not self._started.waits(self._last_sent) or time.monotonic() >= end:
                break
            self._poll(_POLL_S)
        self._started.forget(self._last_sent, lambda partition: unknown(partition, self._given_up))

    def _prepare(self) -> bool:
        """Open the successor, unless too many old producers are being closed; return success."""
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        if self._successor is None and len(self._ending) < _ENDING_MAX:
            try:
                self._successor = self._open()
            except UsageError as error:
                LOG.warning("A failed producer cannot be replaced yet: %s", error)
        return self._successor is not None

    def _succeed(self) -> None:
        """Start the held appends on the successor; without one, settle those that are overdue."""
        failed: dict[int, AppendFailed] = {}
        refused: dict[int, tuple[TopicPartition, Any]] = {}
        with self._lock:
            assert self._held is not None, "a producer that was given up gets no appends"
            held = self._held
            if self._prepare():
                self._ending.append(end_later(self._producer))
                self._producer, self._successor = self._successor, None
                self._held, self._broken, self._given_up = None, "", ""
                self._outcomes.producer_replaced()
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
                    late = held.pop(number).partition
                    failed[number] = not_sent(late, "no producer could be opened in time")
        if refused:
            self._poll(0)  # learns why librdkafka's new producer failed at once
        for number, (partition, why) in refused.items():
            failed[number] = self._outcomes.not_taken(partition, why)
        for number, outcome in failed.items():
            self._started.settle(number, outcome)
