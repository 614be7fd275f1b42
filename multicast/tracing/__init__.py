"""Traces of messages by OpenTelemetry (docs/tracing.md), imported only once somebody wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multicast.tracing.delivered import ConsumerSpans
    from multicast.tracing.sent import ProducerSpans


def spans_of_producer(*, wanted: bool) -> ProducerSpans | None:
    """Give what makes a producer's spans; raises `MissingExtra` without the extra `tracing`."""
    if not wanted:
        return None
    from multicast.tracing.sent import ProducerSpans  # noqa: PLC0415

    return ProducerSpans()


def spans_of_consumer(consumer: str, group: str, *, wanted: bool) -> ConsumerSpans | None:
    """Give what makes a consumer's spans; raises `MissingExtra` without the extra `tracing`."""
    if not wanted:
        return None
    from multicast.tracing.delivered import ConsumerSpans  # noqa: PLC0415

    return ConsumerSpans(consumer, group)
