"""Metrics for Prometheus (docs/metrics.md): tables of names, and their exposition."""
