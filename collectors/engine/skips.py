"""Skips: empty records that fill the holes which the order has left in logs.

A message that a ticket or an early run promised, and that was never appended, would hold its place
in the order for ever. A skip in its place is delivered to nobody. Before every fill the topic's id
is compared with the plan's: in a topic that was deleted and created again, every hole would get
skips too many.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from multicast.control import log_partition
from multicast.control.topic_identity import refuse_changed_topics
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import (
    Appended,
    Appender,
    AppendFailed,
    AppendOutcome,
    DoneAll,
    Driver,
)
from multicast.errors import (
    AccessDenied,
    AmcastError,
    AppendRefused,
    BufferFull,
    ClusterUnreachable,
    TimedOut,
)
from multicast.messages import skip_header
from topology.tree import Log, Plan

_log = logging.getLogger("amcast.collectors")
# Of one log, between two progress messages and two looks at the deadline. Ten times as many would
# outlast a time-out of seconds; a tenth would wait for acknowledgements ten times as often.
_SKIPS_AT_ONCE_MAX = 20_000
# That a collector appends between two questions for the log's end: what late messages bring
# meanwhile is too much by as many. Ten times less costs a question for each 10 ms of appends.
_SKIPS_TOGETHER_MAX = 2000
# An answer that takes longer comes from a leader that was away: messages may be on their way to it.
# Ten times as long, the holes of all other logs of the process would wait for this one's leader.
_ANSWER_S = 1.0


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
    is_whole: Callable[[], bool],
    filled: Callable[[int | None], None],
) -> int:
    """Start to append skips to log `number`, while it ends below an offset; give how many.

    A large hole takes several calls. Open transactions count towards the end. `is_whole` says
    whether the log's present leader has all that was seen of it. `filled` is called once, from any
    thread, with the log's end after that; None: nothing was started, because the log's leader is
    away or the log not whole, or not all that was started was stored. Raises `TopicChanged` where
    the log's topic was deleted and created again.
    """
    log = plan.logs[number]
    partition = log_partition(log)
    try:
        refuse_changed_topics(driver, plan, {partition.topic}, timeout_s=_ANSWER_S)
        if not is_whole():
            filled(None)
            return 0
        end = driver.high_watermarks([partition], timeout_s=_ANSWER_S)[partition]
    except ClusterUnreachable:
        filled(None)
        return 0
    skips = max(0, min(below - end, _SKIPS_TOGETHER_MAX))
    if not skips:
        filled(end)
        return 0
    lock = threading.Lock()
    left, is_lost = skips, False

    def done(_: int, count: int, outcome: AppendOutcome) -> None:
        nonlocal end, left, is_lost
        with lock:
            left -= count
            if isinstance(outcome, Appended):
                end = max(end, outcome.offset + count)
            elif not is_lost:
                is_lost = True
                log_refused(outcome)
            is_last = not left
        if is_last:
            filled(None if is_lost else end)

    started = _append_skips(appender, log, skips, done)
    if started < skips:
        done(started, skips - started, AppendFailed(BufferFull("the rest has to wait")))
    return started


def _append_skips(appender: Appender, log: Log, count: int, done: DoneAll) -> int:
    """Start to append so many skips to a log; give how many the buffer has taken."""
    headers = [(skip_header(log.name),)] * count
    partition = log_partition(log)
    return appender.append_all(partition, [b""] * count, headers=headers, done=done)


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
            appended += _append_skips(appender, plan.log(name), skips, ignore)
        if not appender.flush(max(0.0, deadline - clock_of(driver).monotonic())):
            raise TimedOut(f"log {min(short)} was not filled in time; run the command again")
    return appended


def ignore(*_: object) -> None:
    """Ignore the outcome of an append whose loss does no harm."""
