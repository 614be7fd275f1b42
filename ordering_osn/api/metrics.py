"""A node's metrics for Prometheus, under the names of Fabric's orderer where it has the metric.

No other module imports `prometheus_client`. Metrics that Fabric does not have begin with
`amcast_osn_`. Durations are in seconds. Fabric's `grpc_comm_conn_*` and
`consensus_kafka_*{broker_id}` have no counterpart here. All calls are thread-safe.
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Any, Generic, TypeVar

from topology import extra

with extra("osn"):
    from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest
    from prometheus_client.metrics import MetricWrapperBase

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


_Kind = TypeVar("_Kind", bound=MetricWrapperBase)


class _Metric(Generic[_Kind]):
    """A metric of each node, named as its attribute; `own`: one that Fabric does not have."""

    def __init__(self, kind: type[_Kind], text: str, *labels: str, own: bool = False) -> None:
        self._kind, self._text, self._labels = kind, text, labels
        self._prefix = "amcast_osn_" if own else ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute, self.name = name, self._prefix + name

    def __get__(self, node: Metrics, owner: type | None = None) -> _Kind:
        metric: _Kind = node.made[self.attribute]
        return metric

    def make(self, registry: CollectorRegistry) -> _Kind:
        """Make the metric of one node."""
        options: dict[str, Any] = {"buckets": _BUCKETS_S} if self._kind is Histogram else {}
        return self._kind(self.name, self._text, self._labels, registry=registry, **options)


def _tally(text: str, *labels: str, own: bool = False) -> _Metric[LabelledCounter]:
    return _Metric(LabelledCounter, text, *labels, own=own)


_OUTCOME = ("channel", "type", "status")
_REQUEST = ("channel", "filtered", "data_type")
_METHOD = ("service", "method")


class Metrics:
    """All metrics of one node."""

    broadcast_validate_duration = _Metric(
        Histogram, "The time to validate a transaction", *_OUTCOME
    )
    broadcast_enqueue_duration = _Metric(Histogram, "The time to enqueue a transaction", *_OUTCOME)
    broadcast_processed_count = _tally("The number of transactions processed", *_OUTCOME)
    deliver_streams_opened = _tally("The number of Deliver streams opened")
    deliver_streams_closed = _tally("The number of Deliver streams closed")
    deliver_requests_received = _tally("The number of Deliver requests received", *_REQUEST)
    deliver_requests_completed = _tally(
        "The number of Deliver requests completed", *_REQUEST, "success"
    )
    deliver_blocks_sent = _tally("The number of blocks sent by Deliver", *_REQUEST)
    grpc_server_stream_requests_received = _tally(
        "The number of stream requests received", *_METHOD
    )
    grpc_server_stream_requests_completed = _tally(
        "The number of stream requests completed", *_METHOD, "code"
    )
    grpc_server_stream_messages_received = _tally(
        "The number of stream messages received", *_METHOD
    )
    grpc_server_stream_messages_sent = _tally("The number of stream messages sent", *_METHOD)
    grpc_server_unary_requests_received = _tally("The number of unary requests received", *_METHOD)
    grpc_server_unary_requests_completed = _tally(
        "The number of unary requests completed", *_METHOD, "code"
    )
    blockcutter_block_fill_duration = _Metric(
        Histogram, "The time from the first transaction of a block to its cut", "channel"
    )
    ledger_blockchain_height = _Metric(Gauge, "The height of the chain in blocks", "channel")
    ledger_blockstorage_commit_time = _Metric(Histogram, "The time to write a block", "channel")
    consensus_kafka_last_offset_persisted = _Metric(
        Gauge, "The position in the order stream that the newest block's metadata hold", "channel"
    )
    fabric_version = _Metric(Gauge, "The running version", "version")
    logging_entries_written = _tally("The number of log entries written", "level")
    records_ignored = _tally("Records of the log without effect", "channel", "reason", own=True)
    records_reposted = _tally("Records validated and posted again", "channel", own=True)
    transactions_refused = _tally(
        "Transactions refused when read from the log", "channel", "reason", own=True
    )
    timers_posted = _tally("Time-to-cut records posted", "channel", "outcome", own=True)
    markers_posted = _tally("Config markers posted to the logs of sets", "channel", own=True)
    bundles_processed = _tally("Bundles that clients submitted, answered", "status", own=True)
    bundles_reposted = _tally("Bundles judged again, after their record was void", own=True)
    bundles_counted = _tally("Bundles read that count", "channel", own=True)
    bundles_void = _tally("Records of bundles read that are void", "channel", "reason", own=True)
    markers_read = _tally("Config markers read and taken", "channel", own=True)
    entries_read = _tally("Order entries read in a collector's stream", "channel", "log", own=True)
    entries_dropped = _tally(
        "Of the entries read, those of logs that are not wanted", "channel", "log", own=True
    )
    lost_tail = _Metric(
        Gauge, "1: the chain has stopped, as Kafka lost the end of its log or order", "channel",
        own=True,
    )  # fmt: skip
    stalled_connections_ended = _tally("Connections ended whose client did not read", own=True)
    certificate_expiry_timestamp_seconds = _Metric(
        Gauge, "When the next certificate of an option or setting ends, in seconds since 1970",
        "option", own=True,
    )  # fmt: skip
    renewal_failed = _Metric(
        Gauge, "1: an option's files have changed and cannot be used; what was before is in force",
        "option", own=True,
    )  # fmt: skip
    ledger_torn_tails = _tally("Torn tails of the ledger cut off at start", "channel", own=True)

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        rows = [row for row in vars(Metrics).values() if isinstance(row, _Metric)]
        self.made: dict[str, Any] = {row.attribute: row.make(self.registry) for row in rows}
        self._tallies = [
            row.name for row in rows if isinstance(self.made[row.attribute], LabelledCounter)
        ]
        self.fabric_version.labels(version=f"amcast-{version('amcast')}").set(1)

    def expose(self) -> bytes:
        """Return all metrics in Prometheus' text format 0.0.4."""
        text = generate_latest(self.registry).decode()
        for name in self._tallies:
            # The library appends `_total` to a counter's name in its HELP and TYPE lines.
            for head in ("HELP", "TYPE"):
                text = text.replace(f"# {head} {name}_total ", f"# {head} {name} ")
        return text.encode()


class CountingHandler(logging.Handler):
    """Counts the log entries that are written, by level."""

    def __init__(self, metrics: Metrics) -> None:
        super().__init__()
        self._metrics = metrics

    def emit(self, record: logging.LogRecord) -> None:
        """Count one entry."""
        self._metrics.logging_entries_written.add(record.levelname.lower())
