"""The rules of the drain between epochs e and e+1: which logs get a marker, and where logs end.

From a plan, the control topic and the states of the streams, these functions compute what has to be
written next. No I/O, no clock; `reconfiguration/drain.py` writes it. It may be killed after any
step, because each step follows from what is in the logs:

    1  the plan of e+1 is in the control topic
    2  an epoch marker for e+1 is appended to each log of `logs_to_mark`
    3  `markers` of e holds the offset after each of these markers
    4  each collector of e freezes once its logs are ordered up to these offsets
    5  each log is filled up to where its top froze, unless it has lost its end; `ends` of e holds
       `ends_of`, and of logs whose loss the plan of e+1 accepts `cuts_of`

Collectors and logs that e+1 retains (`topology/carry_over.py`) take no part in this.

Invariant: the ends of an epoch are a function of its markers, its frozen streams and the losses
that the control topic states, so all processes that write them write the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from multicast.control import ControlState
from multicast.control.documents import Ended, SawEnd
from multicast.order.records import SeenEnd
from multicast.order.rule import undominated
from multicast.order.stream import OrderStream
from topology.carry_over import Retained
from topology.tree import Plan


def logs_to_mark(plan: Plan, retained: Retained) -> tuple[str, ...]:
    """List the logs that get an epoch marker, in the plan's order.

    Of the logs that are not retained, these are the logs that some interest may meet alone (a lone
    reader must learn where its epoch ends), and those that no collector orders (nothing else ends
    their epoch).
    """
    meets = {partition: plan.logs_of((partition,)) for partition in plan.partitions}
    single = {logs[0].name for logs in meets.values() if len(logs) == 1}
    return tuple(
        log.name
        for log in plan.logs
        if (log.name in single or plan.top(log.name) is None) and log.name not in retained.logs
    )


def freeze_positions(plan: Plan, markers: Mapping[str, int]) -> dict[int, int]:
    """Give by log number the position up to which it must be ordered, for `freeze_after`.

    Names of logs that are not in this plan are ignored.
    """
    return {plan.number(name): offset for name, offset in markers.items() if plan.has_log(name)}


def ends_of(
    plan: Plan, streams: Mapping[str, OrderStream], markers: Mapping[str, int], retained: Retained
) -> dict[str, int] | None:
    """Give the offset at which the epoch ends in each log; None while a collector is not frozen.

    `streams` are those of all collectors that are not retained, as read so far. A log ends where
    its top froze it; a log that no collector orders ends at its marker.
    """
    if not all(stream.state.frozen for stream in streams.values()):
        return None
    ends: dict[str, int] = {}
    for log in plan.logs:
        if log.name in retained.logs:
            continue
        top = plan.top(log.name)
        if top is None:
            ends[log.name] = markers[log.name]
        else:
            stream = streams[top.name]
            ends[log.name] = stream.state.positions[stream.plan.number(log.name)]
    return ends


def losses_of(state: ControlState, epoch: int, streams: Iterable[OrderStream]) -> dict[str, int]:
    """Give the first lost offset of each log that has lost its end, as stated in an epoch."""
    stated = {log.name: state.loss_of(epoch, log.name) for log in state.plan(epoch).logs}
    losses = {name: first for name, first in stated.items() if first is not None}
    for stream in streams:
        for log, first in stream.state.lost.items():
            name = stream.plan.logs[log].name
            losses[name] = min(first, losses.get(name, first))
    return losses


def cuts_of(
    plan: Plan, following: Plan, losses: Mapping[str, int], streams: Iterable[OrderStream]
) -> dict[str, int]:
    """Give where lost logs end whose loss the next plan accepts: it gives them another life.

    No stream of the next epoch has to order anything of the life before, so they end where one of
    these streams is, if that is lower.
    """
    cuts = {
        name: first
        for name, first in losses.items()
        if following.has_log(name) and following.log(name).life > plan.log(name).life
    }
    for stream in streams:
        for log, position in stream.state.positions.items():
            name = stream.plan.logs[log].name
            if name in cuts:
                cuts[name] = min(position, cuts[name])
    return cuts


def seen_of(
    streams: Mapping[str, OrderStream], ends: Mapping[str, int], cut: Collection[str] = ()
) -> Ended:
    """Give what these streams have seen of the logs that end, and what these have lost.

    Nothing of the logs that are `cut`: an operator has accepted what they have lost.
    """
    seen: dict[str, list[SeenEnd]] = {}
    lost: dict[str, int] = {}
    for stream in streams.values():
        for log, each in stream.state.seen.items():
            seen.setdefault(stream.plan.logs[log].name, []).extend(each)
        for log, first in stream.state.lost.items():
            name = stream.plan.logs[log].name
            lost[name] = min(first, lost.get(name, first))
    return Ended(
        seen={
            name: [SawEnd(*each[1:]) for each in undominated(seen[name], ends[name])]
            for name in sorted(seen)
            if name not in cut
        },
        lost={name: first for name, first in lost.items() if name not in cut},
    )
