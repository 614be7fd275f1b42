"""The reader of the librdkafka driver: a consumer without a group, read_committed.

librdkafka's threads fetch into a bounded queue; this module turns messages into records, with as
few calls of the package as possible.

    position    the next offset to return. Only the end-of-partition event
                (`enable.partition.eof`) reveals markers and aborted records at a log's end
    kept        consumed while its Kafka partition was paused; returned after `resume`. Only
                then librdkafka's own pause is used, because it drops everything fetched ahead
    lost        of a client: all its brokers have moved, or it has dropped them all, as librdkafka
                does after a broker has named none (docs/hazards.md), and never connects again;
                another client, which asks the bootstrap addresses, replaces it
    slice       `Consumer.poll` cannot be interrupted, so it waits in slices, and a `wake` takes
                effect at the end of one. A message ends a slice at once

Invariant: positions never decrease, except by `add`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import methodcaller
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaError, KafkaException

from multicast.drivers.access import Access, user_of
from multicast.drivers.client_settings import LOST_S, UNKNOWN_TOPIC_S
from multicast.drivers.home_process import HomeProcess
from multicast.drivers.librdkafka_reader.client import LOG, EndedClient, open_client
from multicast.drivers.protocol import POLL_RECORDS_MAX, Driver, Fetched, Record, TopicPartition
from multicast.errors import AmcastError, ClusterUnreachable, TopicMissing, Trimmed, UsageError

# A human notices 0.2 s. A shorter slice would make `wake` faster and cost idle wake-ups.
_SLICE_S = 0.25
_KEPT_BYTES = 31 * 1024 * 1024  # just below 32 MB, the most that glibc's threshold grows to
# The wait for a new topic's leaders in `add`. Nothing depends on the answer; it saves up to 1 s.
_LEADERS_S = 0.5
_SHORTEST_S = 0.001  # librdkafka counts milliseconds: it does not wait for less

_PROBE_S = 0.5  # a running broker answers in milliseconds
_FRESH_S = 1.0  # the same for a new client, which has to connect first

# If a header name is not UTF-8, the package returns a broken list with an error set; nothing in the
# list may be used. Python reports this as SystemError, but a call that the interpreter has
# specialized (from about the eighth call on) does not check, and the error hits a later call.
# `methodcaller` always checks.
_headers_of = methodcaller("headers")
# librdkafka looks up the coordinator of its group, which it never joins.
_HARMLESS = KafkaError.GROUP_AUTHORIZATION_FAILED
_REFUSED = {
    KafkaError._AUTHENTICATION: Access.rejected,  # noqa: SLF001
    KafkaError._SSL: Access.no_tls,  # noqa: SLF001
}
# The position is outside the log, or, after a change of leader, behind where the log was cut.
_UNREADABLE = (KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION)  # noqa: SLF001
_UNKNOWN_TOPIC = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
    }
)


_CLOSED = "This reader is closed; open another one."


class LibrdkafkaReader:
    """A reader with its own consumer, which joins no group."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        starts: Mapping[TopicPartition, int],
        delegate: Driver,
        *,
        timeout_s: float,
    ) -> None:
        self._settings = dict(settings)
        self._bootstrap = settings["bootstrap.servers"]
        user = user_of(settings.get("sasl.username"), settings.get("ssl.certificate.location"))
        self._access = Access(self._bootstrap, user)
        self._refused: AmcastError | None = None  # by a broker, since records last came
        self._home = HomeProcess("client", self)
        self._delegate = delegate
        self._timeout_s = timeout_s
        self._positions: dict[TopicPartition, int] = {}
        self._looked_up: set[str] = set()  # topics whose leaders were requested
        self._trimmed: set[TopicPartition] = set()
        self._unproven: dict[TopicPartition, float] = {}  # since when nothing has come from it
        self._paused: set[TopicPartition] = set()
        self._stopped: set[TopicPartition] = set()  # paused in librdkafka as well
        self._kept: dict[TopicPartition, tuple[list[Record], int]] = {}
        self._down_since: float | None = None
        self._probe_at = 0.0  # not before: whether the client is lost
        self._received_at = time.monotonic()
        self._error: AmcastError | None = None  # raised once earlier records are returned
        self._woken = False
        self._closed = False
        self._ending: threading.Thread | None = None
        self.replaced = 0  # lost clients so far
        _keep_memory()
        self._consumer = self._open()
        self.add(starts)

    def _open(self) -> Any:
        return open_client(confluent_kafka.Consumer, {**self._settings, "error_cb": self._troubled})

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """Start to read these, or start again, each from the given offset.

        Blocks for half a second at most for each new topic whose leaders are not reported.
        """
        self._home.check()
        self.remove(list(starts))
        if starts:
            topics = {partition.topic for partition in starts}
            # A broker answers one request of a connection after the other. So once the first topic
            # is fetched, the next one's leaders would wait for that long poll.
            if len(topics) > 1 and not self._positions:
                self._find_leaders(topics)
            self._consumer.incremental_assign(
                [confluent_kafka.TopicPartition(*log, offset) for log, offset in starts.items()]
            )
            self._positions.update(starts)
            self._unproven.update(dict.fromkeys(starts, time.monotonic()))
            self._find_leaders(topics)

    def _find_leaders(self, topics: set[str]) -> None:
        """Request the leaders of topics that are new to this consumer.

        librdkafka itself looks up a topic that is assigned to a connected consumer only when its
        timer of 1 s finds the topic without leaders. Nothing depends on the answer.
        """
        for topic in topics - self._looked_up:
            with suppress(KafkaException):
                self._consumer.list_topics(topic, timeout=_LEADERS_S)
                self._looked_up.add(topic)

    def remove(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these."""
        known = [partition for partition in partitions if partition in self._positions]
        if known:
            self.resume(known)
            self._consumer.incremental_unassign(_plain(known))
            for partition in known:
                del self._positions[partition]
                self._trimmed.discard(partition)
                self._unproven.pop(partition, None)
                self._kept.pop(partition, None)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Return no records of these until `resume`."""
        self._paused.update(log for log in partitions if log in self._positions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Continue paused Kafka partitions at their positions."""
        self._paused.difference_update(partitions)
        stopped = [partition for partition in partitions if partition in self._stopped]
        if stopped:
            self._stopped.difference_update(stopped)
            self._consumer.resume(_plain(stopped))

    def poll(self, timeout_s: float, records_max: int = POLL_RECORDS_MAX) -> list[Fetched]:
        """Wait up to `timeout_s` for records; a `wake` takes effect within a slice."""
        if self._closed:
            raise UsageError(_CLOSED)
        self._home.check()
        deadline = time.monotonic() + timeout_s
        resumed = self._hand_out_kept(records_max)
        if resumed:
            return resumed
        while True:
            self._raise_trimmed()
            # `consume` alone would wait for its whole time-out, unless its batch became full.
            left_s = deadline - time.monotonic()
            first = self._consumer.poll(max(0.0, min(left_s, _SLICE_S)))
            if first is not None:
                messages = [first]
                if records_max > 1:
                    messages += self._consumer.consume(records_max - 1, 0.0)
                fetched = self._decode(messages)
                if fetched:
                    return fetched
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            self._raise_unknown()
            self._raise_unreachable()
            if self._woken or deadline - time.monotonic() < _SHORTEST_S:
                self._woken = False
                return []

    def wake(self) -> None:
        """Make a poll, or the next one, return early within a slice."""
        self._woken = True

    def close(self) -> None:
        """Release sockets and buffers; nothing in a forked process."""
        if not (self._closed or self._home.is_left):
            self._closed = True
            self._consumer.close()
            self._consumer = EndedClient(UsageError(_CLOSED))

    def _decode(self, messages: list[Any]) -> list[Fetched]:
        """Decode messages and group them by Kafka partition, one C call for each field."""
        records: dict[tuple[str, int], list[Record]] = {}
        ends: dict[TopicPartition, int] = {}
        make = tuple.__new__  # faster than the NamedTuple's constructor, which checks its arguments
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
                    -1 if (epoch := message.leader_epoch()) is None else epoch,
                ),
            )
            place = (message.topic(), message.partition())
            if place in records:
                records[place].append(record)
            else:
                records[place] = [record]
        self._received_at = time.monotonic()
        return self._moved(records, ends)

    def _moved(
        self,
        by_partition: Mapping[tuple[str, int], list[Record]],
        ends: Mapping[TopicPartition, int],
    ) -> list[Fetched]:
        """Move the positions; return the results, and keep those of paused Kafka partitions."""
        fetched = []
        ended = [partition for partition in ends if partition not in by_partition]
        for partition in [*map(TopicPartition._make, by_partition), *ended]:
            position = self._positions.get(partition)
            if position is None:
                continue
            self._unproven.pop(partition, None)
            records = by_partition.get(partition, [])
            if records and records[0].offset < position:
                records = [record for record in records if record.offset >= position]
            end = max(position, ends.get(partition, 0), records[-1].offset + 1 if records else 0)
            if end <= position:
                continue
            self._positions[partition] = end
            if partition in self._paused:
                self._keep(partition, records, end)
            else:
                fetched.append(Fetched(partition, records, end))
        return fetched

    def _keep(self, partition: TopicPartition, records: list[Record], end: int) -> None:
        self._kept[partition] = (self._kept.get(partition, ([], 0))[0] + records, end)
        if partition not in self._stopped:
            self._stopped.add(partition)
            self._consumer.pause(_plain([partition]))

    def _hand_out_kept(self, records_max: int) -> list[Fetched]:
        fetched = []
        left = records_max
        for partition in [log for log in self._kept if log not in self._paused]:
            if left <= 0:
                break
            records, end = self._kept.pop(partition)
            if len(records) > left:
                self._kept[partition] = (records[left:], end)
                end = records[left - 1].offset + 1
            fetched.append(Fetched(partition, records[:left], end))
            left -= len(records)
        return fetched

    def _event(self, error: Any, message: Any, ends: dict[TopicPartition, int]) -> None:
        code = error.code()
        topic = message.topic()
        partition = TopicPartition(topic, message.partition()) if topic else None
        if code == KafkaError._PARTITION_EOF and partition is not None:  # noqa: SLF001
            ends[partition] = max(ends.get(partition, 0), message.offset())
        elif code in _UNREADABLE and partition is not None:
            self._trimmed.add(partition)
        elif code in _UNKNOWN_TOPIC:
            self._error = TopicMissing(f"{topic} does not exist at {self._bootstrap}.")
            if partition is not None:
                self._error.about(partition)
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED and partition is not None:
            self._error = self._access.lacks("Read", "topic", partition.topic).about(partition)
        elif code == _HARMLESS:
            LOG.debug("reader: %s", error.str())
        elif error.fatal():
            self._error = AmcastError(
                f"librdkafka stopped reading from {self._bootstrap}: {error.str()}."
            )
        else:
            self._troubled(error)

    def _troubled(self, error: Any) -> None:
        LOG.info("reader: %s", error.str())
        if error.code() in _REFUSED:
            self._refused = _REFUSED[error.code()](self._access, error.str())
        if error.code() == KafkaError._ALL_BROKERS_DOWN and self._down_since is None:  # noqa: SLF001
            self._down_since = time.monotonic()

    def _raise_trimmed(self) -> None:
        for partition in self._trimmed & self._positions.keys():
            if partition not in self._paused and partition not in self._kept:
                position = self._positions[partition]
                start = self._delegate.log_start_offsets([partition])[partition]
                end = self._delegate.last_stable_offsets([partition])[partition]
                raise Trimmed(
                    f"{_name(partition)} cannot be read from offset {position}: "
                    f"the log holds {start} to {end}."
                ).about(partition)

    def _raise_unknown(self) -> None:
        """Raise if a log does not exist, which librdkafka may not report."""
        if self._unproven:
            due = time.monotonic() - min(UNKNOWN_TOPIC_S, self._timeout_s / 2)
            silent = [partition for partition, since in self._unproven.items() if since < due]
            if silent:
                self._delegate.log_start_offsets(silent)
                for partition in silent:
                    del self._unproven[partition]

    def _raise_unreachable(self) -> None:
        """Replace a lost client; raise if all brokers have been down for the time-out, and are."""
        now = time.monotonic()
        since = self._received_at if self._down_since is None else self._down_since
        patience_s = self._timeout_s if self._down_since is None else min(LOST_S, self._timeout_s)
        if now - since < patience_s or now < self._probe_at or not self._positions:
            return
        # An idle log is as silent as a dead broker, and no event reports that brokers are back.
        answered = self._answered(self._consumer, _PROBE_S)
        self._received_at = now
        if answered:
            self._down_since = self._refused = None
        elif self._down_since is None:
            self._down_since = now
        elif not self._replace():
            self._probe_at = time.monotonic() + min(LOST_S, self._timeout_s)
            if now - since >= self._timeout_s:
                self._down_since = now
                refused, self._refused = self._refused, None
                raise refused or ClusterUnreachable(
                    f"No broker at {self._bootstrap} answered within {self._timeout_s:g} s."
                )

    def _answered(self, consumer: Any, timeout_s: float) -> bool:
        """Whether a client gets an answer that names brokers; it is lost after one without."""
        try:
            topic = next(iter(self._positions)).topic
            return bool(consumer.list_topics(topic, timeout=timeout_s).brokers)
        except KafkaException:
            return False

    def _replace(self) -> bool:
        """If a new client is answered, go on with it at the positions; return whether it is.

        The client that is not needed any more is closed on a thread, as that may take as long as a
        DNS look-up of a broker; while one is being closed, none is opened.
        """
        if self._ending is not None and self._ending.is_alive():
            return False
        try:
            other = self._open()
        except UsageError as error:
            LOG.warning("A lost reader cannot be replaced yet: %s", error)
            return False
        # A broker that is just back may answer both.
        answered = self._answered(other, _FRESH_S)
        if answered and not self._answered(self._consumer, _FRESH_S):
            self._consumer, other = other, self._consumer
            self._continue()
        elif answered:
            self._down_since = self._refused = None
        self._ending = threading.Thread(target=other.close, name="amcast-reader-end", daemon=True)
        self._ending.start()
        return answered

    def _continue(self) -> None:
        """Have a new client read from the positions; what is kept lies below them."""
        self.replaced += 1
        LOG.warning(
            "A reader is replaced: its client had lost the brokers at %s, which answer a new one",
            self._bootstrap,
        )
        self._stopped.clear()  # a paused one is stopped again when something comes from it
        self._looked_up.clear()
        self._down_since = self._refused = None
        self._received_at = time.monotonic()
        self._consumer.incremental_assign(
            [
                confluent_kafka.TopicPartition(*log, offset)
                for log, offset in self._positions.items()
            ]
        )


def _keep_memory() -> None:
    """Have glibc keep freed memory, up to some tens of MB, for the next payloads.

    Freeing a large block raises glibc's threshold for blocks that it takes from the system, and
    with it how much freed memory it keeps (mallopt(3), M_MMAP_THRESHOLD). Otherwise payloads that
    wait for their order cost a page fault for every second message of 10 kB.
    """
    bytes(_KEPT_BYTES)


def _plain(partitions: Sequence[TopicPartition]) -> list[Any]:
    return [confluent_kafka.TopicPartition(*partition) for partition in partitions]


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}/{partition.partition}"
