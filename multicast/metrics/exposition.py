"""Gives metrics to `prometheus_client`, and its text to those who ask.

Values are taken when somebody asks: between two scrapes this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from multicast.drivers import certificates
from multicast.metrics.families import BUCKETS_S, MetricFamily, MetricKind
from topology import extra

with extra("collectors"):
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.metrics_core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector


@dataclass(frozen=True, slots=True)
class LabelledValue:
    """One value under its labels, in the order of the family's; a histogram's by bucket, with sum.

    `counts` has one more entry than `BUCKETS_S`.
    """

    labels: tuple[str, ...]
    value: float
    counts: Sequence[int] = ()


CERTIFICATES = MetricFamily(
    "amcast_certificate_expiry_timestamp_seconds", MetricKind.GAUGE, ("setting", "file"),
    "When the next certificate of a file of the client settings ends, in seconds since 1970",
)  # fmt: skip
# By the names of families; one without samples is exposed with its head only.
Samples = Mapping[str, Sequence[LabelledValue]]


def certificate_samples() -> list[LabelledValue]:
    """Take those of `CERTIFICATES`, of all clients of this process."""
    return [LabelledValue(key, end) for key, end in certificates.ends().items()]


class FamilyCollector(Collector):
    """Gives the registry these families, each time with the samples that `take` gives then."""

    def __init__(self, families: Sequence[MetricFamily], take: Callable[[], Samples]) -> None:
        self._families = families
        self._take = take

    def collect(self) -> Iterable[Metric]:
        """Yield all families, for the registry."""
        samples = self._take()
        for family in self._families:
            yield _metric(family, samples.get(family.name, ()))

    def describe(self) -> Iterable[Metric]:
        """Yield all families without samples, so that the registry refuses a second one."""
        for family in self._families:
            yield _metric(family, ())


class MetricsPage:
    """The page `/metrics` of a process: these families, and `process_*` of the operating system."""

    def __init__(self, collector: Collector) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        ProcessCollector(registry=self._registry)

    def text(self) -> str:
        """Write all metrics in Prometheus' text format 0.0.4."""
        return generate_latest(self._registry).decode()


def _metric(family: MetricFamily, samples: Sequence[LabelledValue]) -> Metric:
    if family.kind is MetricKind.HISTOGRAM:
        histogram = HistogramMetricFamily(family.name, family.text, labels=family.labels)
        bounds = [*map(str, BUCKETS_S), "+Inf"]
        for sample in samples:
            buckets = list(zip(bounds, accumulate(sample.counts), strict=True))
            histogram.add_metric(sample.labels, buckets, sample.value)
        return histogram
    make = CounterMetricFamily if family.kind is MetricKind.COUNTER else GaugeMetricFamily
    metric = make(family.name, family.text, labels=family.labels)
    for sample in samples:
        metric.add_metric(sample.labels, sample.value)
    return metric
