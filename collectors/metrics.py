"""The page `/metrics` of a collectors' process, for Prometheus. It shows what `/status` shows.

`python -m collectors.metrics` prints the table of docs/metrics.md. Counters are of this process. Of
two epochs of one collector, the newest that has begun is shown, so its counters begin at 0 with an
epoch that does not retain it; Prometheus takes that for a restart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

from multicast.metrics.exposition import (
    CERTIFICATES,
    FamilyCollector,
    LabelledValue,
    MetricsPage,
    Samples,
    certificate_samples,
)
from multicast.metrics.families import MetricFamily, MetricKind, table

_COLLECTOR = ("topic", "collector")
_LOG = (*_COLLECTOR, "log")

# What a collector says of itself: a metric, and the key of its value in `nodes` of `/status`.
_OF_COLLECTORS = (
    (MetricFamily("amcast_collector_acting", MetricKind.GAUGE, _COLLECTOR,
            "1 if this process appends what is due, 0 if it stands by"), "acting"),
    (MetricFamily("amcast_collector_frozen", MetricKind.GAUGE, _COLLECTOR,
            "1 once its stream is frozen: its epoch is over"), "frozen"),
    (MetricFamily("amcast_collector_epoch", MetricKind.GAUGE, _COLLECTOR, "Its epoch"), "epoch"),
    (MetricFamily("amcast_collector_restarts_total", MetricKind.COUNTER, _COLLECTOR,
            "Restarts of its instance in this process after a failure"), "restarts"),
    (MetricFamily("amcast_collector_takeovers_total", MetricKind.COUNTER, _COLLECTOR,
            "How often its instance began to act as a standby"), "takeovers"),
    (MetricFamily("amcast_collector_early_total", MetricKind.COUNTER, _COLLECTOR,
            "Offsets that it saw ordered before it saw them stored; right but for holes filled"),
     "ordered_early"),
    (MetricFamily("amcast_collector_holes_waited_total", MetricKind.COUNTER, _COLLECTOR,
            "Holes that stayed empty for two ticks, so that a fill was due"), "fills"),
    (MetricFamily("amcast_collector_holes_filled_total", MetricKind.COUNTER, _COLLECTOR,
            "Skips appended into holes: offsets that were ordered and got no message"), "skips"),
    (MetricFamily("amcast_collector_appends_in_flight", MetricKind.GAUGE, _COLLECTOR,
            "Order records appended and not read back yet"), "pending"),
    (MetricFamily("amcast_collector_early_messages", MetricKind.GAUGE, _COLLECTOR,
            "Offsets ordered ahead of the ends of their logs"), "early"),
    (MetricFamily("amcast_collector_void_total", MetricKind.COUNTER, (*_COLLECTOR, "reason"),
            "Order records in its stream that are void"), "void"),
    (MetricFamily("amcast_collector_ordered_total", MetricKind.COUNTER, _LOG,
            "Offsets ordered since the epoch's start, by whichever process"), "ordered"),
    (MetricFamily("amcast_collector_lag_messages", MetricKind.GAUGE, _LOG,
            "Offsets below the log's end that are not ordered yet"), "lags"),
    (MetricFamily("amcast_collector_lag_seconds", MetricKind.GAUGE, _LOG,
            "For how long the oldest of these has waited, exact to a quarter of a second"),
     "lag_seconds"),
    (MetricFamily("amcast_log_stable_lag_records", MetricKind.GAUGE, _LOG,
            "High watermark - last stable offset, where a transaction is open"), "stable_lag"),
    (MetricFamily("amcast_log_oldest_transaction_seconds", MetricKind.GAUGE, _LOG,
            "For how long an open transaction has kept the last stable offset where it is"),
     "transaction_seconds"),
    (MetricFamily("amcast_log_lost_offset", MetricKind.GAUGE, _LOG,
            "The first offset that a log has lost, while no operator has accepted that; else none"),
     "lost"),
    (MetricFamily("amcast_collector_held_logs", MetricKind.GAUGE, _COLLECTOR,
            "Logs that an open transaction holds"), "held"),
    (MetricFamily("amcast_collector_replanning_seconds", MetricKind.GAUGE, _COLLECTOR,
            "How long the last change of plan stopped it: from its freeze to the next epoch's "
            "begin"), "replanning_seconds"),
    (MetricFamily("amcast_collector_append_seconds", MetricKind.HISTOGRAM, _COLLECTOR,
            "From the append of an order record to its acknowledgement"), "append_seconds"),
)  # fmt: skip
_ENTRIES = (
    (MetricFamily("amcast_collector_entries_appended_total", MetricKind.COUNTER, _LOG,
            "Order entries that this process appended to its stream"), "appended"),
    (MetricFamily("amcast_collector_entries_passed_on_total", MetricKind.COUNTER, _LOG,
            "Of these, entries that no consumer of the collector wants"), "passed_on"),
    (MetricFamily("amcast_collector_entries_read_total", MetricKind.COUNTER, _LOG,
            "Order entries that this process read in its parent's stream"), "read"),
    (MetricFamily("amcast_collector_entries_dropped_total", MetricKind.COUNTER, _LOG,
            "Of these, entries of logs outside the collector's bag"), "dropped"),
)  # fmt: skip
_CHECK = (
    (MetricFamily("amcast_check_messages_total", MetricKind.COUNTER, ("topic",),
            "Deliveries that the order check has read; only with --check"), "messages"),
    (MetricFamily("amcast_check_violations_total", MetricKind.COUNTER, ("topic",),
            "Turns of the check that found another violation"), "violations"),
    (MetricFamily("amcast_check_timestamp_seconds", MetricKind.GAUGE, ("topic",),
            "When the check last judged, in seconds since 1970"), "checked_at"),
)  # fmt: skip
_CONSUMER = ("topic", "consumer")
_CONSUMERS = (
    (MetricFamily("amcast_group_lag_messages", MetricKind.GAUGE, _CONSUMER,
            "Messages that its last commit does not cover, skips not counted before the first"),
     "lag"),
    (MetricFamily("amcast_group_lag_seconds", MetricKind.GAUGE, _CONSUMER,
            "How old the first of them is; absent where that was not read"), "lag_seconds"),
    (MetricFamily("amcast_group_stands_seconds", MetricKind.GAUGE, _CONSUMER,
            "For how long messages have waited, and it has committed nothing"), "stands_seconds"),
    (MetricFamily("amcast_group_committed_timestamp_seconds", MetricKind.GAUGE, _CONSUMER,
            "When it committed last, by its own clock, in seconds since 1970"), "committed_at"),
    (MetricFamily("amcast_group_never_committed", MetricKind.GAUGE, _CONSUMER,
            "1 if it is a consumer of the plan that no group has committed for"), "never"),
)  # fmt: skip
_BUILD = MetricFamily(
    "amcast_build_info", MetricKind.GAUGE, ("version",), "1; the version of amcast"
)
FAMILIES = (
    *(family for family, _ in (*_OF_COLLECTORS, *_ENTRIES)),
    *(family for family, _ in (*_CHECK, *_CONSUMERS)),
    CERTIFICATES,
    _BUILD,
)


def page_of(status: Callable[[], Mapping[str, Any]]) -> MetricsPage:
    """Make the page of a process that `status` describes as `/status` does."""
    return MetricsPage(FamilyCollector(FAMILIES, lambda: samples_of(status())))


def samples_of(status: Mapping[str, Any]) -> Samples:
    """Take the samples of all families from what `/status` shows."""
    taken: dict[str, list[LabelledValue]] = {family.name: [] for family in FAMILIES}
    topic = status["topic"]
    for node in _newest(status["nodes"]):
        labels = (topic, node["node"])
        for families, values in ((_OF_COLLECTORS, node), (_ENTRIES, node.get("entries", {}))):
            for family, key in families:
                taken[family.name] += _samples(family, labels, values.get(key, 0))
    for family, key in _CHECK if "check" in status else ():
        taken[family.name].append(LabelledValue((topic,), status["check"][key]))
    for row in status.get("consumers", ()):
        for family, key in _CONSUMERS:
            if key in row:
                labels = (topic, row["consumer"])
                taken[family.name].append(LabelledValue(labels, row[key]))
    taken[CERTIFICATES.name] = certificate_samples()
    taken[_BUILD.name].append(LabelledValue((version("amcast"),), 1))
    return taken


def _newest(nodes: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Take one description of each collector: of its newest epoch, if possible one that begun."""
    ranked = sorted(nodes, key=lambda node: (bool(node.get("begun")), node["epoch"]))
    return list({node["node"]: node for node in ranked}.values())


def _samples(family: MetricFamily, labels: tuple[str, ...], value: Any) -> list[LabelledValue]:
    """Give one sample of a number, or one for each further label's value; 0 is of no instance."""
    if family.kind is MetricKind.HISTOGRAM:
        return [LabelledValue(labels, value["sum"], value["counts"])] if value else []
    if len(family.labels) > len(labels):
        return [LabelledValue((*labels, label), each) for label, each in (value or {}).items()]
    if value is None:
        return []
    return [LabelledValue(labels, len(value) if isinstance(value, list) else value)]


if __name__ == "__main__":
    sys.stdout.write(table(FAMILIES))
