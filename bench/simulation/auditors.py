"""Auditors: in the middle of a run they take the end, read up to it, and judge what they read.

A turn's bits go in. An auditor reads for every consumer from its earliest position, as
`amcast verify` does, while messages, epochs and faults go on; it is at the end when
`multicast.subscription.missing` says so. What all of them read is judged when the run has come to
rest.

    audit     one end, and a reader for each consumer. A reader that crashes begins anew
    given up  what retention took, or a topic that was made again, an audit cannot judge; nor what
              wrong order records did to agreement, so schedules that forge have no audits

No schedule may show a violation, and no reader may wait for ever: a healthy system passes an audit
at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bench.simulation.consumers import SimulatedConsumer, Sitter
from bench.simulation.judge import Judge, Violation, judge
from bench.simulation.schedule import ConsumerSeat
from bench.simulation.world import READ_ALL, World
from multicast.control import ControlState, log_partition
from multicast.delivery import Batch
from multicast.errors import ProtocolViolation, TopicChanged, Trimmed, UnknownVersion
from multicast.history import History
from multicast.subscription import Bounds, End, SubscriptionRequest, logs_wanted, missing
from multicast.verification.audit import AuditCollector
from topology.tree import Log

AUDITS_MAX = 2


class _Reader(SimulatedConsumer):
    """Reads for one consumer; what it delivers goes to the audit."""

    def __init__(self, world: World, sitter: Sitter, audit: AuditCollector) -> None:
        self.audit = audit
        super().__init__(world, sitter, Judge(world.schedule.scene), where="earliest")
        audit.begins(sitter.label[0], sitter.wanted, self.delivery.position.epoch)

    def _hand_over(self, batch: Batch, index: int) -> None:
        one = replace(batch, records=batch.records[index : index + 1])
        self.audit.delivered(*self.sitter.label, one)
        self.last = batch.cursor(index)

    def at_end(self) -> bool:
        """Whether all up to the audit's end is delivered."""
        return missing(self.view.state, self.wanted, self.delivery, self.audit.end) is None


@dataclass(slots=True)
class _Running:
    audit: AuditCollector
    sitters: list[Sitter]  # of the readers that are not at the end yet
    readers: dict[str, _Reader] = field(default_factory=dict)
    given_up: bool = False


class Auditors:
    """All audits of a run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._audits: list[_Running] = []
        scene = world.schedule.scene
        self._wanted = {
            name: SubscriptionRequest.of(name, None if named else interest)
            for (name, interest), named in zip(scene.interests, scene.named, strict=True)
        }

    def turn(self, bits: int) -> None:
        """Begin an audit, or give a reader its turn."""
        schedule = self._world.schedule
        if schedule.harsh or schedule.forges:
            return
        if len(self._audits) < AUDITS_MAX and (not self._audits or bits & 7 == 0):
            self._begin()
        running = self._audits[bits >> 3 & 1 if len(self._audits) > 1 else 0]
        if running.sitters:
            self._read(running, running.sitters[(bits >> 4) % len(running.sitters)], bits >> 10)

    def calm_turns(self) -> None:
        """Give every reader a turn."""
        for running in self._audits:
            for sitter in list(running.sitters):
                if not running.given_up:
                    self._read(running, sitter, 0)

    def verdict(self, control: ControlState) -> Violation | None:
        """Judge every audit; None where none shows a violation."""
        for running in self._audits:
            if running.given_up:
                continue
            for sitter in running.sitters:
                return Violation("liveness", f"{'/'.join(sitter.label)} never came to its end.")
            found = judge(self._history(running.audit, control))
            if found is not None:
                return Violation(found.guarantee, f"In an audit: {found.witness}")
        return None

    def _begin(self) -> None:
        world = self._world
        world.fault("audit")
        state = world.view().state
        logs = logs_wanted(state, None)
        positions = {log.name: world.end(log_partition(log)) for log in logs}
        audit = AuditCollector(End(state.epoch, state.begun_epoch, positions))
        number = len(self._audits) + 1
        sitters = [
            Sitter(ConsumerSeat(name, f"audit{number}", late=False, bounds=Bounds()), wanted)
            for name, wanted in self._wanted.items()
        ]
        self._audits.append(_Running(audit, sitters))

    def _read(self, running: _Running, sitter: Sitter, bits: int) -> None:
        name, instance = sitter.label
        try:
            reader = running.readers.get(name)
            if reader is None:
                reader = running.readers[name] = _Reader(self._world, sitter, running.audit)
            if not reader.turn(bits):
                self._again(running, sitter)
            elif reader.at_end():
                running.audit.ended(name, instance)
                running.sitters.remove(sitter)
        except ProtocolViolation:  # the log belies a checkpoint: the next reader does without
            self._again(running, sitter)
            sitter.wary = True
        except UnknownVersion:  # until somebody recovers the stream
            self._again(running, sitter)
        except (Trimmed, TopicChanged):
            running.given_up = True
            running.sitters.clear()

    def _again(self, running: _Running, sitter: Sitter) -> None:
        """Let another process read for the consumer, from its beginning."""
        running.readers.pop(sitter.label[0], None)
        sitter.label = (sitter.label[0], f"{sitter.label[1]}+")

    def _history(self, audit: AuditCollector, control: ControlState) -> History:
        for log in control.plan(audit.end.epoch).logs:
            self._logged(audit, control, log)
        return audit.history(control)

    def _logged(self, audit: AuditCollector, control: ControlState, log: Log) -> None:
        at = log_partition(log)
        fetched = self._world.log.read(at, self._world.log.log_start_offsets([at])[at], READ_ALL)
        if fetched is not None:
            audit.logged(control, log, fetched.records)
