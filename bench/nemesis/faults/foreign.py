"""What any client may write into the running system: odd headers, markers, and no statements.

Whatever has the form of a marker is nobody's message, so it is not noted. A header that only looks
like ours makes an ordinary message: it is noted, and everybody who is addressed must deliver it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from bench.nemesis.faults.kinds import kind
from bench.nemesis.faults.plans import Replanning
from bench.nemesis.system import SETS, System
from multicast.control import control_partition, ends_record, log_partition, markers_record
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

_PATIENCE_S = 20.0
_ALONE = "P5"  # consumer C4 reads it alone


class ForeignWriter:
    """A plain producer that writes into the system's topics."""

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
        """Append a record; give its offset."""
        outcomes: list[AppendOutcome] = []
        appender = self._system.driver.appender()
        try:
            appender.append(partition, value, key=key, headers=headers, done=outcomes.append)
            if not appender.flush(_PATIENCE_S) or not outcomes:
                raise TimedOut(f"{partition.topic} did not acknowledge a stranger's record")
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

        return self._system.hand.noted(log.to, send)

    def marker(self, log: Log, epoch: int) -> None:
        """Write what has the form of a marker; nobody delivers it, and nobody may stop at it."""
        self.write(log_partition(log), b"?", headers=[epoch_header(log.name, epoch)])

    def statement(self, key: bytes, value: bytes) -> None:
        """Write to the control topic."""
        self.write(control_partition(self.plan.topic), value, key=key)


@kind("foreign-messages", hold_s=(0.5, 1.0))
def foreign_messages(system: System, pick: random.Random) -> Iterator[str]:
    """Write odd headers, and markers of epochs that nobody planned, into the logs."""
    stranger = ForeignWriter(system)
    log = stranger.plan.log("+".join(pick.choice(SETS)))
    name = log.name.encode()
    for one in (log, stranger.plan.log(_ALONE)):
        for ahead in (1, 2, 1000):
            stranger.marker(one, stranger.plan.epoch + ahead)
    odd: tuple[Headers, ...] = (
        [(EPOCH, name + b"|" + b"9" * 5000)],
        [(EPOCH, None), (SKIP, b"elsewhere")],
        [(TO, name + b"|P9,P1")],
        [("\ufffd", b""), (SKIP, name)],
    )
    written = [stranger.message(log, headers) for headers in odd]
    yield f"log {log.name}, {written[-1]}"


@kind("foreign-statements", hold_s=(0.5, 1.0))
def foreign_statements(system: System, _: random.Random) -> Iterator[str]:
    """Write to the control topic what says nothing sensible: no JSON, no place, no time."""
    stranger = ForeignWriter(system)
    epoch = stranger.plan.epoch
    everywhere = {log.name: 1 << 40 for log in stranger.plan.logs}
    stranger.statement(b"ends/77/x/y", b"[" * 100_000)
    stranger.statement(b"\xff", b"\xff")
    stranger.statement(b"plan/2/x/y", b'{"plan":{"epoch":1e999}}')
    stranger.statement(b"address/K1", b'{"host":"%s","port":99999999999}' % (b"a" * 70))
    stranger.statement(*markers_record(epoch, everywhere, attempt="stranger"))
    stranger.statement(*ends_record(epoch, everywhere, attempt="stranger"))
    yield f"epoch {epoch}"


@kind("foreign-markers-replanned", hold_s=(0.5, 1.0))
def foreign_markers_replanned(system: System, _: random.Random) -> Iterator[str]:
    """Copy the marker of an epoch that is on its way into the log of a lone reader."""
    stranger = ForeignWriter(system)
    log = stranger.plan.log(_ALONE)
    change = Replanning(system)
    operator = change.begin()
    change.reach(operator, "is in the control topic")
    for _twice in range(3):
        stranger.marker(log, change.plan.epoch)
    change.finish(operator)
    stranger.marker(log, change.plan.epoch)
    yield f"epoch {change.plan.epoch}"
