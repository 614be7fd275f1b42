"""Starts a producer's appends: counts them, and makes their spans."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from multicast.drivers.protocol import Appender, AppendOutcome, DoneAll, Headers
from multicast.errors import BufferFull
from multicast.producing.keyed.calls import Batched, check_payload
from multicast.producing.receipts import OneMessage, Receipts, Route
from multicast.producing.sending_order import SendingOrder

if TYPE_CHECKING:  # it needs OpenTelemetry, which not every installation has
    from multicast.tracing.sent import ProducerSpans


class Sender:
    """Sends by one appender."""

    def __init__(
        self, appender: Appender, spans: ProducerSpans | None, order: SendingOrder
    ) -> None:
        self._appender = appender
        self._spans = spans
        self._order = order

    def is_ready(self, route: Route) -> bool:
        """Whether a message may be sent now: its leader is known, and it follows what it must."""
        return self._appender.ready(route.partition) and self._order.is_free(route.log)

    def append_all(self, receipts: Receipts, first: int, messages: Batched) -> int:
        """Start appends of messages with all their headers; return how many had room."""
        route = receipts.route
        done: DoneAll = partial(receipts.settle, first)
        started = None
        if self._spans is not None:
            messages, done, started = self._spans.batch(route, messages, done)
        payloads, keys, headers = messages
        taken = self._appender.append_all(
            route.partition, payloads, keys=keys, headers=headers, done=done
        )
        if started is not None:
            started(taken)
        if taken:
            self._count(route, taken)
        if taken < len(payloads):
            route.appends.had_no_room()
        return taken

    def append(
        self,
        message: OneMessage,
        route: Route,
        payload: bytes | None,
        key: bytes | None,
        headers: Headers,
    ) -> None:
        """Start one append and count it; raises `BufferFull` at once."""
        check_payload(payload)
        done: Callable[[AppendOutcome], None] = message.settle
        if self._spans is not None and self._spans.wants(headers):
            headers, done = self._spans.message(route, headers, done)
        try:
            self._appender.append(route.partition, payload, key=key, headers=headers, done=done)
        except BufferFull:
            route.appends.had_no_room()
            raise
        self._count(route, 1)

    def _count(self, route: Route, sent: int) -> None:
        route.appends.sent(sent)
        if self._order.fifo:
            self._order.sent(route)
