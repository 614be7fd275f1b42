"""The Grafana dashboard that `amcast generate grafana` writes, as JSON for an import.

A panel is a row of `PANELS`: its title, Grafana's unit, and its queries with the legend of each.
The variable `collector` selects collectors. The data source is asked for at the import. Panels of
producers and consumers show those of every job: users' processes have jobs of their own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

_SCHEMA_VERSION = 39  # of Grafana 10 and 11; newer ones migrate it when they load it
_COLUMNS = 24  # of Grafana's grid
_WIDTH = 8  # three panels a row
_HEIGHT = 7  # a legend of a few lines fits below the graph
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class DashboardPanel:
    """A graph; each query is an expression and the legend of its series."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _client_rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}[$__rate_interval]))"


def _of(metric: str) -> str:
    return f'{metric}{{job="JOB", collector=~"$collector"}}'


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({_of(metric)}[$__rate_interval]))"


def _most(metric: str, by: str) -> str:
    return f"max by ({by}) ({_of(metric)})"


def _panel(title: str, unit: str, expression: str, legend: str) -> DashboardPanel:
    return DashboardPanel(title, unit, ((expression, legend),))


def _slowest(quantile: str) -> tuple[str, str]:
    buckets = _rate("amcast_collector_append_seconds_bucket", "collector, le")
    return f"histogram_quantile({quantile}, {buckets})", f"{{{{collector}}}} {quantile}"


def _slowest_message(quantile: str) -> tuple[str, str]:
    buckets = _client_rate("amcast_producer_append_seconds_bucket", "topic, le")
    return f"histogram_quantile({quantile}, {buckets})", f"{{{{topic}}}} {quantile}"


_ACTING = _of("amcast_collector_acting")
_K = "{{collector}}"
_LOG = "{{log}}"
_PROCESS = "{{instance}}"
_CONSUMER = "{{consumer}}"
PANELS = (
    _panel("Processes that answer", "short", 'sum(up{job="JOB"})', "processes"),
    DashboardPanel(
        "Instances of each collector",
        "short",
        (
            (f"sum by (collector) ({_ACTING})", f"{_K} acting"),
            (f"count by (collector) ({_ACTING})", f"{_K} with standbys"),
        ),
    ),
    _panel("Epoch", "short", _most("amcast_collector_epoch", "collector"), _K),
    _panel("Offsets ordered", "ops", _rate("amcast_collector_ordered_total", "instance, log"),
         "{{log}} at {{instance}}"),
    _panel("Offsets not ordered yet", "short", _most("amcast_collector_lag_messages", "log"), _LOG),
    _panel("Longest wait for the order", "s", _most("amcast_collector_lag_seconds", "log"), _LOG),
    DashboardPanel(
        "Append of an order record", "s", (_slowest("0.5"), _slowest("0.99"))
    ),
    _panel("Appends in flight", "short", _most("amcast_collector_appends_in_flight", "collector"),
         _K),
    _panel("Age of open transactions", "s", _most("amcast_log_oldest_transaction_seconds", "log"),
         _LOG),
    DashboardPanel(
        "Early order",
        "ops",
        (
            (_rate("amcast_collector_early_total", "collector"), f"{_K} ordered early"),
            (_rate("amcast_collector_holes_waited_total", "collector"), f"{_K} holes waited for"),
            (_rate("amcast_collector_holes_filled_total", "collector"), f"{_K} holes filled"),
        ),
    ),
    _panel("Void records", "short", _most("amcast_collector_void_total", "collector, reason"),
         f"{_K} {{{{reason}}}}"),
    DashboardPanel(
        "Takeovers and restarts",
        "short",
        (
            (f"sum by (collector) ({_of('amcast_collector_takeovers_total')})", f"{_K} takeovers"),
            (f"sum by (collector) ({_of('amcast_collector_restarts_total')})", f"{_K} restarts"),
        ),
    ),
    _panel("Order entries appended", "ops",
         _rate("amcast_collector_entries_appended_total", "collector"), _K),
    _panel("Appended, but wanted by no consumer of the collector", "ops",
         _rate("amcast_collector_entries_passed_on_total", "collector"), _K),
    DashboardPanel(
        "Order entries of the parent",
        "ops",
        (
            (_rate("amcast_collector_entries_read_total", "collector"), f"{_K} read"),
            (_rate("amcast_collector_entries_dropped_total", "collector"), f"{_K} dropped"),
        ),
    ),
    DashboardPanel(
        "Order check (processes with --check)",
        "short",
        (
            ('amcast_check_violations_total{job="JOB"}', "violations"),
            ('time() - amcast_check_timestamp_seconds{job="JOB"}', "seconds since it judged"),
        ),
    ),
    _panel("Processors used", "short",
         'rate(process_cpu_seconds_total{job="JOB"}[$__rate_interval])', _PROCESS),
    _panel("Time to answer a scrape", "s", 'scrape_duration_seconds{job="JOB"}', _PROCESS),
    _panel("Messages accepted", "ops", _client_rate("amcast_producer_accepted_total", "log"), _LOG),
    DashboardPanel(
        "Messages without success",
        "ops",
        (
            (_client_rate("amcast_producer_refused_total", "log"), f"{_LOG} refused"),
            (_client_rate("amcast_producer_unknown_total", "log"), f"{_LOG} unknown"),
        ),
    ),
    DashboardPanel(
        "Append of a message", "s", (_slowest_message("0.5"), _slowest_message("0.99"))
    ),
    _panel("Messages delivered", "ops",
         _client_rate("amcast_consumer_delivered_total", "consumer"), _CONSUMER),
    _panel("Messages not delivered yet", "short",
         "sum by (consumer, log) (amcast_consumer_lag_messages)", f"{_CONSUMER} {_LOG}"),
    _panel("Consumers that stand, by their commits", "s",
         'max by (consumer) (amcast_group_stands_seconds{job="JOB"})', _CONSUMER),
    _panel("Memory of the consumers' buffers", "bytes",
         "sum by (consumer) (amcast_consumer_buffered_bytes)", _CONSUMER),
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
        "panels": [_document_of(number, panel, job) for number, panel in enumerate(PANELS)],
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


def _document_of(number: int, panel: DashboardPanel, job: str) -> dict[str, Any]:
    across = _COLUMNS // _WIDTH
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": _SOURCE,
        "gridPos": {
            "x": number % across * _WIDTH,
            "y": number // across * _HEIGHT,
            "w": _WIDTH,
            "h": _HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": expression.replace("JOB", job),
                "legendFormat": legend,
            }
            for place, (expression, legend) in enumerate(panel.queries)
        ],
    }
