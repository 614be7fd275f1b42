"""A node's metrics for Prometheus, under the names of Fabric's orderer where it has the metric.

No other module imports `prometheus_client`. Metrics that Fabric does not have begin with
`amcast_osn_`. Durations are in seconds. Fabric's `grpc_comm_conn_*` and
`consensus_kafka_*{broker_id}` have no counterpart here. All calls are thread-safe.
"""

from __future__ import annotations

import logging
from importlib.metadata import version

from topology import extra

with extra("osn"):
    from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

# The default buckets of Prometheus' Go client, which Fabric's orderer uses.
_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class LabelledCounter(Gauge):
    """A counter with labels. Nothing is appended to its name: Fabric's do not end in `_total`.

    (The library appends that to the samples of its own counters, so this one is a gauge by class.)
    """

    _type = "counter"

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Add `amount` under these label values, one for each label."""
        (self.labels(*values) if values else self).inc(amount)

    def value(self, *values: str) -> float:
        """Return the count under these label values."""
        counted = (sample for metric in self.collect() for sample in metric.samples)
        return sum(each.value for each in counted if tuple(each.labels.values()) == values)


class Metrics:
    """All metrics of one node."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._tallies: list[str] = []
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
            "deliver_requests_completed",
            "The number of Deliver requests completed",
            *request,
            "success",
        )
        self.deliver_blocks_sent = self._tally(
            "deliver_blocks_sent", "The number of blocks sent by Deliver", *request
        )
        method = ("service", "method")
        self.grpc_server_stream_requests_received = self._tally(
            "grpc_server_stream_requests_received",
            "The number of stream requests received",
            *method,
        )
        self.grpc_server_stream_requests_completed = self._tally(
            "grpc_server_stream_requests_completed",
            "The number of stream requests completed",
            *method,
            "code",
        )
        self.grpc_server_stream_messages_received = self._tally(
            "grpc_server_stream_messages_received",
            "The number of stream messages received",
            *method,
        )
        self.grpc_server_stream_messages_sent = self._tally(
            "grpc_server_stream_messages_sent", "The number of stream messages sent", *method
        )
        self.grpc_server_unary_requests_received = self._tally(
            "grpc_server_unary_requests_received", "The number of unary requests received", *method
        )
        self.grpc_server_unary_requests_completed = self._tally(
            "grpc_server_unary_requests_completed",
            "The number of unary requests completed",
            *method,
            "code",
        )

    def _fabric_chain(self) -> None:
        self.blockcutter_block_fill_duration = self._histogram(
            "blockcutter_block_fill_duration",
            "The time from the first transaction of a block to its cut",
            "channel",
        )
        self.ledger_blockchain_height = self._gauge(
            "ledger_blockchain_height", "The height of the chain in blocks", "channel"
        )
        self.ledger_blockstorage_commit_time = self._histogram(
            "ledger_blockstorage_commit_time", "The time to write a block", "channel"
        )
        self.consensus_kafka_last_offset_persisted = self._gauge(
            "consensus_kafka_last_offset_persisted",
            "The position in the order stream that the newest block's metadata hold",
            "channel",
        )

    def _fabric_node(self) -> None:
        self.fabric_version = self._gauge("fabric_version", "The running version", "version")
        self.fabric_version.labels(version=f"amcast-{version('amcast')}").set(1)
        self.logging_entries_written = self._tally(
            "logging_entries_written", "The number of log entries written", "level"
        )

    def _own(self) -> None:
        self.records_ignored = self._tally(
            "amcast_osn_records_ignored", "Records of the log without effect", "channel", "reason"
        )
        self.records_reposted = self._tally(
            "amcast_osn_records_reposted", "Records validated and posted again", "channel"
        )
        self.transactions_refused = self._tally(
            "amcast_osn_transactions_refused", "Transactions refused when read from the log",
            "channel", "reason",
        )  # fmt: skip
        self.timers_posted = self._tally(
            "amcast_osn_timers_posted", "Time-to-cut records posted", "channel", "outcome"
        )
        self.markers_posted = self._tally(
            "amcast_osn_markers_posted", "Config markers posted to the logs of sets", "channel"
        )
        self.bundles_processed = self._tally(
            "amcast_osn_bundles_processed", "Bundles that clients submitted, answered", "status"
        )
        self.bundles_reposted = self._tally(
            "amcast_osn_bundles_reposted", "Bundles judged again, after their record was void"
        )
        self.bundles_counted = self._tally(
            "amcast_osn_bundles_counted", "Bundles read that count", "channel"
        )
        self.bundles_void = self._tally(
            "amcast_osn_bundles_void", "Records of bundles read that are void",
            "channel", "reason",
        )  # fmt: skip
        self.markers_read = self._tally(
            "amcast_osn_markers_read", "Config markers read and taken", "channel"
        )
        self.entries_read = self._tally(
            "amcast_osn_entries_read", "Order entries read in a collector's stream",
            "channel", "log",
        )  # fmt: skip
        self.entries_dropped = self._tally(
            "amcast_osn_entries_dropped", "Of the entries read, those of logs that are not wanted",
            "channel", "log",
        )  # fmt: skip
        self.lost_tail = self._gauge(
            "amcast_osn_lost_tail",
            "1: the chain has stopped, as Kafka lost the end of its log or order",
            "channel",
        )
        self.torn_tails = self._tally(
            "amcast_osn_ledger_torn_tails", "Torn tails of the ledger cut off at start", "channel"
        )

    def expose(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""
        text = generate_latest(self.registry).decode()
        for name in self._tallies:
            # The library appends `_total` to a counter's name in its HELP and TYPE lines.
            for head in ("HELP", "TYPE"):
                text = text.replace(f"# {head} {name}_total ", f"# {head} {name} ")
        return text.encode()

    def _tally(self, name: str, text: str, *labels: str) -> LabelledCounter:
        tally = LabelledCounter(name, text, labels, registry=self.registry)
        self._tallies.append(name)
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
        """Count one entry."""
        self._metrics.logging_entries_written.add(record.levelname.lower())
