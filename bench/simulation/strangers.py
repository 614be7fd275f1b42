"""Writes order records that count, or nearly do, as a wrong or a mad program might write them.

Tickets of messages that never come cost time only, and false checkpoints nothing. The other wrong
records need a recovery; every guarantee must hold once an operator has recovered. A relay is forged
only if a collector shares exactly one log with its parent: with more, the wrong order itself would
count. Retention may also overtake a collector that is away.
"""

from __future__ import annotations

from dataclasses import replace

from bench.simulation.collectors import SimulatedCollectors
from bench.simulation.world import World
from multicast.control import ControlState, log_partition, stream_partition
from multicast.errors import AmcastError
from multicast.order.records import FreezeRecord, OwnRecord, Position, RelayRecord, Ticket, encode
from multicast.order.stream import OrderStream

_MESSAGES = (0, 1, 1, 2, 3, 200)  # that a surplus ticket counts
_AWAY_MS = 60_000  # longer than a schedule


class Strangers:
    """The writers of these records."""

    def __init__(self, world: World, collectors: SimulatedCollectors) -> None:
        self._world = world
        self._collectors = collectors
        self._away = ""  # a collector that is away

    def turn(self, bits: int) -> None:
        """Write a surplus ticket, or a false checkpoint, to a stream of an epoch that has begun."""
        state = self._world.view().state
        epoch = state.begun_epoch if bits & 3 else 1 + (bits >> 2) % state.begun_epoch
        stream = self._stream(state, epoch, bits >> 8)
        if stream is None:
            return
        if bits >> 16 & 3 == 0:
            self._false_checkpoint(stream)
        elif stream.own:
            self._surplus(stream, bits >> 18)

    def forge(self, bits: int) -> None:
        """Write a wrong record, if the last epoch has begun and has collectors."""
        state = self._world.view().state
        epoch = state.epoch
        if epoch < len(self._world.schedule.plans) or state.begun_epoch < epoch:
            return
        stream = self._stream(state, epoch, bits)
        if stream is not None and not stream.state.frozen:
            makers = (self._far, self._freeze, self._relay, self._relay)
            makers[bits >> 8 & 3](stream, bits >> 12)

    def send_away(self, bits: int) -> None:
        """Send a collector away; the next time, let retention overtake it, and let it come back."""
        world = self._world
        state = world.view().state
        epoch = state.epoch
        if epoch < len(world.schedule.plans) or state.begun_epoch < epoch:
            return
        if not self._away:
            names = [node.name for node in state.plan().collectors if node.parent is not None]
            if names:
                self._away = names[bits % len(names)]
                self._collectors.send_away(self._away, ms=_AWAY_MS)
                world.fault("collector away")
            return
        if state.plan().has_collector(self._away):
            self._overtake(state, self._away)
        self._collectors.send_away(self._away, ms=0)
        self._away = ""

    def read(self, state: ControlState, epoch: int, name: str) -> OrderStream:
        """Read a stream to its end."""
        end = self._world.end(stream_partition(state.plan(epoch), name))
        return self._world.read_on(state.stream(epoch, name, below=end))

    # -- inside -----------------------------------------------------------------------------

    def _stream(self, state: ControlState, epoch: int, bits: int) -> OrderStream | None:
        """Read a stream to its end; None without one, or if it cannot be read."""
        nodes = state.plan(epoch).collectors
        if not nodes:
            return None
        try:
            return self.read(state, epoch, nodes[bits % len(nodes)].name)
        except AmcastError:
            return None

    def _put(self, stream: OrderStream, what: str, raw: bytes) -> None:
        self._world.put(stream_partition(stream.plan, stream.collector), raw)
        self._world.fault(what)
        self._world.note("forged", what, stream.plan.epoch, stream.collector)

    def _surplus(self, stream: OrderStream, bits: int) -> None:
        log = sorted(stream.own)[bits % len(stream.own)]
        end = self._world.next_offset(log_partition(stream.plan.logs[log]))
        ticket = Ticket(
            log, _MESSAGES[(bits >> 4) % len(_MESSAGES)], (0, 0, end + 1, end + 2)[bits >> 8 & 3]
        )
        self._put(stream, "surplus ticket", encode(stream.shape.tag, OwnRecord((ticket,))))

    def _false_checkpoint(self, stream: OrderStream) -> None:
        lie = replace(stream.marked, parent_next=stream.marked.parent_next + 1)
        raw = encode(stream.shape.tag, lie)
        self._world.false.add(raw)
        self._put(stream, "false checkpoint", raw)

    def _far(self, stream: OrderStream, bits: int) -> None:
        """Order further beyond a log's end than collectors fill."""
        if not stream.own:
            return
        log = sorted(stream.own)[bits % len(stream.own)]
        end = self._world.next_offset(log_partition(stream.plan.logs[log]))
        upto = end + self._world.schedule.limits.fill_max + 1 + (bits >> 9 & 63)
        raw = encode(stream.shape.tag, OwnRecord((Ticket(log, 0, upto),)))
        self._put(stream, "wrong record: far", raw)

    def _freeze(self, stream: OrderStream, _: int) -> None:
        """Freeze a stream before its time."""
        self._put(stream, "wrong record: freeze", encode(stream.shape.tag, FreezeRecord(0, ())))

    def _relay(self, stream: OrderStream, bits: int) -> None:
        """Relay too little or too much, perhaps of records that do not exist yet."""
        if len(stream.inherited) != 1:
            return
        (log,) = stream.inherited
        state = stream.state
        upto = state.positions[log] + (bits >> 2 & 3)
        entries = (Position(log, upto),) if bits & 3 else ()
        upto = state.parent_next + 1 + (bits >> 4 & 7)
        relay = RelayRecord(state.parent_next, upto, entries, state.parent_last, bits % 2**32)
        self._put(stream, "wrong record: relay", encode(stream.shape.tag, relay))

    def _overtake(self, state: ControlState, name: str) -> None:
        """Remove what a collector has not relayed, with the messages that it orders."""
        world = self._world
        try:
            child = self.read(state, state.epoch, name)
            above = self.read(state, state.epoch, child.plan.collector(name).parent or "")
        except AmcastError:
            return
        partition = stream_partition(above.plan, above.collector)
        # From which readers can still begin.
        points = state.checkpoints(above.plan.epoch, above.collector)
        if not points or points[-1].read_from <= child.state.parent_next:
            return
        below = points[-1].read_from
        for log, position in points[-1].positions.items():
            messages = log_partition(above.plan.logs[log])
            world.trim(messages, min(position, world.end(messages)))
        world.trim(partition, below)
        world.fault("collector overtaken by retention")
        world.overtaken.append(name)
