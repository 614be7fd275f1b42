"""The acceptance rule of order records, written independently from `docs/protocol.md`.

It reads the raw records of a control topic and of order streams, and gives the epochs, and for each
accepted record its runs with their places. It uses nothing of `multicast`, so that it does not
repeat a fault in that acceptance rule. No Spark, no I/O; a stream's records come in offset order.
The rule for order records of version 2 is in `ticket_rule.py`.

    place   the number of messages that the collector ordered before this one in its epoch, plus
            epoch x `EPOCH_PLACES`, so that a later epoch's places are larger

Invariant: in one collector's stream places rise by one from message to message within an epoch.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

from topology.carry_over import Retained, retained
from topology.documents import NotReadable, json_object, part, whole, whole_text
from topology.tree import EPOCH_MAX, InvalidPlan, Plan

EPOCH_PLACES = (
    2**44
)  # more messages than one epoch orders; 2**19 epochs fit into 63 bits above them
OFFSET_LIMIT = 2**63  # Kafka's offsets are signed 64-bit integers
ORDERED_LIMIT = 2**24  # offsets that one record may order (docs/protocol.md, "Why 2^24")
_LEAD = struct.Struct(">2sB16s")
_REST = struct.Struct(">BQQQQH")
_RUN = struct.Struct(">IQI")
_OWN, _PARENT, _FREEZE = 1, 2, 3  # kinds of order records (docs/protocol.md)

FOREIGN, FROZEN, STALE = "foreign", "frozen", "stale"
MALFORMED, IMPOSSIBLE, UNKNOWN_VERSION = "malformed", "impossible", "unknown version"


class Statement(NamedTuple):
    """One record of a control topic."""

    key: bytes | None
    value: bytes | None


class PlacedRun(NamedTuple):
    """The offsets first to next - 1 of a log; `place` is that of the first."""

    topic: str
    collector: str
    log: str
    first: int
    next: int
    place: int


@dataclass(frozen=True, slots=True)
class StreamRule:
    """What is needed to read one collector's stream in one epoch; sent to Spark's workers."""

    topic: str
    epoch: int
    collector: str
    stream: int
    offset_first: int
    anchor: bytes
    own: frozenset[int]
    inherited: frozenset[int]
    parent_offset: int | None  # where the parent's stream begins; None: there is no parent
    starts: Mapping[int, int]
    logs: Mapping[int, str]
    owed: Mapping[int, int] = field(default_factory=dict)  # by log, after a recovery
    restored: int = 0  # the runs that a recovery restores, of a stream of version 2
    stop: int | None = None  # the offset at which a recovery stopped the stream
    order_version: int = 1


class StreamReader(NamedTuple):
    """A consumer, and the collector that it follows in an epoch."""

    topic: str
    epoch: int
    collector: str
    consumer: str


class Pair(NamedTuple):
    """Two collectors of one epoch whose bags share two logs or more."""

    topic: str
    epoch: int
    earlier: str
    later: str


@dataclass(slots=True)
class PlannedOrder:
    """The content of control topics: which collectors append where, and who follows them.

    `single_log` holds each (topic, consumer) that in some epoch reads one log and follows no
    collector.
    """

    rules: list[StreamRule] = field(default_factory=list)
    readers: list[StreamReader] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    single_log: list[tuple[str, str]] = field(default_factory=list)


def digest(data: bytes) -> bytes:
    """Return the BLAKE2b digest, 16 bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


# -- plans ----------------------------------------------------------------------------------


def read_control(topic: str, statements: Iterable[Statement], order: PlannedOrder) -> None:
    """Read a control topic; adds the epochs that have begun to `order`."""
    control = Said(topic)
    for statement in statements:
        control.take(statement)
    ended: dict[str, int] = {}
    resumed: Mapping[str, Any] = {}
    restored: Mapping[str, int] = {}
    for number, plan in enumerate(control.plans):
        kept = control.kept[number - 1].collectors if number else frozenset()
        _take_plan(topic, plan, kept, (ended, resumed, restored), order)
        if plan["epoch"] not in control.ends:
            break
        ended |= control.ends[plan["epoch"]]
        resumed, stopped, restored = control.recovered[plan["epoch"]]
        _stop(order, topic, plan["epoch"], stopped)


def _stop(order: PlannedOrder, topic: str, epoch: int, stopped: Mapping[str, int]) -> None:
    """Record the offsets at which a recovery stopped streams without a freeze."""
    for name, offset in stopped.items():
        newest = max(
            index
            for index, rule in enumerate(order.rules)
            if (rule.topic, rule.collector) == (topic, name) and rule.epoch <= epoch
        )
        order.rules[newest] = replace(order.rules[newest], stop=offset)


class _Recovered(NamedTuple):
    """Where a recovery has the next epoch's streams resume, and its own epoch's streams stop.

    `restored` counts the runs that it gives each of the next epoch's streams of version 2.
    """

    resumed: Mapping[str, Any]
    stopped: Mapping[str, int]
    restored: Mapping[str, int]


