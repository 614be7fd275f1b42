"""Reads all streams of an epoch to their ends, and finds what a wrong order record has damaged.

Writes nothing. `collectors/core/mending.py` decides what is damaged; `recovery.py` repairs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager

from collectors.core.epoch_change import freeze_positions
from collectors.core.mending import Damage, StreamRead, damage
from collectors.doctor.streams import open_near_end, stream_records
from collectors.reconfiguration.drain import Streams
from multicast.control import (
    ControlState,
    log_partition,
    stream_partition,
)
from multicast.drivers.protocol import Driver, TopicPartition
from multicast.drivers.reading import READ_S
from multicast.errors import Conflict, TimedOut, Trimmed
from multicast.order.runs import Run
from multicast.order.stream import OrderStream


def read_streams(driver: Driver, state: ControlState) -> dict[str, StreamRead]:
    """Read all streams of the newest epoch that has begun to their ends; give them by collector."""
    plan = state.plan(state.begun_epoch)
    places: dict[TopicPartition, OrderStream] = {}
    for node in plan.collectors:
        began = state.plan(state.first_epoch(plan.epoch, node.name))
        partition = stream_partition(began, node.name)
        places[partition] = open_near_end(driver, state, began, node.name, look_back=0)
    read_to_end(driver, places)
    streams = {stream.collector: stream for stream in places.values()}
    reads = {}
    for name, stream in streams.items():
        parent = plan.collector(name).parent
        last = state.last_epoch(stream.plan.epoch, name)
        marked = None if last is None else state.markers.get(last)
        reads[name] = StreamRead(
            stream,
            parent_positions=None
            if parent is None
            else _positions_at(driver, state, streams[parent], stream),
            marked=None if marked is None else freeze_positions(stream.plan, marked),
        )
    return reads


def read_to_end(driver: Driver, places: Mapping[TopicPartition, OrderStream]) -> None:
    """Read streams to the ends that they have now; raises `TimedOut` if no record comes."""
    with _surveyed(driver, places) as streams:
        ends = driver.last_stable_offsets(list(places))
        while any(stream.offset_next < ends[place] for place, stream in places.items()):
            before = sum(stream.offset_next for stream in places.values())
            streams.read(READ_S)
            if sum(stream.offset_next for stream in places.values()) == before:
                raise TimedOut(
                    f"the order streams could not be read to their ends: no record came for "
                    f"{READ_S:g} s; run it again"
                )


@contextmanager
def _surveyed(driver: Driver, places: Mapping[TopicPartition, OrderStream]) -> Iterator[Streams]:
    with closing(
        driver.reader({place: stream.offset_next for place, stream in places.items()})
    ) as reader:
        yield Streams(reader, places)


def _positions_at(
    driver: Driver, state: ControlState, parent: OrderStream, child: OrderStream
) -> Mapping[int, int] | None:
    """Give a parent's positions after the records that its child has relayed.

    None if the parent has fewer records, or another one before them than the child has relayed. If
    the parent's records are deleted, the result is the child's own positions: nothing contradicts
    them.
    """
    relayed = child.state.parent_next
    if parent.offset_next < relayed:  # the child may have been read later than this
        read_to_end(driver, {stream_partition(parent.plan, parent.collector): parent})
    if parent.offset_next < relayed:
        return None
    again = state.stream(parent.plan.epoch, parent.collector, below=relayed)
    try:
        for _ in counted_runs(driver, again, relayed):
            pass
    except Trimmed:  # retention has deleted these records
        return dict(child.state.positions)
    if again.checksum not in (0, child.state.parent_last):
        return None
    # While runs are restored, one of the two is ahead, as `collectors/core/relay.py` says.
    if any(stream.state.restored < stream.shape.owed for stream in (again, child)):
        return dict(child.state.positions)
    return dict(again.state.positions)


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


def find_damage(driver: Driver, state: ControlState) -> tuple[Damage, ...]:
    """Find the damage in the newest epoch that has begun. Blocks while it reads all streams."""
    return damage_of(driver, state, read_streams(driver, state))


def damage_of(
    driver: Driver, state: ControlState, streams: Mapping[str, StreamRead]
) -> tuple[Damage, ...]:
    """Judge the streams of the newest epoch that has begun, as they were read."""
    plan = state.plan(state.begun_epoch)
    partitions = {log.name: log_partition(log) for log in plan.logs}
    highs = driver.high_watermarks(list(partitions.values()))
    log_ends = {name: highs[partition] for name, partition in partitions.items()}
    return damage(streams.values(), log_ends)


def refuse_damaged(driver: Driver, state: ControlState) -> None:
    """Raise `Conflict` if something is damaged: an ordinary change cannot repair it."""
    damages = find_damage(driver, state)
    if damages:
        raise Conflict(f"{damages[0].says}; run 'amcast topology recover' first")
