"""A node's numbers for Prometheus, under the names of Fabric's orderer where it has one.

The only door to `prometheus_client`. Names of our own begin with `amcast_osn_`. Durations are in
seconds. Fabric's `grpc_comm_conn_*` and `consensus_kafka_*{broker_id}` have no counterpart here.
Everything may be called from any thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class LabelledCounter(Collector):
    """A counter with labels. Its name is as it stands: Fabric's do not end in `_total`."""

    def __init__(self, name: str, text: str, *labels: str, registry: CollectorRegistry) -> None:
        self.name = name
        self._text, self._labels = text, labels
        self._counts: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        self._lock = threading.Lock()
        registry.register(self)

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Count `amount` more under these label values, one for each label."""
        assert len(values) == len(self._labels), (self.name, values)
        with self._lock:
            self._counts[values] = self._counts.get(values, 0.0) + amount

    def value(self, *values: str) -> float:
        """Give what was counted under these label values."""
        with self._lock:
            return self._counts.get(values, 0.0)

    def collect(self) -> Iterable[Metric]:
        """Give the registry what it exposes."""
        metric = Metric(self.name, self._text, "counter")
        with self._lock:
            counts = sorted(self._counts.items())
        for values, count in counts:
            metric.add_sample(self.name, dict(zip(self._labels, values, strict=True)), count)
        yield metric

    def describe(self) -> Iterable[Metric]:
        """Name it, so that no second one is registered."""
        yield Metric(self.name, self._text, "counter")


class Metrics:
    """All numbers of one node."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tallies: list[LabelledCounter] = []
        self._fabric_api()
        self._fabric_chain()
        self._fabric_node()
        self._own()

    def _fabric_api(self) -> None:
        kinds = ("channel", "type", "status")
        self.broadcast_validate_duration = self._histogram(
            "broadcast_validate_duration", "The time to validate a transaction", *kinds
        )
        self.broadcast_enqueue_duration = self._histogram(
            "broadcast_enqueue_duration", "The time to enqueue a transaction", *kinds
        )
        self.broadcast_processed_count = self._tally(
            "broadcast_processed_count", "The number of transactions processed", *kinds
        )
        self.deliver_streams_opened = self._tally(
            "deliver_streams_opened", "The number of Deliver streams opened"
        )
        self.deliver_streams_closed = self._tally(
            "deliver_streams_closed", "The number of Deliver streams closed"
        )
        request = ("channel", "filtered", "data_type")
        self.deliver_requests_received = self._tally(
            "deliver_requests_received", "The number of Deliver requests received", *request
        )
        self.deliver_requests_completed = self._tally(
            "deliver_requests_completed", "How Deliver requests ended", *request, "success"
        )
        self.deliver_blocks_sent = self._tally(
            "deliver_blocks_sent", "The number of blocks sent by Deliver", *request
        )
        method = ("service", "method")
        self.grpc_server_stream_requests_received = self._tally(
            "grpc_server_stream_requests_received", "Streams begun", *method
        )
        self.grpc_server_stream_requests_completed = self._tally(
            "grpc_server_stream_requests_completed", "Streams ended", *method, "code"
        )
        self.grpc_server_stream_messages_received = self._tally(
            "grpc_server_stream_messages_received", "Messages received on streams", *method
        )
        self.grpc_server_stream_messages_sent = self._tally(
            "grpc_server_stream_messages_sent", "Messages sent on streams", *method
        )
        self.grpc_server_unary_requests_received = self._tally(
            "grpc_server_unary_requests_received", "Unary calls begun", *method
        )
        self.grpc_server_unary_requests_completed = self._tally(
            "grpc_server_unary_requests_completed", "Unary calls ended", *method, "code"
        )

    def _fabric_chain(self) -> None:
        self.blockcutter_block_fill_duration = self._histogram(
            "blockcutter_block_fill_duration",
            "From the first transaction enqueued to the block being cut",
            "channel",
        )
        self.ledger_blockchain_height = self._gauge(
            "ledger_blockchain_height", "Height of the chain in blocks", "channel"
        )
        self.ledger_blockstorage_commit_time = self._histogram(
            "ledger_blockstorage_commit_time", "Time to write a block", "channel"
        )
        self.consensus_kafka_last_offset_persisted = self._gauge(
            "consensus_kafka_last_offset_persisted",
            "The position, in the newest block's metadata, of the last record taken into a block",
            "channel",
        )

    def _fabric_node(self) -> None:
        self.fabric_version = self._gauge("fabric_version", "The running version", "version")
        self.fabric_version.labels(version=f"amcast-{version('amcast')}").set(1)
        self.logging_entries_written = self._tally(
            "logging_entries_written", "Number of log entries that are written", "level"
        )

    def _own(self) -> None:
        self.records_ignored = self._tally(
            "amcast_osn_records_ignored", "Records of the log without effect", "channel", "reason"
        )
        self.records_reposted = self._tally(
            "amcast_osn_records_reposted", "Records judged again and posted again", "channel"
        )
        self.transactions_refused = self._tally(
            "amcast_osn_transactions_refused", "Transactions refused at ordering",
            "channel", "reason",
        )  # fmt: skip
        self.timers_posted = self._tally(
            "amcast_osn_timers_posted", "Time-to-cut records posted", "channel", "outcome"
        )
        self.torn_tails = self._tally(
            "amcast_osn_ledger_torn_tails", "Torn ends of the ledger cut off at start", "channel"
        )

    def expose(self) -> bytes:
        """Everything, in Prometheus' text format 0.0.4 (`CONTENT_TYPE`)."""
        text = generate_latest(self.registry).decode()
        for tally in self._tallies:
            # The library writes a counter's head with the ending that its samples do not have.
            for head in ("HELP", "TYPE"):
                text = text.replace(f"# {head} {tally.name}_total ", f"# {head} {tally.name} ")
        return text.encode()

    def _tally(self, name: str, text: str, *labels: str) -> LabelledCounter:
        tally = LabelledCounter(name, text, *labels, registry=self.registry)
        self._tallies.append(tally)
        return tally

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=_BUCKETS_S)


class CountingHandler(logging.Handler):
    """Counts the log entries that are written, by level."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def emit(self, record: logging.LogRecord) -> None:
        """Count one."""
        self._metrics.logging_entries_written.add(record.levelname.lower())
