"""The Grafana dashboard that `amcast generate grafana` writes, as JSON for an import.

A panel is a row of `PANELS`: its title, Grafana's unit, and its queries with the legend of each.
The variable `collector` selects collectors. The data source is asked for at the import.
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


def _rate(kind: str, by: str) -> str:
    return (
        f"sum by ({by}) (rate(amcast_collectors_entries_{kind}"
        '{job="JOB", collector=~"$collector"}[$__rate_interval]))'
    )


_ACTING = 'amcast_collectors_acting{job="JOB", collector=~"$collector"}'
PANELS = (
    DashboardPanel("Processes that answer", "short", (('sum(up{job="JOB"})', "processes"),)),
    DashboardPanel(
        "Instances of each collector",
        "short",
        (
            (f"sum by (collector) ({_ACTING})", "{{collector}} acting"),
            (f"count by (collector) ({_ACTING})", "{{collector}} with standbys"),
        ),
    ),
    DashboardPanel(
        "Collectors of each epoch", "short", ((f"count by (epoch) ({_ACTING})", "epoch {{epoch}}"),)
    ),
    DashboardPanel(
        "Order entries appended by each collector",
        "ops",
        ((_rate("appended", "collector"), "{{collector}}"),),
    ),
    DashboardPanel(
        "Order entries appended of each log", "ops", ((_rate("appended", "log"), "{{log}}"),)
    ),
    DashboardPanel(
        "Appended, but wanted by no consumer of the collector",
        "ops",
        ((_rate("passed_on", "collector"), "{{collector}}"),),
    ),
    DashboardPanel(
        "Order entries read from the parent",
        "ops",
        ((_rate("read", "collector"), "{{collector}}"),),
    ),
    DashboardPanel(
        "Read from the parent, and dropped",
        "ops",
        ((_rate("dropped", "collector"), "{{collector}}"),),
    ),
    DashboardPanel(
        "Time to answer a scrape",
        "s",
        (('scrape_duration_seconds{job="JOB"}', "{{instance}}"),),
    ),
)


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
        "panels": [_panel(number, panel, job) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(document, indent=2) + "\n"


def _variables(job: str) -> list[dict[str, Any]]:
    query = f'label_values(amcast_collectors_acting{{job="{job}"}}, collector)'
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


def _panel(number: int, panel: DashboardPanel, job: str) -> dict[str, Any]:
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
