"""What is stated of the ends of a delivery's logs: on the control topic, and in a stream.

At a log's first record of a leader that no statement knows, a reader reads what is stated up to
then (docs/protocol.md, "Lost tails"). Nothing is read in ordinary times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain

from multicast.consuming.delivery import Delivery
from multicast.control import SINGLE_LOG, ControlReader, ControlState, stream_partition
from multicast.drivers.clock import clock_of
from multicast.drivers.protocol import Driver, LeaderEnd, TopicPartition
from multicast.drivers.reading import end_from, read_upto
from multicast.errors import Truncated
from multicast.order.records import Loss, SeenEnd, SightRecord
from multicast.order.stream import OrderStream


def read_stated(
    driver: Driver, control: ControlReader, delivery: Delivery, lock: AbstractContextManager[object]
) -> None:
    """Tell a delivery that has stopped all that is stated of its logs' ends by now; blocks.

    Raises `Truncated` if what comes next is lost, and nobody has accepted that. `lock` is held
    while what was delivered changes.
    """
    state = control.refresh()
    tell(state, delivery)
    for collector in _collectors(delivery):
        refuse_lost_stream(driver, state, delivery.plan.epoch, collector)
        for sight in _sights(driver, state, collector, delivery):
            delivery.saw(sight)
    if delivery.order is None:
        with lock:
            tell_log_end(state, delivery)
    delivery.all_told()


def tell(control: ControlState, delivery: Delivery) -> None:
    """Tell a delivery what the control topic states of its logs' ends.

    Raises `Truncated` if its stream is stated to have lost its end.
    """
    epoch = delivery.plan.epoch
    if delivery.order is not None and control.stream_is_lost(epoch, delivery.order.collector):
        raise lost_stream(control, epoch, delivery.order.collector)
    named = [(number, log.name) for number, log in delivery.logs.items()]
    cuts = {number: control.cut_of(epoch, name) for number, name in named}
    firsts = {number: control.loss_of(epoch, name) for number, name in named}
    lost = [Loss(number, first) for number, first in firsts.items() if first is not None]
    delivery.saw(
        SightRecord(lost=tuple(lost)),
        {number: cut for number, cut in cuts.items() if cut is not None},
    )
    for collector in _collectors(delivery):
        for point in control.checkpoints(epoch, collector)[-1:]:
            delivery.saw(SightRecord(point.record.seen, point.record.lost))
    if delivery.order is not None:
        delivery.saw(_sight_of(delivery.order))


def _sight_of(order: OrderStream) -> SightRecord:
    """Give what a stream says where it is opened: a checkpoint, or `ends` of the epoch before."""
    seen, lost = order.state.seen.values(), order.state.lost.items()
    return SightRecord(tuple(chain.from_iterable(seen)), tuple(Loss(*each) for each in lost))


def lost_stream(control: ControlState, epoch: int, collector: str) -> Truncated:
    """Make the error of a stream that has lost its end."""
    partition = stream_partition(control.plan(epoch), collector)
    return Truncated(
        f"the order stream of collector {collector}, {partition.topic}/{partition.partition}, has "
        f"lost its end, as a collector has stated: what was delivered by what is gone stands in "
        f"another order now; run 'amcast topology recover'"
    ).about(partition)


def refuse_lost_stream(driver: Driver, control: ControlState, epoch: int, collector: str) -> None:
    """Raise `Truncated` if a stream is stated to be lost, or ends below a checkpoint of its.

    Not where the stream's epoch has ended: then an operator has accepted that. `control` was read
    before. Blocks for a request, if a checkpoint is named.
    """
    last, epoch = control.last_epoch(epoch, collector), control.first_epoch(epoch, collector)
    if last in control.ends:
        return
    if control.stream_is_lost(epoch, collector):
        raise lost_stream(control, epoch, collector)
    for point in control.checkpoints(epoch, collector)[-1:]:
        partition = stream_partition(control.plan(epoch), collector)
        end = end_from(driver, clock_of(driver), partition, point.offset + 1)
        if end <= point.offset:
            raise Truncated(
                f"the order stream of collector {collector}, {partition.topic}/"
                f"{partition.partition}, has lost its end: a checkpoint was at offset "
                f"{point.offset}, and it ends at {end}. What was delivered by what is gone may "
                f"stand in another order: run 'amcast topology recover'"
            ).about(partition)


def refuse_other_end(control: ControlState, order: OrderStream | None) -> None:
    """Raise `Truncated` if a frozen stream ends its logs elsewhere than their `ends` say.

    It has lost its end since, and other records are there: who reads it would deliver messages
    twice, or not at all. Not after a recovery, which may end a log where no stream does.
    """
    epoch = control.last_epoch(order.plan.epoch, order.collector) if order is not None else None
    if order is None or epoch is None or epoch not in control.ends:
        return
    ends, ended = control.ends[epoch], control.ended[epoch]
    for number in sorted(order.own) if not (ended.resumed or ended.restored) else ():
        log, position = order.plan.logs[number].name, order.state.positions[number]
        if position != ends.get(log, position) and control.cut_of(epoch, log) is None:
            partition = stream_partition(order.plan, order.collector)
            raise Truncated(
                f"epoch {epoch} has ended log {log} at offset {ends[log]}, and the order stream of "
                f"collector {order.collector}, {partition.topic}/{partition.partition}, ends it at "
                f"{position} now: it has lost its end, and orders other messages than others have "
                f"delivered in this epoch; seek behind it"
            ).about(partition)


def lost_behind(
    driver: Driver,
    seen: Mapping[TopicPartition, Iterable[SeenEnd]],
    present: Mapping[TopicPartition, LeaderEnd],
) -> dict[TopicPartition, int]:
    """Compare ends that were seen with what leaders have; give the first offsets that are lost.

    `present` was asked for after the ends were read. Blocks for a request for each earlier epoch.
    """
    lost: dict[TopicPartition, int] = {}
    highest: dict[int, dict[TopicPartition, int]] = {}  # by leader epoch
    for partition, each in seen.items():
        for _, end, epoch, _ in each if partition in present else ():
            ends = highest.setdefault(epoch, {})
            ends[partition] = max(end, ends.get(partition, 0))
    for epoch, ends in sorted(highest.items()):
        has = {each: present[each].end for each in ends if present[each].leader_epoch == epoch}
        earlier = [each for each in ends if present[each].leader_epoch > epoch]
        has |= driver.epoch_ends(dict.fromkeys(earlier, epoch)) if earlier else {}
        for partition, end in ends.items():
            if 0 <= has.get(partition, -1) < end:
                lost[partition] = min(has[partition], lost.get(partition, end))
    return lost


def tell_log_end(control: ControlState, delivery: Delivery) -> None:
    """Tell a delivery of a single log where its epoch ends, or to wait for that if a plan ends it.

    For one that may be behind the epoch's marker, or whose log may have lost it.
    """
    if control.last_epoch(delivery.plan.epoch, delivery.position.source) is None:
        return
    end = single_log_end(control, delivery)
    if end is not None:
        delivery.end_log_at(end)
    elif delivery.marker is None:
        delivery.await_log_end()


def single_log_end(control: ControlState, delivery: Delivery) -> int | None:
    """Give the offset at which a single log's epoch ends; None while that is unknown."""
    source = delivery.position.source
    last = control.last_epoch(delivery.plan.epoch, source)
    if last is None:
        return None
    return control.single_log_end(last, source.removeprefix(SINGLE_LOG))


def _collectors(delivery: Delivery) -> list[str]:
    """Name the collector in whose stream the logs' ends are stated; a single log may have none.

    It and the source of the delivery began in the same epoch: they are of one part of the plan.
    """
    if delivery.order is not None:
        return [delivery.order.collector]
    tops = [delivery.plan.top(log.name) for log in delivery.logs.values()]
    return [top.name for top in tops if top is not None]


def _sights(
    driver: Driver, control: ControlState, collector: str, delivery: Delivery
) -> Iterator[SightRecord]:
    """Read what a stream says of ends from its newest checkpoint to its present end."""
    partition = stream_partition(delivery.plan, collector)
    end = driver.last_stable_offsets([partition])[partition]
    if delivery.order is not None and delivery.order.offset_next >= end:
        return
    order = control.stream(delivery.plan.epoch, collector, below=end)
    yield _sight_of(order)
    for fetched in read_upto(driver, partition, order.offset_next, end):
        for record in fetched.records:
            counts = order.read(record.offset, record.value)
            if counts == () and isinstance(order.last, SightRecord):
                yield order.last
