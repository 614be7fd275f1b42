"""Reads all streams of an epoch to their ends, and finds what is damaged in them and in their logs.

Writes nothing. `collectors/core/mending.py` decides what is damaged; `recovery.py` repairs it.

    gone    of a stream that has lost its end: the lowest offset of a checkpoint that the control
            topic names and that is not there. None from there on can be opened
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from types import MappingProxyType

from collectors.core.epoch_change import cuts_of, freeze_positions, losses_of
from collectors.core.mending import Damage, StreamRead, damage, loss, ordered_to
from collectors.doctor.streams import (
    KnownStream,
    RelayedPlace,
    open_near_end,
    place_at,
    stream_records,
)
from collectors.reconfiguration.drain import Streams
from multicast.consuming.stated_ends import lost_behind
from multicast.control import ControlState, log_partition, stream_partition
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.drivers.reading import READ_S, end_from
from multicast.errors import Conflict, ProtocolViolation, TimedOut, Trimmed
from multicast.order.records import SeenEnd
from multicast.order.runs import Run
from multicast.order.stream import OrderStream
from topology.tree import Plan

_NONE: Mapping[str, KnownStream] = MappingProxyType({})


def read_streams(
    driver: Driver, state: ControlState, known: Mapping[str, KnownStream] = _NONE
) -> dict[str, StreamRead]:
    """Read all streams of the newest epoch that has begun to their ends; give them by collector.

    Those that are `known`, by collector, are taken as they are.
    """
    plan = state.plan(state.begun_epoch)
    streams, gone = _read_all(driver, state, plan, known)
    reads = {}
    for name, stream in streams.items():
        parent = plan.collector(name).parent
        last = state.last_epoch(stream.plan.epoch, name)
        marked = None if last is None else state.markers.get(last)
        reads[name] = StreamRead(
            stream,
            parent_positions=None
            if parent is None
            else _positions_at(
                driver, state, known.get(parent, streams[parent]), stream, gone.get(parent)
            ),
            marked=None if marked is None else freeze_positions(stream.plan, marked),
            gone=gone.get(name),
            is_lost=state.stream_is_lost(plan.epoch, name),
        )
    return reads


def _read_all(
    driver: Driver, state: ControlState, plan: Plan, known: Mapping[str, KnownStream]
) -> tuple[dict[str, OrderStream], dict[str, int]]:
    """Read the streams of a plan's collectors; give them, and which have lost checkpoints."""
    gone: dict[str, int] = {}
    while True:
        places: dict[TopicPartition, OrderStream] = {}
        unread: dict[TopicPartition, OrderStream] = {}
        for node in plan.collectors:
            name, began = node.name, state.plan(state.first_epoch(plan.epoch, node.name))
            partition = stream_partition(began, name)
            if name in known:
                places[partition] = known[name].stream
                continue
            opened = open_near_end(driver, state, began, name, gone=gone.get(name))
            places[partition] = unread[partition] = opened
        try:
            read_to_end(driver, unread)
        except ProtocolViolation:
            false = {
                stream.collector: stream.disproven
                for stream in places.values()
                if stream.disproven is not None
            }
            if not false:
                raise
            gone.update(false)
            continue
        for partition, stream in places.items():
            for point in reversed(state.checkpoints(stream.plan.epoch, stream.collector)):
                end = point.offset + 1
                present = end_from(driver, clock_of(driver), partition, end)
                if max(stream.offset_next, present) >= end:
                    break
                gone[stream.collector] = min(point.offset, gone.get(stream.collector, end))
        return {stream.collector: stream for stream in places.values()}, gone


def read_to_end(driver: Driver, places: Mapping[TopicPartition, OrderStream]) -> None:
    """Read streams to the ends that they have now; raises `TimedOut` if no record comes."""
    if not places:
        return
    starts = {place: stream.offset_next for place, stream in places.items()}
    with closing(driver.reader(starts)) as reader:
        streams = Streams(reader, places)
        ends = driver.last_stable_offsets(list(places))
        while any(stream.offset_next < ends[place] for place, stream in places.items()):
            before = sum(stream.offset_next for stream in places.values())
            streams.read(READ_S)
            if sum(stream.offset_next for stream in places.values()) == before:
                raise TimedOut(
                    f"the order streams could not be read to their ends: no record came for "
                    f"{READ_S:g} s; run it again"
                )


