"""What a control topic says of the order streams, written independently from `docs/protocol.md`.

It reads the raw records of a control topic, and gives the epochs. With `ticket_rule.py`, the rule
of the streams, it uses nothing of `multicast`, so that the two repeat no fault of it. No Spark, no
I/O; records come in offset order.

    place   the number of messages that the collector ordered before this one in its epoch, plus
            epoch x `EPOCH_PLACES`, so that a later epoch's places are larger

Invariant: in one collector's stream places rise by one from message to message within an epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

from multicast.errors import UnknownVersion
from topology.carry_over import Retained, retained
from topology.documents import NotReadable, json_object, octets, part, whole, whole_text
from topology.tree import EPOCH_MAX, InvalidPlan, Plan

EPOCH_PLACES = (
    2**44
)  # more messages than one epoch orders; 2**19 epochs fit into 63 bits above them
OFFSET_LIMIT = 2**63  # Kafka's offsets are signed 64-bit integers
ORDERED_LIMIT = 2**24  # offsets that one record may order (docs/protocol.md, clause 6)
ORDER_VERSION = 3

FOREIGN, FROZEN, MALFORMED, IMPOSSIBLE = "foreign", "frozen", "malformed", "impossible"


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
    restored: int = 0  # the runs that a recovery restores
    seen: tuple[tuple[int, int, int, int], ...] = ()  # log, end, leader epoch, checksum
    lost: tuple[tuple[int, int], ...] = ()  # log, first offset


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
    """Read a control topic; adds the epochs that have begun to `order`.

    Raises `UnknownVersion` for a plan whose order records have another version.
    """
    control = Said(topic)
    for statement in statements:
        control.take(statement)
    ended: dict[str, tuple[int, Any, int | None]] = {}
    before = _Ended({}, {}, control.began, {}, {})
    for number, plan in enumerate(control.plans):
        if plan.get("order_version") != ORDER_VERSION:
            raise UnknownVersion(
                f"epoch {plan['epoch']} of topic {topic} has order records of a version that this "
                f"program does not know"
            )
        kept = control.kept[number - 1].collectors if number else frozenset()
        _take_plan(topic, plan, kept, _rules_of(topic, plan, ended, before), order)
        if plan["epoch"] not in control.ends:
            break
        before = control.ended[plan["epoch"]]
        cut: tuple[Any, int | None] = ((), None)  # of a log whose loss is accepted
        lives = {log["name"]: log.get("life", 0) for log in control.plans[number + 1]["logs"]}
        same = {
            log["name"] for log in plan["logs"] if lives.get(log["name"], 0) <= log.get("life", 0)
        }
        ended |= {
            log: (end, *((before.seen.get(log, ()), before.lost.get(log)) if log in same else cut))
            for log, end in control.ends[plan["epoch"]].items()
        }


class _Ended(NamedTuple):
    """Where a recovery has the next epoch's streams resume, and how many runs it gives each.

    `digest` is that of the statement; `seen` and `lost` say what collectors had seen of the logs.
    """

    resumed: Mapping[str, Any]
    restored: Mapping[str, int]
    digest: bytes
    seen: Mapping[str, Any]
    lost: Mapping[str, int]


class Said:
    """The plans, markers and ends of a control topic, as far as read; other records are skipped."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.plans: list[dict[str, Any]] = []
        self.kept: list[Retained] = []  # by plan: what the next plan retains of it
        self.markers: dict[int, dict[str, int]] = {}
        self.ends: dict[int, dict[str, int]] = {}
        self.ended: dict[int, _Ended] = {}
        self._lives: dict[str, int] = {}
        self.began = b""  # the digest of the first plan's statement
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
                follows = part(document, "previous") == self._previous.hex()
                facts = self.markers if kind == "markers" else self.ends
                if not follows or epoch in facts or not isinstance(positions, dict):
                    return
                if self._counts(kind, epoch, positions):
                    if kind == "ends":
                        self.ended[epoch] = self._ended(epoch, document, statement.value or b"")
                    kept = self.kept[epoch - 1].logs
                    names = {log["name"] for log in self.plans[epoch - 1]["logs"]} - kept
                    facts[epoch] = {log: at for log, at in positions.items() if log in names}
                    self._previous = digest(statement.value or b"")
        except (UnicodeDecodeError, NotReadable, InvalidPlan):
            return

    def _take_plan(self, value: bytes) -> None:
        record = json_object(value)
        plan = part(record, "plan")
        read = Plan.from_json(plan, any_order=True)
        if (part(record, "previous"), read.epoch) != (self._previous.hex(), len(self.plans) + 1):
            return
        lives = {log.name: log.life for log in read.logs}
        lower = any(life < self._lives.get(name, 0) for name, life in lives.items())
        if read.topic != self.topic or lower:
            return
        self._lives |= lives
        if self.plans:
            before = Plan.from_json(self.plans[-1], any_order=True)
            self.kept.append(retained(before, read))
        self.plans.append(plan)
        self._previous = digest(value)
        self.began = self.began or self._previous

    def _ended(self, epoch: int, document: Mapping[str, Any], value: bytes) -> _Ended:
        """Read a recovery's positions; they must name collectors, and logs in their bags."""
        resumed, restored = document.get("resumed", {}), document.get("restored", {})
        bags = {node["name"]: node["bag"] for node in self.plans[epoch]["collectors"]}
        inner = resumed.values() if isinstance(resumed, dict) else ()
        for begins in (resumed, restored, *inner):
            if not isinstance(begins, dict):
                raise NotReadable("it is not an object")
        if not (resumed.keys() <= bags.keys() and restored.keys() <= bags.keys()):
            raise NotReadable("it resumes or restores a collector that does not exist")
        for name, begins in resumed.items():
            if not begins.keys() <= set(bags[name]):
                raise NotReadable("it resumes a log that does not exist")
        for number in restored.values():
            whole(number, 2**32 - 1)
        for number in (each for begins in inner for each in begins.values()):
            whole(number)
        if "runs" in document:
            octets(document["runs"], 16)
        seen, lost = document.get("seen", {}), document.get("lost", {})
        _refuse_malformed_sight(seen, lost)
        return _Ended(resumed, restored, digest(value), seen, lost)

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
        lives = {log["name"]: log.get("life", 0) for log in self.plans[epoch]["logs"]}
        for log in plan["logs"]:
            name, first = log["name"], log.get("first", 0)
            for earlier in range(1, epoch):
                first = self.ends[earlier].get(name, first)
            if name in kept or (kind == "markers" and name in collected):
                continue
            if lives.get(name, 0) > log.get("life", 0):  # the operator gives its end up
                first = 0
            if positions.get(name, -1) < first:
                return False
        return True


