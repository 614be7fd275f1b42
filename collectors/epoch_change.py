"""The drain between two epochs: which logs get a marker, when a collector freezes, where logs end.

Goes in: a plan, what the control topic says, the states of its collectors' streams. Comes out:
what has to be written next. No I/O, no clock; whoever applies a plan carries it out, and may stop
after any step, because every step follows from what the logs say.

    1  plan e+1 stands in the control topic
    2  an epoch marker for e+1 is appended to every log of `logs_to_mark`
    3  `markers` of e: one past each of these markers
    4  every collector of e freezes once its logs are ordered to there
    5  every log is filled to where its top froze; `ends` of e: `ends_of`

What e+1 carries over (`topology/carry_over.py`) takes part in none of this.

Invariant: the ends of an epoch are one function of its markers and of its frozen streams, so of
several who write them all write the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from multicast.order import OrderStream
from topology.carry_over import Retained
from topology.tree import Plan


def logs_to_mark(plan: Plan, carried: Retained) -> tuple[str, ...]:
    """List the logs that get an epoch marker, in the plan's order.

    Of those that are not carried over, these are the logs that some interest meets without meeting
    another (a lone reader must learn where its epoch ends), and those that no collector decides
    (nothing else ends their epoch).
    """
    meets = {partition: plan.logs_of((partition,)) for partition in plan.partitions}
    alone = {logs[0].name for logs in meets.values() if len(logs) == 1}
    return tuple(
        log.name
        for log in plan.logs
        if (log.name in alone or plan.top(log.name) is None) and log.name not in carried.logs
    )


def freeze_positions(plan: Plan, markers: Mapping[str, int]) -> dict[int, int]:
    """Give by log number to where each log must be ordered: what `Collector.freeze_after` takes.

    Of a log that somebody names and this plan has not, nothing is asked.
    """
    return {plan.number(name): offset for name, offset in markers.items() if plan.has_log(name)}


def ends_of(
    plan: Plan,
    streams: Mapping[str, OrderStream],
    markers: Mapping[str, int],
    carried: Retained,
) -> dict[str, int] | None:
    """Give the offset at which each log's epoch ends; None while a collector is not frozen.

    `streams` are those of the collectors that are not carried over, as read so far. A log ends
    where its top froze; one that no collector decides ends at its marker.
    """
    if not all(stream.state.frozen for stream in streams.values()):
        return None
    ends: dict[str, int] = {}
    for log in plan.logs:
        if log.name in carried.logs:
            continue
        top = plan.top(log.name)
        if top is None:
            ends[log.name] = markers[log.name]
        else:
            stream = streams[top.name]
            ends[log.name] = stream.state.positions[stream.plan.number(log.name)]
    return ends
