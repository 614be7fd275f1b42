"""Forges wrong order records that are accepted, as a faulty program might write them.

Each turn writes one record with the right digest to a stream of the last epoch. Every guarantee
must hold once an operator has recovered. One kind continues no log, and must not be accepted. A
parent's runs are forged only if a collector shares exactly one log with its parent: with more, the
wrong order itself would be accepted.
"""

from __future__ import annotations

from bench.simulation.world import READ_ALL, World
from multicast.control import ControlState, of_version_1, stream_partition
from multicast.errors import UnknownVersion
from multicast.order import (
    ORDERED_MAX,
    OrderRecord,
    OrderStream,
    ParentNext,
    RecordKind,
    Run,
    Void,
    encode,
)


class Forger:
    """The writer of the forged records."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._makers = (
            self._far,
            self._far,
            self._ended,
            self._jump,
            self._jump,
            self._jump,
            self._shared,
            self._newer,
            _more,
            _elsewhere,
        )

    def turn(self, bits: int) -> None:
        """Forge one record, if the last epoch has begun and has collectors."""
        state = self._world.view().state
        epoch = state.epoch
        if epoch < len(self._world.schedule.plans) or state.begun_epoch < epoch:
            return
        nodes = state.plan().collectors
        if not nodes:
            return
        name = nodes[bits % len(nodes)].name
        stream = read(self._world, state, epoch, name)
        if not stream.state.frozen:
            self._forge(stream, bits >> 8)

    def _forge(self, stream: OrderStream, bits: int) -> None:
        made = self._makers[(bits & 0xFF) % len(self._makers)](stream, bits >> 8)
        if made is None:
            return
        what, raw = made
        self._world.put(stream_partition(stream.plan, stream.collector), raw)
        self._world.fault(f"forged order record: {what}")
        self._world.note("forged", what, stream.plan.epoch, stream.collector)

    def _far(self, stream: OrderStream, bits: int) -> tuple[str, bytes] | None:
        """Order beyond a log's end, further than collectors fill, or just as far."""
        if not stream.own:
            return None
        log = sorted(stream.own)[bits % len(stream.own)]
        run = Run(log, stream.state.positions[log], stream.state.positions[log] + self._by(bits))
        return "far", _raw(stream, RecordKind.OWN, stream.state.parent_next, run)

    def _by(self, bits: int) -> int:
        """Choose how far to order: within what collectors fill, or beyond."""
        fill_max = self._world.schedule.limits.fill_max
        return fill_max + 1 + (bits >> 9 & 63) if bits >> 8 & 1 else 1 + (bits >> 9) % fill_max

    def _ended(self, stream: OrderStream, bits: int) -> tuple[str, bytes]:
        """Freeze, perhaps as if more of the parent's records were relayed."""
        return "freeze", _raw(
            stream, RecordKind.FREEZE, _jumped(stream, bits & 1 and bits >> 1 & 3)
        )

    def _jump(self, stream: OrderStream, bits: int) -> tuple[str, bytes] | None:
        """Skip some of the parent's records, which may exist already or not."""
        if stream.plan.collector(stream.collector).parent is None:
            return None
        return "jump", _raw(stream, RecordKind.PARENT, _jumped(stream, 1 + (bits & 7)))

    def _shared(self, stream: OrderStream, bits: int) -> tuple[str, bytes] | None:
        """Order a run of the log that only the parent may order."""
        if len(stream.inherited) != 1:
            return None
        (log,) = stream.inherited
        run = Run(log, stream.state.positions[log], stream.state.positions[log] + self._by(bits))
        return "parent's run", _raw(stream, RecordKind.PARENT, _jumped(stream, 1 + (bits & 1)), run)

    def _newer(self, stream: OrderStream, _: int) -> tuple[str, bytes]:
        """Write a record of an unknown version."""
        raw = bytearray(_raw(stream, RecordKind.FREEZE, stream.state.parent_next))
        raw[2] = 9
        return "newer version", bytes(raw)


def _more(stream: OrderStream, bits: int) -> tuple[str, bytes] | None:
    """Order more messages than one record may."""
    if not stream.own:
        return None
    log = sorted(stream.own)[bits % len(stream.own)]
    first = stream.state.positions[log]
    run = Run(log, first, first + ORDERED_MAX + 1)
    return "beyond the bound", _raw(stream, RecordKind.OWN, stream.state.parent_next, run)


def _elsewhere(stream: OrderStream, bits: int) -> tuple[str, bytes] | None:
    """Order a run that does not continue a log: with a gap, or a repetition."""
    if not stream.own:
        return None
    log = sorted(stream.own)[bits % len(stream.own)]
    position = stream.state.positions[log]
    first = position + 1 + (bits >> 5 & 7) if bits >> 4 & 1 or not position else position - 1
    run = Run(log, first, first + 1 + (bits >> 8 & 7))
    return "elsewhere", _raw(stream, RecordKind.OWN, stream.state.parent_next, run)


def _jumped(stream: OrderStream, records: int) -> ParentNext:
    if stream.plan.collector(stream.collector).parent is None:
        return stream.state.parent_next
    relayed, offset = stream.state.parent_next
    return ParentNext(relayed + records, offset + records)


def _raw(stream: OrderStream, kind: RecordKind, parent_next: ParentNext, *runs: Run) -> bytes:
    return encode(OrderRecord(kind, stream.state.digest, parent_next, runs, writer=666))


def read(world: World, state: ControlState, epoch: int, name: str) -> OrderStream:
    """Read a stream from its start, up to a record of an unknown version."""
    stream = of_version_1(state.opened(state.first_epoch(epoch, name), name))
    partition = stream_partition(stream.plan, name)
    fetched = world.log.read(partition, stream.offset_next, READ_ALL)
    if fetched is not None:
        for record in fetched.records:
            take(stream, record.offset, record.value)
        stream.passed(fetched.position)
    return stream


def take(stream: OrderStream, offset: int, raw: bytes | None) -> OrderRecord | Void | None:
    """Read a record; an unknown version stops the stream."""
    try:
        return stream.read(offset, raw)
    except UnknownVersion:
        stream.stop = offset
        stream.passed(offset)
        return None
