"""The Grafana dashboard that `amcast generate grafana` writes, as JSON for an import.

A panel is a row of `PANELS`: its title, Grafana's unit, and its queries with the legend of each.
The variable `topic` selects topics. The data source is asked for at the import.
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
class Panel:
    """A graph; each query is an expression and the legend of its series."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]


def _rate(name: str, by: str) -> str:
    return f'sum by ({by}) (rate({name}{{topic=~"$topic"}}[$__rate_interval]))'


def _most(name: str, by: str) -> str:
    return f'max by ({by}) ({name}{{topic=~"$topic"}})'


def _quantile(share: float, name: str, by: str) -> str:
    return f"histogram_quantile({share}, {_rate(f'{name}_bucket', f'{by}, le')})"


PANELS = (
    Panel("Processes that answer", "short", (('sum(up{job="JOB"})', "up"),)),
    Panel(
        "Ordered",
        "ops",
        ((_rate("amcast_collector_ordered_total", "collector"), "{{collector}}"),),
    ),
    Panel(
        "Delivered",
        "ops",
        ((_rate("amcast_consumer_deliveries_total", "client"), "{{client}}"),),
    ),
    Panel(
        "Order lag",
        "s",
        ((_most("amcast_collector_lag_seconds", "collector, log"), "{{collector}} {{log}}"),),
    ),
    Panel(
        "Not yet ordered",
        "short",
        ((_most("amcast_collector_lag_messages", "collector, log"), "{{collector}} {{log}}"),),
    ),
    Panel(
        "Consumers behind the order",
        "s",
        ((_most("amcast_consumer_order_lag_seconds", "client"), "{{client}}"),),
    ),
    Panel(
        "Instances that act",
        "short",
        (('sum by (collector) (amcast_collector_acting{topic=~"$topic"})', "{{collector}}"),),
    ),
    Panel("Epoch", "short", ((_most("amcast_collector_epoch", "collector"), "{{collector}}"),)),
    Panel(
        "Oldest open transaction",
        "s",
        ((_most("amcast_log_oldest_transaction_seconds", "log"), "{{log}}"),),
    ),
    Panel(
        "Appends to order streams",
        "s",
        (
            (_quantile(0.5, "amcast_collector_append_seconds", "collector"), "{{collector}} p50"),
            (_quantile(0.99, "amcast_collector_append_seconds", "collector"), "{{collector}} p99"),
        ),
    ),
    Panel(
        "Holes",
        "ops",
        (
            (_rate("amcast_collector_holes_waited_total", "collector"), "{{collector}} waited for"),
            (_rate("amcast_collector_holes_filled_total", "collector"), "{{collector}} filled"),
        ),
    ),
    Panel(
        "Entries appended, and passed on for others",
        "ops",
        (
            (_rate("amcast_collector_entries_appended_total", "collector"), "{{collector}}"),
            (
                _rate("amcast_collector_entries_passed_on_total", "collector"),
                "{{collector}} passed on",
            ),
        ),
    ),
    Panel(
        "Buffered by consumers",
        "bytes",
        ((_most("amcast_consumer_buffered_bytes", "client"), "{{client}}"),),
    ),
    Panel(
        "Waiting for one message",
        "s",
        ((_most("amcast_consumer_waiting_seconds", "client"), "{{client}}"),),
    ),
    Panel(
        "CPU of each process",
        "percentunit",
        (('rate(process_cpu_seconds_total{job="JOB"}[$__rate_interval])', "{{instance}}"),),
    ),
)


def dashboard(*, job: str) -> str:
    """Write the dashboard for the scrapes of a job."""
    document: dict[str, Any] = {
        "uid": "amcast",
        "title": "amcast",
        "description": "Collectors, producers and consumers of atomic multicast on Apache Kafka",
        "tags": ["amcast", "kafka"],
        "schemaVersion": _SCHEMA_VERSION,
        "version": 1,
        "editable": True,
        "refresh": "5s",
        "time": {"from": "now-15m", "to": "now"},
        "timezone": "browser",
        "templating": {"list": _variables()},
        "annotations": {"list": []},
        "panels": [_panel(number, panel, job) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(document, indent=2) + "\n"


def _variables() -> list[dict[str, Any]]:
    query = "label_values(amcast_collector_acting, topic)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "topic",
            "label": "Topic",
            "type": "query",
            "datasource": _SOURCE,
            "definition": query,
            "query": {"query": query, "refId": "topic"},
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
        },
    ]


def _panel(number: int, panel: Panel, job: str) -> dict[str, Any]:
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
