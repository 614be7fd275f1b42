"""A year of a deployment in half an hour: does anything grow with time? `python -m bench.year`.

    python -m bench.year [--minutes 30]

What waits for the clock runs 20,000 times faster (`speed.py`): one real broker, 100 messages/s over
three partitions, two collectors in two processes, one of which is ended every 15 s in turn, each
fifth time by SIGKILL. Prints how much of a year that was, and the measures of the minutes five to
ten beside those of the last five. Exit code 1: one of these is not within 10 %, something of a year
came too rarely, or a message was not delivered. A run below 15 minutes judges only the last. Where
plain clients, too, opened faster or slower, the time to open is not judged; its processor time is.
The control topic may grow by what the rule of its checkpoints says, the logarithm of the time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import cycle
from math import log2
from pathlib import Path

from bench.harness.hosts import cpu_seconds, resident_bytes
from bench.harness.interrupts import end_at_signals
from bench.harness.rig import pause
from bench.year.measures import (
    BYTES,
    CPU,
    FIXED,
    HOST,
    MEASURES,
    OPENS,
    PLAIN,
    RECORDS,
    Samples,
    look,
)
from bench.year.speed import SPEED, YEAR_S
from bench.year.system import CONSUMER, DELIVERED, Year, standing
from collectors.collector import LIMITS
from multicast.control import stream_partition
from multicast.control.checkpoints import SLOTS
from multicast.drivers.protocol import TopicPartition
from multicast.errors import AmcastError, TimedOut

_HOSTS = 2
_WINDOW_S = 300
_MINUTES_LEAST = 15  # that two windows do not overlap, behind five minutes in which all warms up
_WITHIN = 0.1
_RESTART_EVERY_S = 15.0
_KILLED = 5  # each fifth restart is by SIGKILL
_DELIVERED_S = 30.0
_WEEK_S = 7 * 24 * 3600


def live(year: Year, seconds: float, consumer: int) -> Samples:
    """Restart the processes of collectors in turn and measure, for so long."""
    hosts = list(year.hosts)
    spent = [(cpu_seconds([host.pid]), year.messages) for host in hosts]
    samples = Samples()
    for turn in cycle(range(len(hosts) * _KILLED)):
        # Not from the last restart: all lives last as long, also where starts took long.
        due = samples.seconds + _RESTART_EVERY_S
        while True:  # once at least, however long the start took
            look(year, samples, consumer)
            pause(1.0)
            if samples.seconds >= min(due, seconds):
                break
        if samples.seconds >= seconds:
            return samples
        index = turn % len(hosts)
        pid, (cpu_s, messages) = hosts[index].pid, spent[index]
        used_us = (cpu_seconds([pid]) - cpu_s) * 1e6
        samples.note(CPU, len(hosts) * used_us / max(1, year.messages - messages))
        samples.note(HOST, resident_bytes([pid]) / 2**20)
        if turn % _KILLED:
            hosts[index].close()
        else:
            hosts[index].kill()
        hosts[index] = year.start_host(index)
        spent[index] = (cpu_seconds([hosts[index].pid]), year.messages)
    raise AssertionError("a cycle has no end")


def counted(year: Year) -> Iterator[tuple[str, int, float]]:
    """Give what happened, how often, and how often it does in a year."""
    names = [each.name for each in year.plan.collectors]
    checkpoints = YEAR_S * 1000 / LIMITS.checkpoint_time
    yield "checkpoints of a stream", min(len(year.named[name]) for name in names), checkpoints
    yield "takeovers of a collector", min(year.acted[name] for name in names) - 1, YEAR_S / _WEEK_S
    streams = [stream_partition(year.plan, name) for name in names]
    yield "segments of an order stream", min(map(year.rolls, streams)), _rolls(year, streams[0])
    # A segment that is old enough ends when another record comes.
    rolls = min(_rolls(year, year.control), len(names) * checkpoints)
    yield "segments of the control topic", year.rolls(year.control), rolls


def _rolls(year: Year, place: TopicPartition) -> float:
    return YEAR_S * 1000 / int(year.settings[place.topic]["segment.ms"])


def report(year: Year, samples: Samples, seconds: float) -> bool:
    """Print what happened and what was measured; return whether nothing is wrong."""
    write, is_right, is_judged = sys.stdout.write, True, seconds >= 60 * _MINUTES_LEAST
    write(f"{'':44}{'here':>10}{'a year':>10}\n")
    for what, count, of_year in counted(year):
        is_less = seconds * SPEED >= YEAR_S and count < int(of_year)
        is_right = is_right and not is_less
        write(f"{what:44}{count:10,}{of_year:10,.0f}{'  too few' if is_less else ''}\n")
    half = seconds / 2
    early, late = (
        ((_WINDOW_S, 2.0 * _WINDOW_S), (seconds - _WINDOW_S, seconds))
        if is_judged
        else ((0.0, half), (half, seconds))
    )
    titles = ("minutes 5-10", "last 5") if is_judged else ("first half", "second half")
    write(f"\n{'median':44}{titles[0]:>14}{titles[1]:>14}{'ratio':>8}\n")
    is_steady = abs(samples.ratio(PLAIN, early, late) - 1) <= _WITHIN
    judged = [each for each in MEASURES if is_steady or each not in OPENS.values()]
    # `multicast.control.checkpoints`: so many more are kept of each collector when time doubles.
    grown = SLOTS * len(year.plan.collectors) * log2(sum(late) / sum(early))
    records = samples.median(RECORDS, *early)
    for measure in (*MEASURES, PLAIN, FIXED):
        ratio = samples.ratio(measure, early, late)
        more = grown / (records or 1.0) if measure in (RECORDS, BYTES) else 0.0
        is_off = is_judged and measure in judged and not -_WITHIN <= ratio - 1 <= _WITHIN + more
        is_right = is_right and not is_off
        values = "".join(f"{samples.median(measure, *span):14,.1f}" for span in (early, late))
        write(f"{measure:44}{values}{ratio:8.2f}{'  not within 10 %' if is_off else ''}\n")
    if not is_judged:
        write(f"no verdict on the ratios: less than {_MINUTES_LEAST} minutes\n")
    elif not is_steady:
        write("no verdict on the time to open: nor was a plain client's within 10 %\n")
    return is_right


def run(minutes: float) -> int:
    """Live for so long; return the exit code."""
    with standing() as year, ExitStack() as stack:
        stack.enter_context(year.background(year.watch_control))
        for index in range(_HOSTS):
            year.start_host(index)
        year.speed_up()
        delivered = year.folder / "delivered"
        consumer = stack.enter_context(year.client("receive", "-n", CONSUMER, out=delivered))
        producer = stack.enter_context(year.client("send", out=Path("/dev/null")))
        with year.background(year.send, producer):
            samples = live(year, 60 * minutes, consumer.pid)
        is_right = report(year, samples, 60 * minutes)
        expected = year.messages * DELIVERED // 10

        def count() -> int:
            with delivered.open("rb") as lines:
                return sum(1 for _ in lines)

        with suppress(TimedOut):
            year.wait(lambda: count() >= expected, "all messages", _DELIVERED_S)
        sys.stdout.write(f"\nmessages delivered {count():,} of {expected:,}\n")
        return 0 if is_right and count() == expected else 1


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.year",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="at least 1")
    minutes = parser.parse_args().minutes
    if not 1 <= minutes <= 1000:
        parser.error("--minutes has to be from 1 to 1000")
    end_at_signals()
    try:
        return run(minutes)
    except AmcastError as error:
        sys.stderr.write(f"bench.year: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