class Said:
    """The plans, markers and ends of a control topic, as far as read; other records are skipped."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.plans: list[dict[str, Any]] = []
        self.kept: list[Retained] = []  # by plan: what the next plan retains of it
        self.markers: dict[int, dict[str, int]] = {}
        self.ends: dict[int, dict[str, int]] = {}
        self.recovered: dict[int, _Recovered] = {}
        self._previous = digest(b"amcast genesis\0" + topic.encode())

    def take(self, statement: Statement) -> None:
        """Take the next statement; an invalid one changes nothing."""
        try:
            kind, _, rest = (statement.key or b"").decode().partition("/")
            if kind == "plan":
                self._take_plan(statement.value or b"")
            elif kind in ("markers", "ends"):
                epoch = whole_text(rest.partition("/")[0], EPOCH_MAX)
                document = json_object(statement.value or b"")
                positions = part(document, "positions")
                if isinstance(positions, dict) and self._counts(kind, epoch, positions):
                    if kind == "ends":
                        self.recovered.setdefault(epoch, self._recovered(epoch, document))
                    facts = self.markers if kind == "markers" else self.ends
                    facts.setdefault(epoch, positions)
        except (UnicodeDecodeError, NotReadable, InvalidPlan):
            return

    def _take_plan(self, value: bytes) -> None:
        record = json_object(value)
        plan = part(record, "plan")
        read = Plan.from_json(plan)
        if (part(record, "previous"), read.epoch) != (self._previous.hex(), len(self.plans) + 1):
            return
        if read.topic != self.topic:
            return
        if self.plans:
            self.kept.append(retained(Plan.from_json(self.plans[-1]), read))
        self.plans.append(plan)
        self._previous = digest(value)

    def _recovered(self, epoch: int, document: Mapping[str, Any]) -> _Recovered:
        """Read a recovery's positions; they must name collectors, and logs in their bags."""
        resumed, stopped = document.get("resumed", {}), document.get("stopped", {})
        restored = document.get("restored", {})
        bags = {node["name"]: node["bag"] for node in self.plans[epoch]["collectors"]}
        names = {node["name"] for node in self.plans[epoch - 1]["collectors"]}
        inner = resumed.values() if isinstance(resumed, dict) else ()
        for begins in (resumed, stopped, restored, *inner):
            if not isinstance(begins, dict):
                raise NotReadable("it is not an object")
        for name, begins in resumed.items():
            for log, begin in begins.items():
                if not isinstance(begin, list) or len(begin) != 2 or log not in bags.get(name, ()):
                    raise NotReadable("it resumes a collector or a log that does not exist")
                for position in begin:
                    whole(position)
            if name not in bags:
                raise NotReadable("it resumes a collector or a log that does not exist")
        if not (stopped.keys() <= names and restored.keys() <= bags.keys()):
            raise NotReadable("it stops or restores a collector that does not exist")
        for number in (*stopped.values(), *restored.values()):
            whole(number)
        return _Recovered(resumed, stopped, restored)

    def _counts(self, kind: str, epoch: int, positions: Mapping[str, Any]) -> bool:
        """Whether the epoch may end now, and all logs that need a position have one."""
        for position in positions.values():
            whole(position)
        if not 0 < epoch < len(self.plans) or any(e not in self.ends for e in range(1, epoch)):
            return False
        if kind == "ends" and epoch not in self.markers:
            return False
        plan, kept = self.plans[epoch - 1], self.kept[epoch - 1].logs
        collected = {log for node in plan["collectors"] for log in node["bag"]}
        for log in plan["logs"]:
            name, first = log["name"], log.get("first", 0)
            for earlier in range(1, epoch):
                first = self.ends[earlier].get(name, first)
            if name in kept or (kind == "markers" and name in collected):
                continue
            if positions.get(name, -1) < first:
                return False
        return True


def _take_plan(
    topic: str,
    plan: Mapping[str, Any],
    kept: Collection[str],
    begins: tuple[Mapping[str, int], Mapping[str, Any], Mapping[str, int]],
    order: PlannedOrder,
) -> None:
    epoch = plan["epoch"]
    order.rules += (rule for rule in _rules_of(topic, plan, *begins) if rule.collector not in kept)
    for entry in plan["consumers"]:
        if entry["collector"] is None:
            order.single_log.append((topic, entry["name"]))
        elif entry["collector"] not in kept:
            order.readers.append(StreamReader(topic, epoch, entry["collector"], entry["name"]))
    for earlier, later in combinations(plan["collectors"], 2):
        if earlier["name"] not in kept and len(set(earlier["bag"]) & set(later["bag"])) > 1:
            order.pairs.append(Pair(topic, epoch, earlier["name"], later["name"]))


