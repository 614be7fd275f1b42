"""Metrics of producers and consumers, for the processes of users; `python -m multicast.metrics`.

    from prometheus_client import REGISTRY
    from multicast.metrics import ClientMetrics

    REGISTRY.register(ClientMetrics(producer, consumer))

The command prints the table of docs/metrics.md. Clients with the same labels are added up: their
counters, and gauges but for the epoch and the pause, of which the greatest is shown. Of a client
that is closed the counters stay, as Prometheus' `rate` expects, and its gauges go.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from multicast.errors import AmcastError
from multicast.metrics.counts import ConsumerCounts, CountedClient, ProducerCounts
from multicast.metrics.exposition import (
    CERTIFICATES,
    FamilyCollector,
    LabelledValue,
    Samples,
    certificate_samples,
)
from multicast.metrics.families import LatencyCounts, MetricFamily, MetricKind

# How long a scrape waits for the ends of logs: Prometheus gives up after 10 s by default, and then
# it has no metric at all.
_ENDS_S = 1.0

_TOPIC = ("topic",)
_PRODUCER = ("topic", "log")
_CONSUMER = ("topic", "consumer")
_LOG = (*_CONSUMER, "log")

_ACCEPTED = MetricFamily("amcast_producer_accepted_total", MetricKind.COUNTER, _PRODUCER,
    "Messages that all in-sync replicas hold")  # fmt: skip
_REFUSED = MetricFamily("amcast_producer_refused_total", MetricKind.COUNTER, _PRODUCER,
    "Messages that were refused: the log does not contain them")  # fmt: skip
_UNKNOWN = MetricFamily("amcast_producer_unknown_total", MetricKind.COUNTER, _PRODUCER,
    "Messages whose outcome stays unknown: the log may contain them")  # fmt: skip
_IN_FLIGHT = MetricFamily("amcast_producer_in_flight_messages", MetricKind.GAUGE, _PRODUCER,
    "Messages that were sent and have no outcome yet")  # fmt: skip
_FULL = MetricFamily("amcast_producer_buffer_full_total", MetricKind.COUNTER, _PRODUCER,
    "Attempts to send that found the buffer full, and had to wait or failed")  # fmt: skip
_APPENDS = MetricFamily("amcast_producer_append_seconds", MetricKind.HISTOGRAM, _TOPIC,
    "From an append to its acceptance, of one message of a log at a time")  # fmt: skip

_EPOCH = MetricFamily("amcast_consumer_epoch", MetricKind.GAUGE, _CONSUMER,
    "The epoch that it delivers")  # fmt: skip
_DELIVERED = MetricFamily("amcast_consumer_delivered_total", MetricKind.COUNTER, _LOG,
    "Messages that it delivered")  # fmt: skip
_LAG = MetricFamily("amcast_consumer_lag_messages", MetricKind.GAUGE, _LOG,
    "Offsets below the log's end that it has not delivered or dropped yet")  # fmt: skip
_BYTES = MetricFamily("amcast_consumer_payload_bytes_total", MetricKind.COUNTER, _CONSUMER,
    "Payload bytes of the records that it read in its logs")  # fmt: skip
_BUFFERED = MetricFamily("amcast_consumer_buffered_messages", MetricKind.GAUGE, _CONSUMER,
    "Records that it read and has not delivered yet")  # fmt: skip
_BUFFERED_BYTES = MetricFamily("amcast_consumer_buffered_bytes", MetricKind.GAUGE, _CONSUMER,
    "The memory that they take, estimated")  # fmt: skip
_PAUSED = MetricFamily("amcast_consumer_paused_logs", MetricKind.GAUGE, _CONSUMER,
    "Logs that it does not read for now, as their buffers are full")  # fmt: skip
_VOID = MetricFamily("amcast_consumer_void_total", MetricKind.COUNTER, (*_CONSUMER, "reason"),
    "Messages of its logs that are void")  # fmt: skip
_READ = MetricFamily("amcast_consumer_entries_read_total", MetricKind.COUNTER, _LOG,
    "Order entries that it read in its collectors' streams")  # fmt: skip
_DROPPED = MetricFamily("amcast_consumer_entries_dropped_total", MetricKind.COUNTER, _LOG,
    "Of these, entries of logs outside its interest")  # fmt: skip
_REPLANNING = MetricFamily("amcast_consumer_replanning_seconds", MetricKind.GAUGE, _CONSUMER,
    "How long the last change of epoch stopped it: from one epoch's end to the next")  # fmt: skip
_WAITING = MetricFamily("amcast_consumer_waiting_seconds", MetricKind.GAUGE, _LOG,
    "For how long the oldest message at hand has waited for this log or its order")  # fmt: skip

FAMILIES = (
    _ACCEPTED, _REFUSED, _UNKNOWN, _IN_FLIGHT, _FULL, _APPENDS, _EPOCH, _DELIVERED, _LAG, _BYTES,
    _BUFFERED, _BUFFERED_BYTES, _PAUSED, _VOID, _READ, _DROPPED, _REPLANNING, _WAITING,
    CERTIFICATES,
)  # fmt: skip
_GREATEST = (_EPOCH, _REPLANNING, _WAITING)
_Lags = list[tuple[ConsumerCounts, Mapping[str, int]]]


class _Sums:
    """Values by family and labels."""

    def __init__(self) -> None:
        self._values: dict[tuple[MetricFamily, tuple[str, ...]], float] = {}
        self._durations: dict[str, LatencyCounts] = {}  # by topic

    def add(self, counts: ProducerCounts | ConsumerCounts) -> None:
        if isinstance(counts, ProducerCounts):
            durations = self._durations.setdefault(counts.topic, LatencyCounts())
            for log in counts.logs.values():
                durations.add(log.seconds)
            values = _of_producer(counts)
        else:
            values = _of_consumer(counts)
        for family, labels, value in values:
            if not counts.closed or family.kind is MetricKind.COUNTER:
                self.add_value(family, labels, value)

    def add_value(self, family: MetricFamily, labels: tuple[str, ...], value: float) -> None:
        known = self._values.get((family, labels), 0)
        self._values[family, labels] = max(known, value) if family in _GREATEST else known + value

    def add_all(self, other: _Sums) -> None:
        for (family, labels), value in other._values.items():
            self.add_value(family, labels, value)
        for topic, durations in other._durations.items():
            self._durations.setdefault(topic, LatencyCounts()).add(durations)

    def samples(self) -> Samples:
        taken: dict[str, list[LabelledValue]] = {family.name: [] for family in FAMILIES}
        for (family, labels), value in self._values.items():
            taken[family.name].append(LabelledValue(labels, value))
        for topic, durations in self._durations.items():
            sample = LabelledValue((topic,), durations.sum_s, durations.counts)
            taken[_APPENDS.name].append(sample)
        taken[CERTIFICATES.name] = certificate_samples()
        return taken


class ClientMetrics(FamilyCollector):
    """Shows open producers and consumers, `multicast.aio`'s too; register it with a registry.

    Values are taken when the registry is scraped, from any thread. For the lag of its consumers a
    scrape asks the cluster, and waits for `_ENDS_S` at most: what is not known then is left out.
    A client that is closed is let go of once a scrape has taken its last counts. Raises
    `UsageError` for a client of `multicast.aio` that is not open yet.
    """

    def __init__(self, *clients: CountedClient) -> None:
        super().__init__(FAMILIES, self._take)
        self._lock = threading.Lock()
        self._clients: list[CountedClient] = []
        self._closed = _Sums()
        self._asking = threading.Thread()  # the last one that asked for lags, and its answers
        self._answers: _Lags = []
        for client in clients:
            self.add(client)

    def add(self, client: CountedClient) -> None:
        """Show one client more; from any thread. Raises `UsageError` if it is not open yet."""
        client.counts()
        with self._lock:
            self._clients.append(client)

    def _take(self) -> Samples:
        sums = _Sums()
        consumers: list[ConsumerCounts] = []
        with self._lock:
            for client in list(self._clients):
                counts = client.counts()
                if counts.closed:
                    self._clients.remove(client)
                    self._closed.add(counts)
                    continue
                sums.add(counts)
                if isinstance(counts, ConsumerCounts):
                    consumers.append(counts)
            sums.add_all(self._closed)
        for counts, lags in self._lags(consumers) if consumers else ():
            for log, lag in lags.items():
                sums.add_value(_LAG, (counts.topic, counts.consumer, log), lag)
        return sums.samples()

    def _lags(self, consumers: Sequence[ConsumerCounts]) -> _Lags:
        """Ask in a thread, as it may block for longer than a scrape has time; all wait for it."""
        answers: _Lags = []

        def ask() -> None:
            for counts in consumers:
                with suppress(AmcastError):  # the lag is left out; other metrics show the trouble
                    answers.append((counts, counts.lags()))

        with self._lock:
            if not self._asking.is_alive():
                self._asking = threading.Thread(target=ask, name="amcast-lags", daemon=True)
                self._asking.start()
                self._answers = answers
            asking, answers = self._asking, self._answers
        asking.join(_ENDS_S)
        return list(answers)


def _of_producer(counts: ProducerCounts) -> Iterator[tuple[MetricFamily, tuple[str, ...], float]]:
    for log, appends in counts.logs.items():
        labels = (counts.topic, log)
        yield _ACCEPTED, labels, appends.accepted
        yield _REFUSED, labels, appends.refused
        yield _UNKNOWN, labels, appends.unknown
        yield _IN_FLIGHT, labels, appends.in_flight
        yield _FULL, labels, appends.full


def _of_consumer(counts: ConsumerCounts) -> Iterator[tuple[MetricFamily, tuple[str, ...], float]]:
    labels = (counts.topic, counts.consumer)
    yield _EPOCH, labels, counts.epoch
    yield _BYTES, labels, counts.payload_bytes
    yield _BUFFERED, labels, counts.buffered
    yield _BUFFERED_BYTES, labels, counts.buffered_bytes
    yield _PAUSED, labels, counts.paused_logs
    if counts.replanning_s is not None:
        yield _REPLANNING, labels, counts.replanning_s
    if counts.waiting is not None:
        yield _WAITING, (*labels, counts.waiting.log), counts.waiting.seconds
    for family, by_label in (
        (_DELIVERED, counts.delivered),
        (_VOID, counts.void),
        (_READ, counts.entries_read),
        (_DROPPED, counts.entries_dropped),
    ):
        for label, value in by_label.items():
            yield family, (*labels, label), value
