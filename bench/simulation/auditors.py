"""Simulated auditors: during a run they fix an end, read every consumer's messages up to it, judge.

Like `amcast verify`, an auditor reads for every consumer from its earliest position, while
messages, epochs and faults go on. `subscription.missing` says when it has reached the
end. The audits are judged when the run is at rest.

    audit     an end, and a reader for each consumer. A crashed reader restarts from the beginning
    given up  of an audit: retention deleted records that it needs, or a topic was recreated.
              Forged order records may break agreement, so schedules that forge have no audits

No audit may find a violation, and every reader must reach the end: a healthy system passes an audit
at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bench.simulation.consumers import Seat, SimulatedConsumer, requests_of
from bench.simulation.judge import Judge, Violation, judge
from bench.simulation.schedule import ConsumerSeat
from bench.simulation.world import READ_ALL, World
from multicast.consuming.batches import Batch
from multicast.consuming.subscription import Bounds, End, logs_wanted, missing
from multicast.control import ControlState, log_partition
from multicast.errors import (
    ClusterUnreachable,
    ProtocolViolation,
    TopicChanged,
    Trimmed,
    UnknownVersion,
)
from multicast.history import History
from multicast.verification.audit import AuditCollector
from topology.tree import Log

AUDITS_MAX = 2  # of one run: each reads everything once more


class _Reader(SimulatedConsumer):
    """Reads for one consumer, and delivers to the audit."""

    def __init__(self, world: World, seat: Seat, audit: AuditCollector) -> None:
        self.audit = audit
        super().__init__(world, seat, Judge(world.schedule.scene), where="earliest")
        audit.begins(seat.label[0], seat.request, self.delivery.position.epoch)

    def _hand_over(self, batch: Batch, index: int) -> None:
        single = replace(batch, records=batch.records[index : index + 1])
        self.audit.delivered(*self.seat.label, single)
        self.last = batch.cursor(index)

    def at_end(self) -> bool:
        """Whether everything up to the audit's end is delivered."""
        return missing(self.view.state, self.request, self.delivery, self.audit.end) is None


@dataclass(slots=True)
class _Running:
    audit: AuditCollector
    seats: list[Seat]  # of the readers that have not reached the end
    readers: dict[str, _Reader] = field(default_factory=dict)
    given_up: bool = False


class Auditors:
    """All audits of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._audits: list[_Running] = []
        self._requests = requests_of(world)

    def turn(self, bits: int) -> None:
        """Begin an audit, or give a reader a turn."""
        schedule = self._world.schedule
        if schedule.harsh or schedule.forges:
            return
        if len(self._audits) < AUDITS_MAX and (not self._audits or bits & 7 == 0):
            self._begin()
        running = self._audits[bits >> 3 & 1 if len(self._audits) > 1 else 0]
        if running.seats:
            self._read(running, running.seats[(bits >> 4) % len(running.seats)], bits >> 10)

    def calm_turns(self) -> None:
        """Give every reader a turn."""
        for running in self._audits:
            for seat in list(running.seats):
                if not running.given_up:
                    self._read(running, seat, 0)

    def verdict(self, control: ControlState) -> Violation | None:
        """Judge every audit; None if none finds a violation."""
        for running in self._audits:
            if running.given_up:
                continue
            for seat in running.seats:
                return Violation("liveness", f"{'/'.join(seat.label)} never reached its end.")
            violation = judge(self._history(running.audit, control))
            if violation is not None:
                return Violation(violation.guarantee, f"In an audit: {violation.witness}")
        return None

    def _begin(self) -> None:
        world = self._world
        world.fault("audit")
        state = world.view().state
        logs = logs_wanted(state, None)
        positions = {log.name: world.end(log_partition(log)) for log in logs}
        audit = AuditCollector(End(state.epoch, state.begun_epoch, positions))
        number = len(self._audits) + 1
        seats = [
            Seat(ConsumerSeat(name, f"audit{number}", late=False, bounds=Bounds()), request)
            for name, request in self._requests.items()
        ]
        self._audits.append(_Running(audit, seats))

    def _read(self, running: _Running, seat: Seat, bits: int) -> None:
        name, instance = seat.label
        try:
            reader = running.readers.get(name)
            if reader is None:
                reader = running.readers[name] = _Reader(self._world, seat, running.audit)
            if not reader.turn(bits):
                self._again(running, seat)
            elif reader.at_end():
                running.audit.ended(name, instance)
                running.seats.remove(seat)
        except ProtocolViolation:  # the log contradicts a checkpoint: the next reader uses none
            self._again(running, seat)
            seat.distrusts_checkpoints = True
        except UnknownVersion:  # until an operator recovers the stream
            self._again(running, seat)
        except ClusterUnreachable:
            pass
        except (Trimmed, TopicChanged):
            running.given_up = True
            running.seats.clear()

    def _again(self, running: _Running, seat: Seat) -> None:
        """Let a new process read for the consumer, from the beginning."""
        running.readers.pop(seat.label[0], None)
        seat.label = (seat.label[0], f"{seat.label[1]}+")

    def _history(self, audit: AuditCollector, control: ControlState) -> History:
        for log in control.plan(audit.end.epoch).logs:
            self._logged(audit, control, log)
        return audit.history(control)

    def _logged(self, audit: AuditCollector, control: ControlState, log: Log) -> None:
        partition = log_partition(log)
        start = self._world.log.log_start_offsets([partition])[partition]
        fetched = self._world.log.read(partition, start, READ_ALL)
        if fetched is not None:
            audit.logged(control, log, fetched.records)
