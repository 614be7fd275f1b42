"""Which logs lose their order where a stream has lost its end that a child had relayed before.

The child's stream orders as the lost records said, the parent's as others may that came since. Both
are read by consumers, so neither is right. Where a loss is accepted, the order of all the parent's
logs is given up from the last place on where the two agree, as if the logs had lost their ends: in
the next epoch these messages are ordered anew.

A collector that has frozen compares no more. If its parent's stream loses its end then, while the
change of epochs is interrupted, the parent's collector orders anew and freezes again, and only who
goes on with the change can notice: `state_lost_orders` states that the stream has lost its end.

    agreed    the parent's positions at the last record that is the one that the child has relayed
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from collectors.core.mending import Damage, Harm, StreamRead
from collectors.doctor.streams import stream_records
from collectors.reconfiguration.appends import append_one
from collectors.reconfiguration.survey import counted_runs, read_streams
from multicast.control import ControlState, collectors_partition, lost_stream_record
from multicast.drivers.protocol import Driver
from multicast.errors import AccessDenied, Conflict
from multicast.order.records import RelayRecord


def refuse_lost_orders(driver: Driver, state: ControlState, timeout_s: float) -> None:
    """State which streams have lost what a frozen child has relayed; raise `Conflict` if any has.

    Blocks while it reads the streams of an epoch that is to end; of any other it reads none.
    """
    if state.begun_epoch == state.epoch:
        return
    streams = state_lost_orders(driver, state, read_streams(driver, state), timeout_s)
    lost = [name for name, read in streams.items() if read.is_lost]
    if lost:
        raise Conflict(
            f"epoch {state.begun_epoch} cannot end without loss: the stream of collector {lost[0]} "
            f"has lost its end; run 'amcast topology recover'"
        )


def state_lost_orders(
    driver: Driver, state: ControlState, streams: Mapping[str, StreamRead], timeout_s: float
) -> dict[str, StreamRead]:
    """State which streams have lost what a frozen child has relayed; give the streams with that."""
    lost: set[str] = set()
    for read in streams.values():
        parent = read.stream.plan.collector(read.name).parent
        if parent is not None and read.stream.state.frozen and read.parent_positions is None:
            lost.add(parent)
    if state.begun_epoch == state.epoch:
        lost.clear()
    for name in sorted(each for each in lost if not streams[each].is_lost):
        key, value = lost_stream_record(name, streams[name].stream.plan.epoch)
        with suppress(AccessDenied):  # recover --accept-loss, which has the right, is what helps
            append_one(driver, collectors_partition(state.topic), key, value, timeout_s)
    return {
        name: replace(read, is_lost=read.is_lost or name in lost) for name, read in streams.items()
    }


def lost_order(
    driver: Driver, state: ControlState, streams: Mapping[str, StreamRead]
) -> tuple[Damage, ...]:
    """Give the logs whose order is lost; blocks while it reads their streams again."""
    firsts: dict[str, tuple[int, str]] = {}
    for read in streams.values():
        parent = read.stream.plan.collector(read.name).parent
        if parent is None or read.parent_positions is not None:
            continue
        for name, position in _agreed(driver, state, streams[parent], read).items():
            firsts[name] = min((position, parent), firsts.get(name, (position, parent)))
    return tuple(
        Damage(
            Harm.LOST,
            parent,
            f"the stream of collector {parent} has lost in which order it had log {name} from "
            f"offset {first} on, so its messages are ordered anew from there on",
            name,
            first,
        )
        for name, (first, parent) in firsts.items()
    )


def _agreed(
    driver: Driver, state: ControlState, parent: StreamRead, child: StreamRead
) -> dict[str, int]:
    """Give by log the parent's position where the two streams are known to agree last."""
    plan, name, end = parent.stream.plan, parent.name, parent.stream.offset_next
    below = end if parent.gone is None else min(end, parent.gone)
    again = state.stream(plan.epoch, name, below=below)
    relayed = _relayed(driver, state, child, again.offset_next)
    agreed = dict(again.state.positions)
    for _ in stream_records(driver, again, end):
        if relayed.get(again.offset_next) == again.checksum:
            agreed = dict(again.state.positions)
    return {plan.logs[log].name: position for log, position in agreed.items()}


def _relayed(driver: Driver, state: ControlState, child: StreamRead, first: int) -> dict[int, int]:
    """Give, by the end of what a child has relayed at once, the checksum of the last record."""
    epoch, end = child.stream.plan.epoch, child.stream.offset_next
    points = [
        point
        for point in state.checkpoints(epoch, child.name)
        if point.record.parent_next <= first and (child.gone is None or point.offset < child.gone)
    ]
    again = state.opened(epoch, child.name, points[-1] if points else None)
    relayed = {}
    for _ in counted_runs(driver, again, end):
        if isinstance(again.last, RelayRecord):
            relayed[again.last.next] = again.last.last
    return relayed
