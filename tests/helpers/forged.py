"""Order records that count and are wrong, as a mistaken program might write them."""

from __future__ import annotations

from collectors.reconfiguration.recovery import read_streams
from multicast.control import ControlReader, stream_partition
from multicast.drivers.protocol import Appended
from multicast.order import OrderRecord, ParentNext, RecordKind, Run, digest_of, encode
from tests.helpers.system import PATIENCE_S, until


def streams_of(system):
    """Every stream of the running epoch, read to its end."""
    control = ControlReader(system.driver, system.topic)
    try:
        return read_streams(system.driver, control.refresh())
    finally:
        control.close()


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
        after = streams_of(system)[name].stream
        # Whoever extends it names it; of one that ends the stream that is seen at once.
        return after.state.digest == digest_of(raw) or after.stop == offset

    until(counts, "a record that counts")


def far(log, by):
    """An own run that goes so many offsets beyond what is ordered."""

    def make(stream):
        number = stream.plan.number(log)
        position = stream.state.positions[number]
        run = Run(number, position, position + by)
        return _raw(stream, RecordKind.OWN, stream.state.parent_next, (run,))

    return make


def freeze(stream):
    """A freeze that no plan asks for."""
    return _raw(stream, RecordKind.FREEZE, stream.state.parent_next)


def jump(records, *, kind=RecordKind.PARENT, log=None, by=0):
    """A record that claims to have relayed more of the parent's, perhaps with a run of its own."""

    def make(stream):
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


def _raw(stream, kind, parent_next, runs=()):
    return encode(OrderRecord(kind, stream.state.digest, parent_next, runs, writer=666))
