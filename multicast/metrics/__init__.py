"""Metrics for Prometheus (docs/metrics.md): what is counted, its names, and its exposition.

    from multicast.metrics import ClientMetrics

`prometheus_client` is imported once somebody asks for that: producers and consumers count without
it. Raises `MissingExtra` where it is not installed.
"""

from typing import TYPE_CHECKING

__all__ = ["ClientMetrics"]

if TYPE_CHECKING:
    from multicast.metrics.clients import ClientMetrics
else:

    def __getattr__(name: str) -> type:
        if name != "ClientMetrics":
            raise AttributeError(f"module 'multicast.metrics' has no attribute {name!r}")
        from multicast.metrics.clients import ClientMetrics  # noqa: PLC0415

        return ClientMetrics
