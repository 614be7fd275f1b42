"""What a recovery appends: freezes, and the runs that it restores.

`collectors/core/restored_runs.py` computes the runs. This module reads what that needs of the ended
streams, and appends the runs to the streams of the next epoch, before that epoch begins.

    gap     records of a parent's stream that retention has deleted although a child has not ordered
            what they order: up to the first checkpoint that can still be read

In which order a gap named the messages of several logs is not known any more. Nobody reads messages
that are deleted, too; so a gap matters where messages of two or more of the child's logs are left.

Invariant: when the `ends` of an epoch name a number of restored runs, so many are in the next
stream, and behind them it has all that any stream of its tree had ordered of its logs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice

from collectors.core.restored_runs import EndedStream, restored_records, restored_runs
from collectors.engine.skips import ignore
from collectors.reconfiguration.survey import counted_runs, read_to_end
from multicast.control import ControlState, log_partition, stream_partition
from multicast.drivers.protocol import Appender, Driver
from multicast.errors import Conflict, TimedOut
from multicast.order.records import FreezeRecord, encode
from multicast.order.runs import Run
from multicast.order.stream import OrderStream

_AT_ONCE_MAX = 100  # records of 6 kB at most; a client's buffer holds many times that


def freeze_bytes(stream: OrderStream) -> bytes:
    """Give the record that ends a stream wherever it is: a freeze that names nothing."""
    return encode(stream.shape.tag, FreezeRecord(0, ()))


def runs_to_restore(
    driver: Driver,
    state: ControlState,
    ended: Mapping[str, OrderStream],
    gone: Mapping[str, int],
    *,
    lossy: bool = False,
) -> dict[str, list[Run]]:
    """Give, by collector, the runs with which its stream begins the next epoch.

    `ended` are the frozen streams of whole trees, and `gone` which of their checkpoints are lost.
    Blocks while it reads what children have not relayed. Raises `Conflict` for a gap that matters,
    unless `lossy`, and `Trimmed` if a stream cannot be read at all.
    """
    if not lossy:
        refuse_gaps(driver, state, ended, gone)
    children = _children(ended)
    streams = {}
    for name, stream in ended.items():
        runs: list[Run] = []
        if children[name]:
            again = _open_below(driver, state, stream, children[name], gone.get(name))
            # These stand for what can be read no more.
            runs = [Run(log, 0, upto) for log, upto in sorted(again.state.positions.items())]
            for _, ordered in counted_runs(driver, again, stream.relevant_next):
                runs += ordered
        parent = stream.plan.collector(name).parent
        streams[name] = EndedStream(parent, stream.state.positions, runs)
    return restored_runs(streams)


def refuse_gaps(
    driver: Driver, state: ControlState, streams: Mapping[str, OrderStream], gone: Mapping[str, int]
) -> None:
    """Raise `Conflict` for a gap that matters between streams of whole trees, as read so far."""
    for name, children in _children(streams).items():
        if children:
            above = _open_below(driver, state, streams[name], children, gone.get(name))
            for child in children:
                _refuse_gap(driver, child, above)


def _children(streams: Mapping[str, OrderStream]) -> dict[str, list[OrderStream]]:
    children: dict[str, list[OrderStream]] = {name: [] for name in streams}
    for name, stream in streams.items():
        parent = stream.plan.collector(name).parent
        if parent is not None:
            children[parent].append(stream)
    return children


def _open_below(
    driver: Driver,
    state: ControlState,
    stream: OrderStream,
    children: Sequence[OrderStream],
    gone: int | None,
) -> OrderStream:
    """Open a stream where no position is above that of a child, or where it can be read at all."""
    epoch, name = stream.plan.epoch, stream.collector
    partition = stream_partition(stream.plan, name)
    begin = driver.log_start_offsets([partition])[partition]
    least = dict(stream.state.positions)
    for child in children:
        for log in child.inherited:
            least[log] = min(least[log], child.state.positions[log])
    points = [
        point
        for point in state.checkpoints(epoch, name)
        if point.read_from >= begin and (gone is None or point.offset < gone)
    ]
    for point in reversed(points):
        if all(point.positions[log] <= position for log, position in least.items()):
            return state.opened(epoch, name, point)
    is_whole = stream.offset_first >= begin or not points
    return state.opened(epoch, name, None if is_whole else points[0])


def _refuse_gap(driver: Driver, child: OrderStream, parent: OrderStream) -> None:
    """Raise `Conflict` if messages of several logs have lost their order in a gap.

    `parent` is the parent's stream, opened behind the gap if there is one.
    """
    plan, own, above = child.plan, child.state.positions, parent.state.positions
    behind = [log for log in sorted(child.inherited) if own[log] < above[log]]
    partitions = {log: log_partition(plan.logs[log]) for log in behind}
    begins = driver.log_start_offsets(list(partitions.values())) if behind else {}
    left = [log for log in behind if begins[partitions[log]] < above[log]]
    if len(left) > 1:
        names = ", ".join(plan.logs[log].name for log in left)
        raise Conflict(
            f"retention has deleted order records that collector {child.collector} had not relayed,"
            f" and left messages of logs {names}, whose order is lost: wait until retention has "
            f"deleted these, too, or give --accept-loss to restore them log by log"
        )


def restore(
    driver: Driver, appender: Appender, stream: OrderStream, runs: Sequence[Run], *, deadline: float
) -> None:
    """Append to a stream, open at its start, what it lacks of the runs that it is owed.

    A recovery that was interrupted may have restored some: they count if it would have written the
    same `ends`. `deadline` is of `time.monotonic`; raises `TimedOut`.
    """
    partition, state = stream_partition(stream.plan, stream.collector), stream.state
    while True:
        read_to_end(driver, {partition: stream})
        if state.restored >= len(runs):
            return
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimedOut(
                f"the stream of collector {stream.collector} was not repaired in time; run it again"
            )
        for record in islice(restored_records(runs, state.restored), _AT_ONCE_MAX):
            appender.append(partition, encode(stream.shape.tag, record), done=ignore)
        appender.flush(left_s)
