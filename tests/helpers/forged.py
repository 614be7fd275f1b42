"""Order records that count and are wrong, as a mistaken program might write them.

What makes them takes a stream of either version, read to its end.
"""

from __future__ import annotations

from collectors.reconfiguration.survey import counted_runs, read_streams
from multicast.control import ControlReader, stream_partition
from multicast.drivers.protocol import Appended
from multicast.order import OrderRecord, ParentNext, RecordKind, Run, digest_of, encode
from multicast.tickets.encoding import FreezeRecord, OwnRecord, Position, RelayRecord, Ticket
from multicast.tickets.encoding import encode as encode_ticketed
from multicast.tickets.stream import TicketOrder
from tests.helpers.system import PATIENCE_S, until


def streams_of(system):
    """Every stream of the running epoch, read to its end."""
    control = ControlReader(system.driver, system.topic)
    try:
        return read_streams(system.driver, control.refresh())
    finally:
        control.close()


def is_relayed(streams):
    """Whether each stream has all that its parent's has ordered of its logs.

    A relay of version 2 that is in flight beside a forged one may order what stands behind a gap.
    """
    for read in streams.values():
        own, parent = read.stream, read.stream.plan.collector(read.name).parent
        above = streams[parent].stream.state.positions if parent else own.state.positions
        if any(own.state.positions[log] != above[log] for log in own.inherited):
            return False
    return True


def append(driver, partition, raw):
    outcomes = []
    appender = driver.appender()
    appender.append(partition, raw, done=outcomes.append)
    assert appender.flush(PATIENCE_S)
    appender.close()
    assert isinstance(outcomes[0], Appended)
    return outcomes[0].offset


def forge(system, name, make):
    """Append what `make` says of a collector's stream, until it counts before anybody else's."""

    def counts():
        stream = streams_of(system)[name].stream
        raw = make(stream)
        at = stream_partition(stream.plan, name)
        offset = append(system.driver, at, raw)
        if isinstance(stream, TicketOrder):
            return offset in counted_in(system, name)
        after = streams_of(system)[name].stream
        # Whoever extends it names it; of one that ends the stream that is seen at once.
        return after.state.digest == digest_of(raw) or after.stop == offset

    until(counts, "a record that counts")


def counted_in(system, name):
    """The offsets of the records that count in a collector's stream of the running epoch."""
    control = ControlReader(system.driver, system.topic)
    state = control.refresh()
    control.close()
    stream = state.stream(state.begun_epoch, name, below=0)
    partition = stream_partition(stream.plan, name)
    end = system.driver.last_stable_offsets([partition])[partition]
    return {offset for offset, _ in counted_runs(system.driver, stream, end)}


def far(log, by):
    """An own run that goes so many offsets beyond what is ordered."""

    def make(stream):
        number = stream.plan.number(log)
        position = stream.state.positions[number]
        if isinstance(stream, TicketOrder):
            return _ticketed(stream, OwnRecord((Ticket(number, 0, position + by),)))
        run = Run(number, position, position + by)
        return _raw(stream, RecordKind.OWN, stream.state.parent_next, (run,))

    return make


def freeze(stream):
    """A freeze that no plan asks for."""
    if isinstance(stream, TicketOrder):
        return _ticketed(stream, FreezeRecord(0, ()))
    return _raw(stream, RecordKind.FREEZE, stream.state.parent_next)


def jump(records, *, kind=RecordKind.PARENT, log=None, by=0):
    """A record that claims to have relayed more of the parent's, perhaps with a run of its own.

    In version 2 it is always a relay.
    """

    def make(stream):
        if isinstance(stream, TicketOrder):
            begin, entries = stream.state.parent_next, ()
            if log is not None:
                number = stream.plan.number(log)
                entries = (Position(number, stream.state.positions[number] + by),)
            return _ticketed(stream, RelayRecord(begin, begin + records, entries))
        relayed, offset = stream.state.parent_next
        runs = ()
        if log is not None:
            number = stream.plan.number(log)
            position = stream.state.positions[number]
            runs = (Run(number, position, position + by),)
        return _raw(stream, kind, ParentNext(relayed + records, offset + records), runs)

    return make


def newer(stream):
    """A record of a version to come."""
    raw = bytearray(_raw(stream, RecordKind.FREEZE, stream.state.parent_next))
    raw[2] = 2
    return bytes(raw)


def _ticketed(stream, record):
    return encode_ticketed(stream.shape.tag, record)


def _raw(stream, kind, parent_next, runs=()):
    return encode(OrderRecord(kind, stream.state.digest, parent_next, runs, writer=666))