def _refuse_malformed_sight(seen: object, lost: object) -> None:
    """Refuse what streams had seen and lost of logs if it is malformed; the judge needs no more."""
    if not (isinstance(seen, dict) and isinstance(lost, dict)):
        raise NotReadable("it is not an object")
    for ends in seen.values():
        for end in ends if isinstance(ends, list) else [None]:
            if not isinstance(end, list) or len(end) != 3:
                raise NotReadable("an end that was seen is malformed")
            for number, most in zip(end, (OFFSET_LIMIT - 1, 2**32 - 1, 2**32 - 1), strict=True):
                whole(number, most)
    for number in lost.values():
        whole(number)


def _take_plan(
    topic: str,
    plan: Mapping[str, Any],
    kept: Collection[str],
    rules: Iterable[StreamRule],
    order: PlannedOrder,
) -> None:
    epoch = plan["epoch"]
    order.rules += (rule for rule in rules if rule.collector not in kept)
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
    ended: Mapping[str, tuple[int, Any, int | None]],
    before: _Ended,
) -> Iterator[StreamRule]:
    logs = {log["name"]: (log.get("first", 0), (), None) for log in plan["logs"]} | dict(ended)
    head = b"amcast anchor\0%d\0%s\0" % (plan["epoch"], before.digest)
    numbers = {log["name"]: number for number, log in enumerate(plan["logs"])}
    nodes = {node["name"]: node for node in plan["collectors"]}
    for name, node in nodes.items():
        parent = nodes.get(node["parent"] or "")
        above = set(parent["bag"]) if parent else set()
        bag = {numbers[log]: logs[log] for log in node["bag"]}
        resumed = before.resumed.get(name, {})
        yield StreamRule(
            topic=topic,
            epoch=plan["epoch"],
            collector=name,
            stream=node["stream"],
            offset_first=node.get("stream_first", 0),
            anchor=digest(head + name.encode()),
            own=frozenset(numbers[log] for log in node["bag"] if log not in above),
            inherited=frozenset(numbers[log] for log in node["bag"] if log in above),
            parent_offset=parent.get("stream_first", 0) if parent else None,
            starts={numbers[log]: resumed.get(log, logs[log][0]) for log in node["bag"]},
            logs={number: log for log, number in numbers.items()},
            restored=before.restored.get(name, 0),
            seen=tuple((log, *end) for log, (_, seen, _) in bag.items() for end in seen),
            lost=tuple((log, lost) for log, (_, _, lost) in bag.items() if lost is not None),
        )
