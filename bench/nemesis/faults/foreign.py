"""Foreign writers: odd headers and markers in logs, nonsense in control topics and streams.

A record with the form of a marker is no message, so it is not in the history. A record whose header
only resembles ours is an ordinary message: it is in the history, and must be delivered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.harness.rig import store
from bench.nemesis.faults.kinds import kind
from bench.nemesis.faults.plans import Replanning
from bench.nemesis.system import SETS, System
from multicast.control import (
    collectors_partition,
    control_partition,
    ends_record,
    log_partition,
    markers_record,
    stream_partition,
)
from multicast.drivers.protocol import (
    Appended,
    AppendFailed,
    AppendOutcome,
    Headers,
    TopicPartition,
)
from multicast.errors import TimedOut
from multicast.messages import EPOCH, SKIP, TO, epoch_header
from topology.tree import Log

_PATIENCE_S = 20.0  # for an acknowledgement: longer than the election of a new leader
_ALONE = "P5"  # the log of the lone reader C4


class ForeignWriter:
    """A plain Kafka producer that writes to the system's topics."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.plan = system.plans()[-1]

    def write(
        self,
        partition: TopicPartition,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
    ) -> int:
        """Append a record; return its offset."""
        outcomes: list[AppendOutcome] = []
        appender = self._system.driver.appender()
        try:
            appender.append(partition, value, key=key, headers=headers, done=outcomes.append)
            if not appender.flush(_PATIENCE_S) or not outcomes:
                raise TimedOut(f"{partition.topic} did not acknowledge a foreign record")
        finally:
            appender.close()
        (outcome,) = outcomes
        if isinstance(outcome, AppendFailed):
            raise outcome.error
        assert isinstance(outcome, Appended)
        return outcome.offset

    def message(self, log: Log, headers: Headers) -> str:
        """Write an ordinary message with these headers, and note it."""

        def send(value: bytes) -> str:
            return f"{log.name}:{self.write(log_partition(log), value, headers=headers)}"

        return self._system.manual_producer.noted(log.to, send)

    def marker(self, log: Log, epoch: int) -> None:
        """Write a record with the form of a marker: no consumer may deliver it or stop at it."""
        self.write(log_partition(log), b"?", headers=[epoch_header(log.name, epoch)])

    def statement(self, key: bytes, value: bytes) -> None:
        """Write to both control topics."""
        self.write(control_partition(self.plan.topic), value, key=key)
        self.write(collectors_partition(self.plan.topic), value, key=key)


@kind("foreign-messages", hold_s=(0.5, 1.0))
def foreign_messages(system: System, pick: random.Random) -> Iterator[str]:
    """Write messages with odd headers, and markers of epochs without a plan, to the logs."""
    writer = ForeignWriter(system)
    log = writer.plan.log("+".join(pick.choice(SETS)))
    name = log.name.encode()
    for target in (log, writer.plan.log(_ALONE)):
        for ahead in (1, 2, 1000):
            writer.marker(target, writer.plan.epoch + ahead)
    odd: tuple[Headers, ...] = (
        [(EPOCH, name + b"|" + b"9" * 5000)],
        [(EPOCH, None), (SKIP, b"elsewhere")],
        [(TO, name + b"|P9,P1")],
        [("\ufffd", b""), (SKIP, name)],
    )
    written = [writer.message(log, headers) for headers in odd]
    yield f"log {log.name}, {written[-1]}"


@kind("foreign-statements", hold_s=(0.5, 1.0))
def foreign_statements(system: System, _: random.Random) -> Iterator[str]:
    """Write records without a possible meaning to the control topics and the order streams."""
    writer = ForeignWriter(system)
    epoch = writer.plan.epoch
    everywhere = {log.name: 1 << 40 for log in writer.plan.logs}
    writer.statement(b"ends/77/x/y", b"[" * 100_000)
    writer.statement(b"\xff", b"\xff")
    writer.statement(b"plan/2/x/y", b'{"plan":{"epoch":1e999}}')
    writer.statement(b"stranger/K1", b'{"host":"%s","port":99999999999}' % (b"a" * 70))
    writer.statement(*markers_record(bytes(16), epoch, everywhere, attempt="stranger"))
    writer.statement(*ends_record(bytes(16), epoch, everywhere, attempt="stranger"))
    noise = [b"", b"TO", bytes(80), b"TO\x01" + b"\xff" * 90]
    streams = [stream_partition(writer.plan, node.name) for node in writer.plan.collectors]
    store(system.driver, ((stream, noise) for stream in streams), timeout_s=_PATIENCE_S)
    yield f"epoch {epoch}"


@kind("foreign-markers-replanned", hold_s=(0.5, 1.0))
def foreign_markers_replanned(system: System, _: random.Random) -> Iterator[str]:
    """Write the marker of an epoch that is being applied to the log of a lone reader."""
    writer = ForeignWriter(system)
    log = writer.plan.log(_ALONE)
    change = Replanning(system)
    operator = change.begin()
    change.reach(operator, "is in the control topic")
    for _twice in range(3):
        writer.marker(log, change.plan.epoch)
    change.finish(operator)
    writer.marker(log, change.plan.epoch)
    yield f"epoch {change.plan.epoch}"
