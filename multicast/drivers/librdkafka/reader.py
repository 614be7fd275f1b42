"""Records out of librdkafka's consumer, read_committed, without a group.

In go Kafka partitions and offsets; out come `Fetched`. Fetching goes on in librdkafka's threads
into a bounded queue; here messages become records, as cheaply as the package allows.

    position    next offset to hand out. Markers and aborted records at a log's end are told by
                the end-of-partition event only (`enable.partition.eof`)
    kept        consumed, but its Kafka partition was paused then; handed out after `resume`.
                Only then is librdkafka's own pause used: it drops all that was fetched ahead
    slice       `Consumer.poll` cannot be interrupted; `wake` is noticed at the end of a slice. A
                message ends it at once, so a long slice costs nothing but a late `wake`

Invariant: positions never go back, except by `add`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from multicast.drivers.access import Access, user_of
from multicast.drivers.librdkafka.settings import LOG
from multicast.drivers.protocol import Driver, Fetched, Record, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable, TopicMissing, Trimmed, UsageError

_SLICE_S = 0.25
_KEPT_BYTES = 31 * 1024 * 1024  # of the 32 MB that glibc goes up to
_LEADERS_S = 0.5
_SHORTEST_S = 0.001  # librdkafka counts milliseconds: it does not wait for less

# Where a name is not UTF-8 the package returns a broken list with the error set: nothing of it may
# be touched. Python reports that as SystemError, but a call that the interpreter has specialized
# (from the eighth or so on) does not look, and the error strikes a later call. This one looks.
_headers_of = methodcaller("headers")
# librdkafka asks who coordinates its group, which is never joined and stores nothing.
_HARMLESS = KafkaError.GROUP_AUTHORIZATION_FAILED
_REFUSED = {
    KafkaError._AUTHENTICATION: Access.rejected,  # noqa: SLF001
    KafkaError._SSL: Access.no_tls,  # noqa: SLF001
}
_UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    }
)


class LibrdkafkaReader:
    """A reader with a consumer of its own that joins no group."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        starts: Mapping[TopicPartition, int],
        questions: Driver,
        *,
        timeout_s: float,
    ) -> None:
        self._bootstrap = settings["bootstrap.servers"]
        user = user_of(settings.get("sasl.username"), settings.get("ssl.certificate.location"))
        self._access = Access(self._bootstrap, user)
        self._refused: AmcastError | None = None  # by a broker, since records last came
        self._questions = questions
        self._timeout_s = timeout_s
        self._positions: dict[TopicPartition, int] = {}
        self._asked: set[str] = set()  # topics whose leaders we asked for
        self._trimmed: set[TopicPartition] = set()
        self._unproven: dict[TopicPartition, float] = {}  # nothing was heard of it since then
        self._paused: set[TopicPartition] = set()
        self._stopped: set[TopicPartition] = set()  # paused, and so in librdkafka
        self._kept: dict[TopicPartition, tuple[list[Record], int]] = {}
        self._down_since: float | None = None
        self._heard_at = time.monotonic()
        self._error: AmcastError | None = None  # raised once what came before is handed out
        self._woken = False
        self._closed = False
        _keep_memory()
        try:
            self._consumer = confluent_kafka.Consumer(
                {**settings, "error_cb": self._troubled}, logger=LOG
            )
        except (KafkaException, ValueError) as error:
            raise UsageError(f"librdkafka refuses the client settings: {error}.") from error
        self.add(starts)

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Read these, too (or anew), each from that offset.

        Waits for half a second at most for each topic that is new and does not answer.
        """
        self.remove(list(starts))
        if starts:
            self._consumer.incremental_assign(
                [confluent_kafka.TopicPartition(*at, offset) for at, offset in starts.items()]
            )
            self._positions.update(starts)
            self._unproven.update(dict.fromkeys(starts, time.monotonic()))
            self._find_leaders({at.topic for at in starts})

    def _find_leaders(self, topics: set[str]) -> None:
        """Ask who leads topics that are new to this consumer.

        librdkafka itself asks for a topic that is assigned once it is connected when a timer of
        one second finds it without leaders. Nothing depends on the answer.
        """
        for topic in topics - self._asked:
            with suppress(KafkaException):
                self._consumer.list_topics(topic, timeout=_LEADERS_S)
                self._asked.add(topic)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these no longer."""
        known = [one for one in partitions if one in self._positions]
        if known:
            self.resume(known)
            self._consumer.incremental_unassign(_plain(known))
            for one in known:
                del self._positions[one]
                self._trimmed.discard(one)
                self._unproven.pop(one, None)
                self._kept.pop(one, None)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Hand out nothing of these until `resume`."""
        self._paused.update(one for one in partitions if one in self._positions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Go on with paused ones."""
        self._paused.difference_update(partitions)
        stopped = [one for one in partitions if one in self._stopped]
        if stopped:
            self._stopped.difference_update(stopped)
            self._consumer.resume(_plain(stopped))

    def poll(self, timeout_s: float, records_max: int = 5000) -> list[Fetched]:
        """Give what is new; `wake` is noticed within a slice."""
        if self._closed:
            raise UsageError("This reader was closed before.")
        deadline = time.monotonic() + timeout_s
        resumed = self._hand_out_kept(records_max)
        if resumed:
            return resumed
        while True:
            # `consume` would wait for its whole time-out unless its batch were full.
            left_s = deadline - time.monotonic()
            first = self._consumer.poll(max(0.0, min(left_s, _SLICE_S)))
            if first is not None:
                messages = [first]
                if records_max > 1:
                    messages += self._consumer.consume(records_max - 1, 0.0)
                fetched = self._sort(messages)
                if fetched:
                    return fetched
            self._refuse()
            self._refuse_unknown()
            self._refuse_silence()
            if self._woken or deadline - time.monotonic() < _SHORTEST_S:
                self._woken = False
                return []

    def wake(self) -> None:
        """End a poll, or the next one, early."""
        self._woken = True

    def close(self) -> None:
        """Release sockets and buffers."""
        if not self._closed:
            self._closed = True
            self._consumer.close()

    def _sort(self, messages: list[Any]) -> list[Fetched]:
        """Group by Kafka partition. One C call for each field of each message, and no more."""
        found: dict[tuple[str, int], list[Record]] = {}
        ends: dict[TopicPartition, int] = {}
        make = tuple.__new__  # a NamedTuple's own constructor checks what is known here
        for message in messages:
            error = message.error()
            if error is not None:
                self._event(error, message, ends)
                continue
            try:
                headers = _headers_of(message) or ()
            except (SystemError, UnicodeDecodeError):
                headers = ()
            record = make(
                Record,
                (
                    message.offset(),
                    message.value(),
                    message.key(),
                    headers,
                    message.timestamp()[1],
                ),
            )
            place = (message.topic(), message.partition())
            if place in found:
                found[place].append(record)
            else:
                found[place] = [record]
        self._heard_at = time.monotonic()
        return self._moved(found, ends)

    def _moved(
        self, found: Mapping[tuple[str, int], list[Record]], ends: Mapping[TopicPartition, int]
    ) -> list[Fetched]:
        fetched = []
        places = [*map(TopicPartition._make, found), *(at for at in ends if at not in found)]
        for at in places:
            position = self._positions.get(at)
            if position is None:
                continue
            self._unproven.pop(at, None)
            records = found.get(at, [])
            if records and records[0].offset < position:
                records = [record for record in records if record.offset >= position]
            end = max(position, ends.get(at, 0), records[-1].offset + 1 if records else 0)
            if end <= position:
                continue
            self._positions[at] = end
            if at in self._paused:
                self._keep(at, records, end)
            else:
                fetched.append(Fetched(at, records, end))
        return fetched

    def _keep(self, partition: TopicPartition, records: list[Record], end: int) -> None:
        self._kept[partition] = (self._kept.get(partition, ([], 0))[0] + records, end)
        if partition not in self._stopped:
            self._stopped.add(partition)
            self._consumer.pause(_plain([partition]))

    def _hand_out_kept(self, records_max: int) -> list[Fetched]:
        fetched = []
        left = records_max
        for at in [at for at in self._kept if at not in self._paused]:
            if left <= 0:
                break
            records, end = self._kept.pop(at)
            if len(records) > left:
                self._kept[at] = (records[left:], end)
                end = records[left - 1].offset + 1
            fetched.append(Fetched(at, records[:left], end))
            left -= len(records)
        return fetched

    def _event(self, error: Any, message: Any, ends: dict[TopicPartition, int]) -> None:
        code = error.code()
        topic = message.topic()
        at = TopicPartition(topic, message.partition()) if topic else None
        if code == KafkaError._PARTITION_EOF and at is not None:  # noqa: SLF001
            ends[at] = max(ends.get(at, 0), message.offset())
        elif code == KafkaError._AUTO_OFFSET_RESET and at is not None:  # noqa: SLF001
            self._trimmed.add(at)
        elif code in _UNKNOWN_TOPIC:
            self._error = TopicMissing(f"{topic} does not exist at {self._bootstrap}.")
            if at is not None:
                self._error.about(at)
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED and at is not None:
            self._error = self._access.lacks("Read", "topic", at.topic).about(at)
        elif code == _HARMLESS:
            LOG.debug("reader: %s", error.str())
        elif error.fatal():
            self._error = AmcastError(f"librdkafka gave up reading: {error.str()}.")
        else:
            self._troubled(error)

    def _troubled(self, error: Any) -> None:
        LOG.info("reader: %s", error.str())
        if error.code() in _REFUSED:
            self._refused = _REFUSED[error.code()](self._access, error.str())
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:  # noqa: SLF001
            self._down_since = time.monotonic()

    def _refuse(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        for at in self._positions:
            if at in self._trimmed and at not in self._paused:
                begin = self._questions.log_start_offsets([at])[at]
                end = self._questions.last_stable_offsets([at])[at]
                raise Trimmed(
                    f"{_name(at)} cannot be read from offset {self._positions[at]}: "
                    f"the log holds {begin} to {end}."
                ).about(at)

    def _refuse_unknown(self) -> None:
        """Raise where a log does not exist, which librdkafka may keep to itself."""
        if self._unproven:
            due = time.monotonic() - min(3.0, self._timeout_s / 2)
            silent = [at for at, since in self._unproven.items() if since < due]
            if silent:
                self._questions.log_start_offsets(silent)
                for at in silent:
                    del self._unproven[at]

    def _refuse_silence(self) -> None:
        """Raise where all brokers have been away for the time-out, and still are."""
        now = time.monotonic()
        since = self._heard_at if self._down_since is None else self._down_since
        if now - since < self._timeout_s or not self._positions:
            return
        # An idle log is as silent as a dead broker, and no event tells that brokers are back.
        answered = self._ask_anything()
        self._heard_at = now
        if answered:
            self._down_since = self._refused = None
        elif self._down_since is None:
            self._down_since = now
        else:
            self._down_since = now
            refused, self._refused = self._refused, None
            raise refused or ClusterUnreachable(
                f"No broker at {self._bootstrap} answered within {self._timeout_s:g} s."
            )

    def _ask_anything(self) -> bool:
        try:
            self._consumer.list_topics(next(iter(self._positions)).topic, timeout=0.5)
        except KafkaException:
            return False
        return True


def _keep_memory() -> None:
    """Have glibc keep what is freed, up to some tens of MB, for the next payloads.

    A block that is freed raises the size below which glibc takes no block from the system anew, and
    with it how much it keeps (mallopt(3), M_MMAP_THRESHOLD). Without that payloads that are held
    for a moment, as ordered ones are, cost a page fault for every second message of 10 kB.
    """
    bytes(_KEPT_BYTES)


def _plain(partitions: Sequence[TopicPartition]) -> list[Any]:
    return [confluent_kafka.TopicPartition(*one) for one in partitions]


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
