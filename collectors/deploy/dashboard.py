"""The Grafana dashboard that `amcast generate grafana` writes, as JSON for an import.

A panel is a row of `PANELS`: its title, Grafana's unit, and its queries by the legend of each.
The variable `collector` selects collectors. The data source is asked for at the import. Panels of
producers and consumers show those of every job: users' processes have jobs of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

_SCHEMA_VERSION = 39  # of Grafana 10 and 11; newer ones migrate it when they load it
_COLUMNS = 24  # of Grafana's grid
_WIDTH = 8  # three panels a row
_HEIGHT = 7  # a legend of a few lines fits below the graph
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


def _client_rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def _of(metric: str) -> str:
    return f'{metric}{{job="JOB", collector=~"$collector"}}'


def _rate(metric: str, by: str) -> str:
    return _client_rate(_of(metric), by)


def _most(metric: str, by: str) -> str:
    return f"max by ({by}) ({_of(metric)})"


def _slowest(metric: str, of: str, rate: Callable[[str, str], str]) -> dict[str, str]:
    buckets = rate(f"{metric}_append_seconds_bucket", f"{of}, le")
    return {
        f"{{{{{of}}}}} {quantile}": f"histogram_quantile({quantile}, {buckets})"
        for quantile in ("0.5", "0.99")
    }


_ACTING = _of("amcast_collector_acting")
_K = "{{collector}}"
_LOG = "{{log}}"
_PROCESS = "{{instance}}"
_CONSUMER = "{{consumer}}"
PANELS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("Processes that answer", "short", {"processes": 'sum(up{job="JOB"})'}),
    ("Instances of each collector", "short", {
        f"{_K} acting": f"sum by (collector) ({_ACTING})",
        f"{_K} with standbys": f"count by (collector) ({_ACTING})",
    }),
    ("Epoch", "short", {_K: _most("amcast_collector_epoch", "collector")}),
    ("Offsets ordered", "ops",
     {"{{log}} at {{instance}}": _rate("amcast_collector_ordered_total", "instance, log")}),
    ("Offsets not ordered yet", "short", {_LOG: _most("amcast_collector_lag_messages", "log")}),
    ("Longest wait for the order", "s", {_LOG: _most("amcast_collector_lag_seconds", "log")}),
    ("Append of an order record", "s", _slowest("amcast_collector", "collector", _rate)),
    ("Appends in flight", "short",
     {_K: _most("amcast_collector_appends_in_flight", "collector")}),
    ("Age of open transactions", "s",
     {_LOG: _most("amcast_log_oldest_transaction_seconds", "log")}),
    ("Early order", "ops", {
        f"{_K} ordered early": _rate("amcast_collector_early_total", "collector"),
        f"{_K} holes waited for": _rate("amcast_collector_holes_waited_total", "collector"),
        f"{_K} holes filled": _rate("amcast_collector_holes_filled_total", "collector"),
    }),
    ("Void records", "short",
     {f"{_K} {{{{reason}}}}": _most("amcast_collector_void_total", "collector, reason")}),
    ("Takeovers and restarts", "short", {
        f"{_K} takeovers": f"sum by (collector) ({_of('amcast_collector_takeovers_total')})",
        f"{_K} restarts": f"sum by (collector) ({_of('amcast_collector_restarts_total')})",
    }),
    ("Order entries appended", "ops",
     {_K: _rate("amcast_collector_entries_appended_total", "collector")}),
    ("Appended, but wanted by no consumer of the collector", "ops",
     {_K: _rate("amcast_collector_entries_passed_on_total", "collector")}),
    ("Order entries of the parent", "ops", {
        f"{_K} read": _rate("amcast_collector_entries_read_total", "collector"),
        f"{_K} dropped": _rate("amcast_collector_entries_dropped_total", "collector"),
    }),
    ("Order check (processes with --check)", "short", {
        "violations": 'amcast_check_violations_total{job="JOB"}',
        "seconds since it judged": 'time() - amcast_check_timestamp_seconds{job="JOB"}',
    }),
    ("Processors used", "short",
     {_PROCESS: 'rate(process_cpu_seconds_total{job="JOB"}[$__rate_interval])'}),
    ("Time to answer a scrape", "s", {_PROCESS: 'scrape_duration_seconds{job="JOB"}'}),
    ("Messages accepted", "ops", {_LOG: _client_rate("amcast_producer_accepted_total", "log")}),
    ("Messages without success", "ops", {
        f"{_LOG} refused": _client_rate("amcast_producer_refused_total", "log"),
        f"{_LOG} unknown": _client_rate("amcast_producer_unknown_total", "log"),
    }),
    ("Append of a message", "s", _slowest("amcast_producer", "topic", _client_rate)),
    ("Messages delivered", "ops",
     {_CONSUMER: _client_rate("amcast_consumer_delivered_total", "consumer")}),
    ("Messages not delivered yet", "short",
     {f"{_CONSUMER} {_LOG}": "sum by (consumer, log) (amcast_consumer_lag_messages)"}),
    ("Consumers that stand, by their commits", "s",
     {_CONSUMER: 'max by (consumer) (amcast_group_stands_seconds{job="JOB"})'}),
    ("Memory of the consumers' buffers", "bytes",
     {_CONSUMER: "sum by (consumer) (amcast_consumer_buffered_bytes)"}),
)  # fmt: skip


def dashboard(*, job: str) -> str:
    """Write the dashboard for the scrapes of a job."""
    document: dict[str, Any] = {
        "uid": "amcast",
        "title": "amcast",
        "description": "Collectors of atomic multicast on Apache Kafka",
        "tags": ["amcast", "kafka"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables(job)},
        "annotations": {"list": []},
        "panels": [_document_of(job, number, *panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(document, indent=2) + "\n"


def _variables(job: str) -> list[dict[str, Any]]:
    query = f'label_values(amcast_collector_acting{{job="{job}"}}, collector)'
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "collector",
            "label": "Collector",
            "type": "query",
            "datasource": _SOURCE,
            "definition": query,
            "query": {"query": query, "refId": "collector"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _document_of(
    job: str, number: int, title: str, unit: str, queries: Mapping[str, str]
) -> dict[str, Any]:
    across = _COLUMNS // _WIDTH
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": title,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % across * _WIDTH,
            "y": number // across * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": expression.replace("JOB", job),
                "legendFormat": legend,
            }
            for place, (legend, expression) in enumerate(queries.items())
        ],
    }