def _rules_of(
    topic: str,
    plan: Mapping[str, Any],
    ended: Mapping[str, int],
    resumed: Mapping[str, Any],
    restored: Mapping[str, int],
) -> Iterator[StreamRule]:
    version = plan.get("order_version", 1)
    digested = {name: value for name, value in plan.items() if name != "order_version"}
    canonical = json.dumps(digested, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    numbers = {log["name"]: number for number, log in enumerate(plan["logs"])}
    nodes = {node["name"]: node for node in plan["collectors"]}
    for name, node in nodes.items():
        parent = nodes.get(node["parent"] or "")
        above = set(parent["bag"]) if parent else set()
        text = b"amcast anchor\0%d\0%s\0%s"
        begins = resumed.get(name, {})
        firsts = {log: ended.get(log, plan["logs"][numbers[log]]["first"]) for log in node["bag"]}
        firsts |= {log: position for log, (position, _) in begins.items()}
        yield StreamRule(
            topic=topic,
            epoch=plan["epoch"],
            collector=name,
            stream=node["stream"],
            offset_first=node["stream_first"],
            anchor=digest(text % (plan["epoch"], digest(canonical.encode()), name.encode())),
            own=frozenset(numbers[log] for log in node["bag"] if log not in above),
            inherited=frozenset(numbers[log] for log in node["bag"] if log in above),
            parent_offset=parent["stream_first"] if parent else None,
            starts={numbers[log]: first for log, first in firsts.items()},
            logs={number: log for log, number in numbers.items()},
            owed={numbers[log]: owed for log, (_, owed) in begins.items()},
            restored=restored.get(name, 0),
            order_version=version,
        )


# -- order records --------------------------------------------------------------------------


@dataclass(slots=True)
class StreamReading:
    """The state of reading one collector's stream in one epoch."""

    rule: StreamRule
    previous: bytes = b""
    positions: dict[int, int] = field(default_factory=dict)
    records: int = 0
    offset: int = 0
    ordered: int = 0
    frozen: bool = False

    def __post_init__(self) -> None:
        """Start at the epoch's anchor."""
        self.previous = self.rule.anchor
        self.positions = dict(self.rule.starts)
        self.offset = self.rule.parent_offset or 0

    def take(self, raw: bytes) -> str | list[PlacedRun]:
        """Return the runs of an accepted record, or the reason why it is void."""
        if len(raw) < _LEAD.size or raw[:2] != b"TO":
            return FOREIGN
        if self.frozen:
            return FROZEN
        _, version, previous = _LEAD.unpack_from(raw)
        if previous != self.previous:
            return STALE
        if version != 1:
            return UNKNOWN_VERSION
        if len(raw) < _LEAD.size + _REST.size:
            return MALFORMED
        kind, _, _, records, offset, count = _REST.unpack_from(raw, _LEAD.size)
        body = raw[_LEAD.size + _REST.size :]
        if len(body) != count * _RUN.size or kind not in (_OWN, _PARENT, _FREEZE):
            return MALFORMED
        runs = list(_RUN.iter_unpack(body))
        if max(records, offset) >= OFFSET_LIMIT or any(
            length == 0 or first + length >= OFFSET_LIMIT for _, first, length in runs
        ):
            return MALFORMED
        if not self._may(kind, records - self.records, offset - self.offset, runs):
            return IMPOSSIBLE
        if sum(length for _, _, length in runs) > ORDERED_LIMIT:
            return IMPOSSIBLE
        return self._place(kind, runs, records, offset, digest(raw))

    def _may(
        self, kind: int, relayed: int, moved: int, runs: Sequence[tuple[int, int, int]]
    ) -> bool:
        has_parent = self.rule.parent_offset is not None
        if kind == _OWN:
            return bool(runs) and relayed == moved == 0
        if kind == _PARENT and relayed == moved == 0 and runs:
            owed = self.rule.owed
            return has_parent and all(first + more <= owed.get(log, 0) for log, first, more in runs)
        if kind == _PARENT:
            return has_parent and relayed > 0 and moved >= relayed
        return not runs and relayed >= 0 and moved >= relayed and (has_parent or moved == 0)

    def _place(
        self,
        kind: int,
        runs: Sequence[tuple[int, int, int]],
        records: int,
        offset: int,
        its_digest: bytes,
    ) -> str | list[PlacedRun]:
        rule = self.rule
        allowed = rule.own if kind == _OWN else rule.inherited
        positions, place = dict(self.positions) if len(runs) > 1 else self.positions, self.ordered
        placed = []
        for log, first, length in runs:
            if log not in allowed or positions[log] != first:
                return IMPOSSIBLE
            run_place = rule.epoch * EPOCH_PLACES + place
            placed.append(
                PlacedRun(
                    rule.topic, rule.collector, rule.logs[log], first, first + length, run_place
                )
            )
            positions[log] = first + length
            place += length
        self.positions, self.ordered = positions, place
        self.records, self.offset, self.previous = records, offset, its_digest
        self.frozen = kind == _FREEZE
        return placed
