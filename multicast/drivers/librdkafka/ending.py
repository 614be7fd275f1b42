"""Ends a producer of the package that is not needed any more, on a thread where nobody waits."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from confluent_kafka import KafkaException

_END_S = 5.0  # librdkafka's threads take milliseconds to release what they hold
_POLL_S = 0.05  # a plain choice: how late the end notices that nothing is held any more


def end(held: list[Any]) -> None:
    """Purge what a producer holds; the package closes it with the last reference, held here."""
    producer = held.pop()
    deadline = time.monotonic() + _END_S
    while len(producer) and time.monotonic() < deadline:
        producer.purge(in_queue=True, in_flight=True, blocking=False)
        with contextlib.suppress(KafkaException):  # the package reports its failure once more
            producer.poll(_POLL_S)
