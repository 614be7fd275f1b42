"""Traces of messages by OpenTelemetry (docs/tracing.md), imported only once somebody wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from multicast.errors import UsageError

if TYPE_CHECKING:
    from multicast.tracing.delivered import ConsumerSpans
    from multicast.tracing.sent import ProducerSpans


def spans_of_producer(share: float) -> ProducerSpans | None:
    """Give what makes spans of a share of a producer's messages; None if the share is 0.

    Raises `MissingExtra` without the extra `tracing`, `UsageError` for a share outside 0 to 1.
    """
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise UsageError(f"tracing is {share!r}; give True, or a share of the messages from 0 to 1")
    if not share:
        return None
    from multicast.tracing.sent import ProducerSpans  # noqa: PLC0415

    return ProducerSpans(share)


def spans_of_consumer(consumer: str, group: str, *, wanted: bool) -> ConsumerSpans | None:
    """Give what makes a consumer's spans; raises `MissingExtra` without the extra `tracing`."""
    if not wanted:
        return None
    from multicast.tracing.delivered import ConsumerSpans  # noqa: PLC0415

    return ConsumerSpans(consumer, group)
