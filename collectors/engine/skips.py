"""Skips: empty records that fill the holes which the order has left in logs.

A message that a ticket or an early run promised, and that was never appended, would hold its place
in the order for ever. A skip in its place is delivered to nobody. Before every fill the topic's id
is compared with the plan's: in a topic that was deleted and created again, every hole would get one
skip too many.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from multicast.control import log_partition
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import (
    Appended,
    Appender,
    AppendFailed,
    AppendOutcome,
    Driver,
    append_each,
)
from multicast.errors import AccessDenied, AmcastError, AppendRefused, BufferFull, TimedOut
from multicast.messages import skip_header
from multicast.topic_identity import refuse_changed_topics
from topology.tree import Plan

_log = logging.getLogger("amcast.collectors")
# Of one log, between two progress messages and two looks at the deadline. Ten times as many would
# outlast a time-out of seconds; a tenth would wait for acknowledgements ten times as often.
_SKIPS_AT_ONCE_MAX = 20_000


def is_lasting(error: AmcastError) -> bool:
    """Return whether an append failed so that waiting does not help: somebody has to act."""
    return isinstance(error, AccessDenied | AppendRefused) and not error.retriable


def log_refused(outcome: AppendOutcome) -> None:
    """Log an append that Kafka refused; one that failed otherwise is repeated or does no harm."""
    if isinstance(outcome, AppendFailed) and is_lasting(outcome.error):
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
    """Start to append one skip to log `number`, if it ends below an offset; say whether it did.

    Open transactions count towards the end. `filled` is called once, from any thread, with the
    log's end after that, or None where it is unknown. Raises `TopicChanged` where the log's topic
    was deleted and created again.
    """
    log = plan.logs[number]
    partition = log_partition(log)
    refuse_changed_topics(driver, plan, {partition.topic})
    end = driver.high_watermarks([partition])[partition]
    if end >= below:
        filled(end)
        return False

    def done(outcome: AppendOutcome) -> None:
        log_refused(outcome)
        filled(outcome.offset + 1 if isinstance(outcome, Appended) else None)

    try:
        appender.append(partition, b"", headers=(skip_header(log.name),), done=done)
    except BufferFull:
        filled(None)
        return False
    return True


def missing(driver: Driver, plan: Plan, targets: Mapping[str, int]) -> dict[str, int]:
    """Count by log the offsets that are empty below its target; full logs are left out."""
    partitions = {name: log_partition(plan.log(name)) for name in targets}
    ends = driver.high_watermarks(list(partitions.values()))
    short = {name: target - ends[partitions[name]] for name, target in targets.items()}
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
    """Append skips until each log reaches its target offset; give how many.

    Blocks until `deadline`, in seconds of the driver's clock. Others may append at the same time: a
    few skips too many do no harm. Raises `TimedOut` (the next call continues) and `TopicChanged`.
    """
    refuse_changed_topics(driver, plan, {plan.log(name).topic for name in targets})
    appended = 0
    while short := missing(driver, plan, targets):
        for name, count in short.items():
            if count > _SKIPS_AT_ONCE_MAX:
                say(f"log {name}: {count} skips to append")
            skips = min(count, _SKIPS_AT_ONCE_MAX)
            appended += append_each(
                appender,
                log_partition(plan.log(name)),
                [b""] * skips,
                headers=[(skip_header(name),)] * skips,
                done=ignore,
            )
        if not appender.flush(max(0.0, deadline - clock_of(driver).monotonic())):
            raise TimedOut(f"log {min(short)} was not filled in time; run the command again")
    return appended


def ignore(*_: object) -> None:
    """Ignore the outcome of an append whose loss does no harm."""
