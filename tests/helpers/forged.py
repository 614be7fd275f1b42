"""Order records that count and are wrong, as a mistaken program might write them.

What makes them takes a stream, read to its end.
"""

from __future__ import annotations

from collectors.reconfiguration.appends import append_one
from collectors.reconfiguration.survey import counted_runs, read_streams
from multicast.control import stream_partition
from multicast.order.records import FreezeRecord, OwnRecord, Position, RelayRecord, Ticket, encode
from tests.helpers.small import state_of
from tests.helpers.system import PATIENCE_S, until


def streams_of(system):
    """Every stream of the running epoch, read to its end."""
    return read_streams(system.driver, state_of(system))


def is_relayed(streams):
    """Whether each stream has all that its parent's has ordered of its logs.

    A relay that is in flight beside a forged one may order what stands behind a gap.
    """
    for read in streams.values():
        own, parent = read.stream, read.stream.plan.collector(read.name).parent
        above = streams[parent].stream.state.positions if parent else own.state.positions
        if any(own.state.positions[log] != above[log] for log in own.inherited):
            return False
    return True


def forge(system, name, make):
    """Append what `make` says of a collector's stream, until it counts before anybody else's."""

    def counts():
        stream = streams_of(system)[name].stream
        raw = make(stream)
        at = stream_partition(stream.plan, name)
        offset = append_one(system.driver, at, None, raw, PATIENCE_S)
        return offset in counted_in(system, name)

    until(counts, "a record that counts")


def counted_in(system, name):
    """The offsets of the records that count in a collector's stream of the running epoch."""
    state = state_of(system)
    stream = state.stream(state.begun_epoch, name, below=0)
    partition = stream_partition(stream.plan, name)
    end = system.driver.last_stable_offsets([partition])[partition]
    return {offset for offset, _ in counted_runs(system.driver, stream, end)}


def far(log, by):
    """A ticket that goes so many offsets beyond what is ordered."""

    def make(stream):
        number = stream.plan.number(log)
        upto = stream.state.positions[number] + by
        return encode(stream.shape.tag, OwnRecord((Ticket(number, 0, upto),)))

    return make


def freeze(stream):
    """A freeze that no plan asks for."""
    return encode(stream.shape.tag, FreezeRecord(0, ()))


def jump(records, *, log=None, by=0):
    """A relay that claims to have relayed more of the parent's, perhaps with its own entry."""

    def make(stream):
        begin, entries = stream.state.parent_next, ()
        if log is not None:
            number = stream.plan.number(log)
            entries = (Position(number, stream.state.positions[number] + by),)
        relay = RelayRecord(begin, begin + records, entries, stream.state.parent_last, 1)
        return encode(stream.shape.tag, relay)

    return make
