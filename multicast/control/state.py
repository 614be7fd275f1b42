"""The control topic: plans by epoch, where epochs end, and checkpoints.

Goes in: the records of the compacted topic `A.topology`, in offset order. Comes out:
`ControlState`, the same for everybody who read as far: a statement that says nothing sensible is
skipped, whatever bytes it is. Plans are accepted by a digest chain like order records; of other
facts that are stated twice the first counts, from the moment at which it can be one: `markers` and
`ends` of an epoch after the next plan, a checkpoint after its own. Every statement has a key of
its own, so that compaction takes none that somebody needs; made again, it is another ATTEMPT.
(Were the key the same, compaction would keep the later copy, and a rival between would be first.)

    plan/EPOCH/DIGEST/ATTEMPT      {"previous": hex, "plan": {…}}; counts iff `previous` is the
                                   digest of the last plan record that counted and the epoch is next
    markers/EPOCH/DIGEST/ATTEMPT   {"positions": {log: offset}}: this epoch's collectors freeze once
                                   each log is ordered to there
    ends/EPOCH/DIGEST/ATTEMPT      {"positions": {log: offset}}: where each log ends this epoch; one
                                   that is carried over (`topology/carry_over.py`) does not. After a
                                   recovery also `resumed` and `stopped`, see `Ended`
    checkpoint/EPOCH/NAME/OFFSET   the state of a collector's stream after that record
                                   (an empty value takes it back)
    address/NAME                   where the newest instance of a collector takes announcements, and
                                   their token; nothing depends on it but speed
    running/NAME                   {"epoch": e}: an instance that takes no announcements has opened
                                   this epoch's collector; only operators' commands look at it

Invariant: plans[i].epoch = i + 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from multicast.announcements import Address
from multicast.control import sources
from multicast.control.checkpoints import best_checkpoint
from multicast.control.documents import Ended, address_of, ended_of, positions_of
from multicast.drivers.protocol import Record
from multicast.errors import UncoveredInterest
from multicast.order import Checkpoint, OrderStream, ParentNext, digest_of
from topology.carry_over import Retained, retained
from topology.documents import NotReadable, json_object, octets, part, whole, whole_text
from topology.tree import DIGEST_BYTES, EPOCH_MAX, InvalidPlan, Plan

_ORDINARY = Ended()


def genesis(topic: str) -> bytes:
    """Give the digest that the first plan of a topic extends."""
    return digest_of(b"amcast genesis\0" + topic.encode())


@dataclass
class ControlState:
    """What the control topic says so far. Feed `read`; look at the rest."""

    topic: str
    plans: list[Plan] = field(default_factory=list)
    markers: dict[int, dict[str, int]] = field(default_factory=dict)
    ends: dict[int, dict[str, int]] = field(default_factory=dict)
    void: int = 0
    previous: bytes = b""
    addresses: dict[str, tuple[int, Address]] = field(default_factory=dict)  # with the epoch
    running: dict[str, int] = field(default_factory=dict)  # to the epoch
    recovered: dict[int, Ended] = field(default_factory=dict)
    _checkpoints: dict[bytes, Checkpoint] = field(default_factory=dict)
    _carried: list[Retained] = field(default_factory=list)  # [e - 1]: from epoch e into the next

    def __post_init__(self) -> None:
        """Begin where no plan counts yet."""
        self.previous = genesis(self.topic)

    def copy(self) -> ControlState:
        """Give a state that can read on without touching this one."""
        other = replace(
            self,
            plans=list(self.plans),
            markers=dict(self.markers),
            ends=dict(self.ends),
            recovered=dict(self.recovered),
            addresses=dict(self.addresses),
            running=dict(self.running),
            _carried=list(self._carried),
            _checkpoints=dict(self._checkpoints),
        )
        other.previous = self.previous
        return other

    def read(self, record: Record) -> None:
        """Take the next record; one that says nothing sensible is counted as void.

        Raises nothing, whatever the bytes are: anybody may write to a topic by mistake.
        """
        try:
            self._take(record.key or b"", record.value)
        except (NotReadable, InvalidPlan, UnicodeDecodeError):
            self.void += 1

    def _take(self, key: bytes, value: bytes | None) -> None:
        kind, _, rest = key.decode().partition("/")
        if kind == "checkpoint" and value is None:
            self._checkpoints.pop(key, None)
            return
        document = json_object(value or b"")
        if kind == "checkpoint":
            self._checkpoints[key] = self._checkpoint(rest, document)
        elif kind == "address":
            epoch = whole(part(document, "epoch"), EPOCH_MAX)
            self.addresses[rest] = epoch, address_of(document)
        elif kind == "running":
            self.running[rest] = whole(part(document, "epoch"), EPOCH_MAX)
        elif kind == "plan":
            self._take_plan(value or b"", document)
        elif kind in ("markers", "ends"):
            epoch = whole_text(rest.partition("/")[0], EPOCH_MAX)
            positions = positions_of(part(document, "positions"))
            self._refuse_untimely(kind, epoch, positions)
            facts = self.markers if kind == "markers" else self.ends
            if kind == "ends":
                ended = ended_of(document, self.plan(epoch), self.plan(epoch + 1))
                self.recovered.setdefault(epoch, ended)
            facts.setdefault(epoch, positions)
        else:
            raise NotReadable(kind)

    def _take_plan(self, value: bytes, document: Mapping[str, Any]) -> None:
        plan = Plan.from_json(part(document, "plan"))
        previous = part(document, "previous")
        if previous != self.previous.hex() or plan.epoch != len(self.plans) + 1:
            raise InvalidPlan("another plan came first")
        if plan.topic != self.topic:
            raise InvalidPlan("it is of another topic")
        if self.plans:
            self._carried.append(retained(self.plans[-1], plan))
        self.plans.append(plan)
        self.previous = digest_of(value)

    def _refuse_untimely(self, kind: str, epoch: int, positions: Mapping[str, int]) -> None:
        """Refuse what cannot be known yet, or leaves out a log that waits for it.

        The next plan stands before the markers of an epoch and these before its ends; an epoch
        ends after it has begun, and no log ends before its own begin.
        """
        if not 1 <= epoch < self.epoch or (kind == "ends" and epoch not in self.markers):
            raise NotReadable(f"epoch {epoch} does not end yet")
        starts = self.starts(epoch)
        if starts is None:
            raise NotReadable(f"epoch {epoch} has not begun")
        plan, kept = self.plan(epoch), self.retained(epoch).logs
        for log in plan.logs:
            asked = kind == "ends" or plan.top(log.name) is None
            if asked and log.name not in kept and positions.get(log.name, -1) < starts[log.name]:
                raise NotReadable(f"it leaves out log {log.name}, or ends it before its begin")

    def _checkpoint(self, rest: str, document: Mapping[str, Any]) -> Checkpoint:
        """Read a checkpoint, which speaks of a stream of a plan and of the logs in its bag."""
        first, _, rest = rest.partition("/")
        collector, _, last = rest.rpartition("/")
        epoch = whole_text(first, EPOCH_MAX)
        if not (1 <= epoch <= self.epoch and self.plan(epoch).has_collector(collector)):
            raise NotReadable("it is of no stream")
        plan = self.plan(epoch)
        positions = positions_of(part(document, "positions"))
        known = {
            str(plan.number(name)): plan.number(name) for name in plan.collector(collector).bag
        }
        if positions.keys() != known.keys():
            raise NotReadable("it speaks of other logs than the bag")
        parent_next = part(document, "parent_next")
        if not isinstance(parent_next, list) or len(parent_next) != 2:
            raise NotReadable("it has no parent_next")
        return Checkpoint(
            epoch=epoch,
            collector=collector,
            offset=whole_text(last),
            digest=octets(part(document, "digest"), DIGEST_BYTES),
            count=whole(part(document, "count")),
            positions={known[name]: offset for name, offset in positions.items()},
            parent_next=ParentNext(*map(whole, parent_next)),
        )

    # -- look-ups ---------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The newest epoch; 0 where no plan was applied."""
        return len(self.plans)

    @property
    def begun_epoch(self) -> int:
        """The newest epoch that has begun: the one before `epoch` while that is drained."""
        epoch = self.epoch
        while epoch and self.starts(epoch) is None:
            epoch -= 1
        return epoch

    def collectors_open(self, epoch: int) -> set[str]:
        """Name the collectors that an instance has opened, in this epoch or a later one."""
        told = {name for name, (found, _) in self.addresses.items() if found >= epoch}
        return told | {name for name, found in self.running.items() if found >= epoch}

    def plan(self, epoch: int | None = None) -> Plan:
        """Give the plan of an epoch, by default the newest; `UncoveredInterest` where none is."""
        wanted = self.epoch if epoch is None else epoch
        if not 1 <= wanted <= self.epoch:
            raise UncoveredInterest(
                f"topic {self.topic} has no plan"
                + (f" of epoch {wanted}" if wanted else "")
                + "; make one with 'amcast topology plan FILE --out plan.json' and "
                "'amcast topology apply plan.json'"
            )
        return self.plans[wanted - 1]

    def retained(self, epoch: int) -> Retained:
        """Give what the next epoch retains of this one: everything, while there is no next."""
        if epoch < self.epoch:
            return self._carried[epoch - 1]
        return sources.retained_whole(self.plan(epoch))

    def first_epoch(self, epoch: int, source: str) -> int:
        """Give the epoch in which a source of this epoch began; its stream is of that epoch.

        A source is a collector's name, or "@" and a log's.
        """
        return sources.first_epoch(self.retained, epoch, source)

    def last_epoch(self, epoch: int, source: str) -> int | None:
        """Give the last epoch of a source of this one; None: the newest plan has it still."""
        return sources.last_epoch(self.retained, epoch, source, newest=self.epoch)

    def starts(self, epoch: int) -> dict[str, int] | None:
        """Give, by log name, the first offset of an epoch; None while the epoch has not begun.

        A log begins where its last epoch ended, and a new log at its `first` in the plan. A
        retained log has its start in the epoch in which it began.
        """
        return sources.log_starts(self.plan(epoch), self.ends)

    def begun(self, epoch: int) -> dict[str, int]:
        """Give what `starts` gives; raises `UncoveredInterest` while the epoch has not begun."""
        starts = self.starts(epoch)
        if starts is None:
            raise UncoveredInterest(f"epoch {epoch} of topic {self.topic} has not begun yet")
        return starts

    def stream(self, epoch: int, collector: str, *, below: int) -> OrderStream:
        """Open the stream of a collector of an epoch, under the plan that it began with.

        At its last checkpoint below an offset, so 0 means where its epoch starts. Raises
        `UncoveredInterest` where it has not begun.
        """
        epoch = self.first_epoch(epoch, collector)
        points = self.checkpoints(epoch, collector)
        return self.opened(epoch, collector, best_checkpoint(points, epoch, collector, below))

    def opened(self, epoch: int, collector: str, point: Checkpoint | None = None) -> OrderStream:
        """Open a stream of the epoch that it began in, at a checkpoint or where it began."""
        last = self.last_epoch(epoch, collector)
        before = self.recovered.get(epoch - 1, _ORDINARY)
        ended = _ORDINARY if last is None else self.recovered.get(last, _ORDINARY)
        return OrderStream(
            self.plan(epoch),
            collector,
            self.begun(epoch),
            point,
            resumed=before.resumed.get(collector),
            stop=ended.stopped.get(collector),
        )

    def alone_end(self, epoch: int, log: str) -> int | None:
        """Give the offset at which an epoch ends for single-log subscriptions; None if unknown.

        They read up to the marker. The log's own end is lower only if a stream was frozen too
        early; other consumers then deliver the messages between the two in the next epoch.
        """
        return sources.single_log_end(self.ends, self.markers, epoch, log)

    def alone_start(self, epoch: int, log: str) -> int:
        """Say where an epoch begins for those who read a log alone."""
        start = sources.single_log_start(self.ends, self.markers, epoch, log)
        return self.begun(epoch)[log] if start is None else start

    def checkpoints(self, epoch: int, collector: str) -> list[Checkpoint]:
        """List a stream's checkpoints, by offset."""
        found = [
            point
            for point in self._checkpoints.values()
            if point.epoch == epoch and point.collector == collector
        ]
        return sorted(found, key=lambda point: point.offset)
