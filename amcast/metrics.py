"""Metrics of producers and consumers: the names of `multicast.metrics` (docs/metrics.md)."""

from multicast.metrics import ClientMetrics

__all__ = ["ClientMetrics"]
