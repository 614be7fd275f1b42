"""Skips: records that fill the holes which early runs have left in logs.

A message that was announced and never appended would keep its place in the order for ever. A skip
in its place is a record for nobody. Who fills looks first whether the log still is the one that the
plan was made for: in a log that was made again, every hole would be one too many.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from multicast.control import log_partition
from multicast.drivers.protocol import (
    Appended,
    Appender,
    AppendFailed,
    AppendOutcome,
    Driver,
    append_each,
)
from multicast.errors import AccessDenied, BufferFull, TimedOut
from multicast.messages import skip_header
from multicast.topic_identity import refuse_changed_topics
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
    filled: Callable[[int | None], None],
) -> bool:
    """Append one skip where a log ends below an offset; say whether one was started.

    `filled` gets the log's end then, from any thread; None where it is unknown. Raises
    `TopicChanged`.
    """
    log = plan.logs[number]
    partition = log_partition(log)
    refuse_changed_topics(driver, plan, {partition.topic})
    end = driver.high_watermarks([partition])[partition]
    if end >= below:
        filled(end)
        return False

    def done(outcome: AppendOutcome) -> None:
        log_denied(outcome)
        filled(outcome.offset + 1 if isinstance(outcome, Appended) else None)

    try:
        appender.append(partition, b"", headers=(skip_header(log.name),), done=done)
    except BufferFull:
        filled(None)
        return False
    return True


_BATCH = 20_000


def missing(driver: Driver, plan: Plan, targets: Mapping[str, int]) -> dict[str, int]:
    """Count by log the offsets that are empty below a target; full logs are left out."""
    at = {name: log_partition(plan.log(name)) for name in targets}
    there = driver.high_watermarks(list(at.values()))
    short = {name: target - there[at[name]] for name, target in targets.items()}
    return {name: count for name, count in short.items() if count > 0}


def fill_up(
    driver: Driver,
    appender: Appender,
    plan: Plan,
    targets: Mapping[str, int],
    *,
    deadline: float,
    say: Callable[[str], None] = lambda _: None,
) -> int:
    """Append skips, many at a time, until each log reaches its target; give how many.

    Whoever else appends meanwhile helps; a few skips too many do no harm. `deadline` is of
    `time.monotonic`. Raises `TimedOut`: run it again. Raises `TopicChanged`.
    """
    refuse_changed_topics(driver, plan, {plan.log(name).topic for name in targets})
    appended = 0
    while short := missing(driver, plan, targets):
        for name, count in short.items():
            log = plan.log(name)
            some = min(count, _BATCH)
            if count > _BATCH:
                say(f"log {name}: {count} skips to append")
            appended += append_each(
                appender,
                log_partition(log),
                [b""] * some,
                headers=(skip_header(name),),
                done=ignore,
            )
        if not appender.flush(max(0.0, deadline - time.monotonic())):
            raise TimedOut(f"log {min(short)} could not be filled in time; run it again")
    return appended


def ignore(*_: object) -> None:
    """Hear nothing of an append: what gets lost here does no harm."""
