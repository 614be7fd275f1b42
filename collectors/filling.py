"""Skips: records that fill the holes which early runs have left in logs.

A message that was announced and never appended would keep its place in the order for ever. A skip
in its place is a record for nobody. Who fills looks first whether the log still is the one that the
plan was made for: in a log that was made again, every hole would be one too many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from multicast.control import log_partition, refuse_changed_topics
from multicast.errors import AccessDenied, BufferFull
from multicast.log import Appended, Appender, AppendFailed, AppendOutcome, Driver
from multicast.messages import skip_header
from topology.tree import Plan

_log = logging.getLogger("amcast.collectors")


def log_denied(outcome: AppendOutcome) -> None:
    """Log that an append was denied; any other that fails here is tried again, or is no harm."""
    if isinstance(outcome, AppendFailed) and isinstance(outcome.error, AccessDenied):
        _log.warning("%s", outcome.error)


def fill(
    driver: Driver,
    appender: Appender,
    plan: Plan,
    number: int,
    *,
    below: int,
    told: Callable[[int | None], None],
) -> bool:
    """Append one skip where a log ends below an offset; say whether one was started.

    `told` hears where the log ends then, from any thread; None: nobody knows. Raises
    `TopicChanged`.
    """
    log = plan.logs[number]
    at = log_partition(log)
    refuse_changed_topics(driver, plan, {at.topic})
    end = driver.next_offsets([at])[at]
    if end >= below:
        told(end)
        return False

    def done(outcome: AppendOutcome) -> None:
        log_denied(outcome)
        told(outcome.offset + 1 if isinstance(outcome, Appended) else None)

    try:
        appender.append(at, b"", headers=(skip_header(log.name),), done=done)
    except BufferFull:
        told(None)
        return False
    return True