def _positions_at(
    driver: Driver,
    state: ControlState,
    parent: OrderStream | KnownStream,
    child: OrderStream,
    gone: int | None,
) -> Mapping[int, int] | None:
    """Give a parent's positions after the records that its child has relayed.

    The parent's stream has lost its checkpoints from offset `gone` on.

    None if the parent has fewer records, or another one before them than the child has relayed. If
    the parent's records are deleted, the result is the child's own positions: nothing contradicts
    them.
    """
    relayed = child.state.parent_next
    if isinstance(parent, KnownStream):
        if gone is None and relayed in parent.places:
            return _compared(parent.places[relayed], child)
        parent = parent.stream
    if parent.offset_next < relayed:  # the child may have been read later than this
        read_to_end(driver, {stream_partition(parent.plan, parent.collector): parent})
    if parent.offset_next < relayed:
        return None
    below = relayed if gone is None else min(relayed, gone)
    again = state.stream(parent.plan.epoch, parent.collector, below=below)
    try:
        for _ in counted_runs(driver, again, relayed):
            pass
    except Trimmed:  # retention has deleted these records
        return dict(child.state.positions)
    return _compared(place_at(again), child)


def _compared(place: RelayedPlace, child: OrderStream) -> Mapping[int, int] | None:
    if place.checksum not in (0, child.state.parent_last):
        return None
    # While runs are restored, one of the two is ahead, as `collectors/core/relay.py` says.
    if place.restores or place_at(child).restores:
        return dict(child.state.positions)
    return place.positions


def counted_runs(
    driver: Driver, stream: OrderStream, end: int
) -> Iterator[tuple[int, tuple[Run, ...]]]:
    """Read a stream to an offset; give the offset of each accepted record, and what it orders.

    Raises `Trimmed` if retention has deleted records, and `TimedOut` if no record comes.
    """
    if stream.state.frozen:
        return
    for record, judged in stream_records(driver, stream, end):
        if isinstance(judged, tuple):
            yield record.offset, judged
        if stream.state.frozen:
            return


def find_damage(
    driver: Driver, state: ControlState, known: Mapping[str, KnownStream] = _NONE
) -> tuple[Damage, ...]:
    """Find the damage in the newest epoch that has begun.

    Blocks while it reads all streams that are not `known`.
    """
    return damage_of(driver, state, read_streams(driver, state, known))


def damage_of(
    driver: Driver, state: ControlState, streams: Mapping[str, StreamRead]
) -> tuple[Damage, ...]:
    """Judge the streams of the newest epoch that has begun, as they were read, and its logs.

    A loss that the next plan accepts is none: that plan's epoch only has to begin.
    """
    plan = state.plan(state.begun_epoch)
    partitions = {log.name: log_partition(log) for log in plan.logs}
    highs = driver.high_watermarks(list(partitions.values()))
    log_ends = {name: highs[partition] for name, partition in partitions.items()}
    ended = [read.stream for read in streams.values()]
    losses = losses_of(state, plan.epoch, ended)
    for name, first in (*_earlier(state, plan).items(), *_unstated(driver, ended).items()):
        losses[name] = min(first, losses.get(name, first))
    if state.epoch > plan.epoch:
        accepted = cuts_of(plan, state.plan(plan.epoch + 1), losses, ended)
        losses = {name: first for name, first in losses.items() if name not in accepted}
    ordered = ordered_to(ended)
    return (
        *(
            loss(plan, name, first, ordered.get(name, log_ends[name]), log_ends[name])
            for name, first in losses.items()
        ),
        *damage(streams.values(), log_ends, lost=losses),
    )


def _unstated(driver: Driver, streams: Iterable[OrderStream]) -> dict[str, int]:
    """Compare the ends that streams have seen with what leaders have; give what logs have lost."""
    seen: dict[TopicPartition, list[SeenEnd]] = {}
    names: dict[TopicPartition, str] = {}
    for stream in streams:
        for number, ends in stream.state.seen.items():
            partition = log_partition(stream.plan.logs[number])
            names[partition] = stream.plan.logs[number].name
            seen.setdefault(partition, []).extend(ends)
    present = driver.leader_ends(list(seen)) if seen else {}
    return {names[each]: first for each, first in lost_behind(driver, seen, present).items()}


def _earlier(state: ControlState, plan: Plan) -> dict[str, int]:
    """Give what logs have lost in earlier lives, where less was accepted; readers stop there."""
    losses: dict[str, int] = {}
    for name in filter(plan.has_log, state.losses.names()):
        stated = [state.loss_of(epoch, name) for epoch in range(1, plan.epoch)]
        firsts = [first for first in stated if first is not None]
        losses.update({name: min(firsts)} if firsts else {})
    return losses


def refuse_damaged(driver: Driver, state: ControlState) -> None:
    """Raise `Conflict` if something is damaged: an ordinary change cannot repair it."""
    damages = find_damage(driver, state)
    if damages:
        raise Conflict(f"{damages[0].says}; run 'amcast topology recover' first")
